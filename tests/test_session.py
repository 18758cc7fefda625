"""The session and the signals, inside a process that was there before."""

import importlib
import signal
import socket
import threading

import pytest
import servers
import yaml
from click.testing import CliRunner
from conftest import run_in_process
from pyspark import SparkContext


@pytest.fixture
def settings(code, monkeypatch):
    """Hand over other settings, and take them back."""
    monkeypatch.setattr(code.session._State, "warned_about", None)
    monkeypatch.setattr(code.session._State, "started", None)

    def hand_over(written=None, **changes):
        values = {key.replace("__", "."): value for key, value in changes.items()}
        values |= written or {}
        monkeypatch.setattr(code.session._State, "settings", values)

    return hand_over


def test_a_running_session_is_used_and_what_comes_too_late_is_named_once(
    code, spark, settings, caplog
):
    settings(
        spark__driver__memory="3g",
        spark__sql__shuffle__partitions=3,
        spark__sql__session__timeZone="UTC",
    )

    sessions = {code.session.get_spark(), code.session.get_spark()}

    assert sessions == {spark}
    assert spark.conf.get("spark.sql.shuffle.partitions") == "3", "this is in time"
    warnings = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "have no effect: spark.driver.memory." in warnings[0]
    spark.conf.set("spark.sql.shuffle.partitions", 2)


def test_looking_at_files_needs_no_cluster(code, settings):
    kept = {"spark.hadoop.fs.defaultFS": "hdfs://h"}
    dropped = {"spark.archives": "env.tar.gz", "spark.driver.host": "10.0.0.7"}
    dropped |= {"spark.task.cpus": 2, "spark.executor.cores": 2}
    dropped |= {"spark.submit.deployMode": "cluster"}
    dropped |= {"spark.driver.extraJavaOptions": "-javaagent:/opt/of/the/image.jar"}
    jars = {"spark.jars": "a.jar,local:///opt/drivers/own.jar"}
    settings({"spark.master": "spark://h:7077", **dropped, **kept, **jars})

    code.session.look_from_here()

    wanted = {"spark.master": "local[1]", **kept, "spark.jars": "a.jar"}
    assert code.session._State.settings == wanted


@pytest.mark.parametrize("master", ["localhost:7077", "127.0.0.1:7077", "yarn-client"])
def test_a_master_that_is_none_is_a_sentence(code, master):
    with pytest.raises(code.errors.StreamsError, match="is no master of Spark's"):
        code.cluster.refuse_unreachable(master, {})


@pytest.mark.parametrize("master", ["local", "local[2]", "yarn", "k8s://https://h:1"])
def test_a_master_of_spark_is_none_of_our_business(code, master):
    code.cluster.refuse_unknown_master(master)


def test_a_yarn_of_which_nobody_says_where_it_is_is_a_sentence(
    code, monkeypatch, tmp_path
):
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    with pytest.raises(code.errors.StreamsError, match="set HADOOP_CONF_DIR to the"):
        code.cluster.refuse_unreachable("yarn", {})

    (tmp_path / "spark-env.sh").touch()  # Spark's own script, which may say it
    code.cluster.refuse_unreachable("yarn", {})


YARN_SITE = """<configuration>
  <property><name>rm</name><value>127.0.0.1</value></property>
  <property><name>yarn.resourcemanager.ha.rm-ids</name><value>one, two</value></property>
  <property>
    <name>yarn.resourcemanager.address.one</name><value>${rm}:DEAD</value>
  </property>
  <property>
    <name>yarn.resourcemanager.address.two</name><value>${rm}:OTHER</value>
  </property>
</configuration>"""


@pytest.fixture
def yarn_site(monkeypatch, tmp_path):
    """Say where YARN's two ResourceManagers are, by ports."""
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    monkeypatch.delenv("YARN_CONF_DIR", raising=False)
    dead = servers.free_port()

    def write(other: int) -> None:
        site = YARN_SITE.replace("DEAD", str(dead)).replace("OTHER", str(other))
        (tmp_path / "yarn-site.xml").write_text(site)

    return write


def test_a_yarn_that_does_not_answer_is_a_sentence(code, yarn_site):
    """Hadoop would ask for a quarter of an hour."""
    port = servers.free_port()
    yarn_site(port)

    with pytest.raises(code.errors.StreamsError, match=f"at 127.0.0.1:{port} .*HADOOP"):
        code.cluster.refuse_unreachable("yarn", {})


def test_a_yarn_one_of_whose_managers_answers_is_there(code, yarn_site, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        yarn_site(server.getsockname()[1])
        code.cluster.refuse_unreachable("yarn", {})


def test_a_yarn_behind_a_proxy_is_left_to_spark(code, yarn_site):
    yarn_site(servers.free_port())
    proxy = {"spark.hadoop.hadoop.rpc.socket.factory.class.default": "of.a.Proxy"}

    code.cluster.refuse_unreachable("yarn", proxy)


@pytest.mark.parametrize("host", ["${env.RM_HOST}", "${nobody}", "${circle}"])
def test_a_yarn_whose_place_only_hadoop_knows_is_left_to_spark(
    code, yarn_site, tmp_path, host
):
    file = tmp_path / "yarn-site.xml"
    circle = "<property><name>circle</name><value>${circle}</value></property>"
    yarn_site(servers.free_port())
    text = file.read_text().replace("${rm}", host)
    file.write_text(text.replace("</configuration>", f"{circle}</configuration>"))

    code.cluster.refuse_unreachable("yarn", {})


def test_a_yarn_that_spark_yml_names_goes_before_its_file(code, yarn_site):
    yarn_site(servers.free_port())
    port = servers.free_port()
    ours = {
        "spark.hadoop.yarn.resourcemanager.address.one": f"127.0.0.1:{port}",
        "spark.hadoop.yarn.resourcemanager.ha.rm-ids": "one",
    }

    with pytest.raises(code.errors.StreamsError, match=f"at 127.0.0.1:{port}"):
        code.cluster.refuse_unreachable("yarn", ours)


def test_a_master_that_spark_submit_has_accepted_is_one(code, monkeypatch):
    """EMR Serverless, for example, has one that nobody else knows."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")

    code.cluster.refuse_unreachable("custom:emr-serverless", {})


def test_what_sparks_own_file_decides_is_known(code, monkeypatch, tmp_path):
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert code.installed.spark_defaults() == set(), "there is no such file"

    text = "# spark.a 1\nspark.b  2\n spark.c=3\nspark.d: 4\n"
    (tmp_path / "spark-defaults.conf").write_text(text)
    assert code.installed.spark_defaults() == {"spark.b", "spark.c", "spark.d"}


def test_a_run_leaves_a_session_open_that_was_there_before(project, spark):
    """A notebook's, for example, with a stream of its own."""
    query = spark.readStream.format("rate").load().writeStream.format("noop").start()

    run_in_process(project, "sensor")

    assert query.isActive
    query.stop()


def test_packages_follow_the_formats_in_use_and_plain_ones_stay(code, settings):
    settings(
        packages={"kafka": "g:kafka:1", "avro": "g:avro:1"},
        spark__jars__packages="g:mine:1",
    )

    wanted = code.session.settings_for("json", "kafka", "KAFKA")

    assert wanted == {"spark.jars.packages": "g:mine:1,g:kafka:1"}


def test_a_package_has_the_version_of_the_installed_spark(code):
    from pyspark import __version__

    name = code.installed.spark_package("spark-avro")

    assert name == f"org.apache.spark:spark-avro_2.13:{__version__}"


# --- what spark-submit and an image are given --------------------------------


@pytest.fixture
def submitting(code):
    """The module that composes the command line."""
    return importlib.import_module("cold_store.extras.streams.submit")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.driver.secret.token", "deep"),
        ("spark.kubernetes.driverEnv.DB_PWD", "deep"),
        ("spark.yarn.appMasterEnv.API_KEY", "deep"),
        ("spark.yarn.appMasterEnv.DATABASE", "postgresql://me:deep@db/stock"),
        ("spark.jars.repositories", "https://me:deep@maven.example/releases"),
        ("spark.driver.extraJavaOptions", "-Dpassword=deep"),
        ("spark.driver.extraJavaOptions", "-Daws.secretKey=deep"),
        ("spark.yarn.appMasterEnv.CACHE", "redis://:deep@cache:6379/0"),
    ],
)
def test_no_secret_gets_onto_the_command_line(submitting, settings, key, value):
    settings({key: value})

    with pytest.raises(Exception, match="would be on a command line") as refusal:
        submitting.submit_command(set(), None, "local[1]", ())

    assert key in str(refusal.value) and "deep" not in str(refusal.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.kubernetes.container.image.pullSecrets", "registry-token"),
        ("spark.kubernetes.driver.secretKeyRef.KEY", "s3-secret:access-key"),
        ("spark.kubernetes.executor.secrets.conf-secret", "/opt/conf"),
        ("spark.kubernetes.authenticate.submission.oauthTokenFile", "/run/token"),
        ("spark.kerberos.keytab", "/etc/streams.keytab"),
        ("spark.kerberos.renewal.credentials", "ccache"),
        ("spark.driver.aws.credentials.provider", "Roles"),
        ("spark.yarn.security.credentials.hive.enabled", "false"),
        ("spark.hadoop.yarn.timeline-service.enabled", "false"),
        ("spark.pyspark.driver.python", "/usr/bin/python3"),
        ("spark.jars.packages", "com.amazonaws.secretsmanager:secretsmanager-jdbc:2.0"),
        ("spark.kubernetes.container.image", "registry.example/token-stream:1.0"),
    ],
)
def test_what_names_a_secret_or_belongs_there_is_on_the_command_line(
    submitting, settings, key, value
):
    settings({key: value})

    command = submitting.submit_command(set(), None, "yarn", ())

    assert {value, f"{key}={value}"} & {*command}


def test_spark_hides_what_is_called_secret_here(code, pristine):
    text = (pristine.folder / "conf/base/spark.yml").read_text()

    hidden = yaml.safe_load(text)["spark.redaction.regex"]

    assert hidden == f"(?i){code.errors.SECRET}"


def test_short_options_of_two_letters_are_refused(code):
    """In -psensor click would find an -e of its own."""
    cli = importlib.import_module("cold_store.cli").cli

    result = CliRunner().invoke(cli, ["streams", "submit", "-psensor"])

    assert result.exit_code == 2
    assert "write -p sensor instead of -psensor" in result.output


def test_a_folder_of_jars_has_the_users_own_in_one_version(
    submitting, settings, tmp_path
):
    settings(spark__jars=f"local:///opt/there.jar,file://{tmp_path}/mine-*.jar,")
    (tmp_path / "mine-1.1.jar").touch()
    folder = tmp_path / "jars"
    folder.mkdir()
    (folder / "mine-1.0.jar").touch()
    (folder / "other-1.0.jar").touch()

    found = submitting.jars_of(set(), folder)

    assert found == ["mine-1.1.jar"]
    assert {f.name for f in folder.iterdir()} == {"mine-1.1.jar", "other-1.0.jar"}


def test_a_jar_that_is_not_here_is_named_without_a_password(
    submitting, settings, tmp_path
):
    settings(spark__jars="https://me:deep@example/mine.jar")

    with pytest.raises(
        Exception, match="example/mine.jar, which is no file"
    ) as refusal:
        submitting.jars_of(set(), tmp_path)

    assert "deep" not in str(refusal.value)


def test_jars_come_from_the_repositories_of_spark_yml(submitting, settings, tmp_path):
    maven = tmp_path / "maven/example/mine/2.0"
    maven.mkdir(parents=True)
    (maven / "mine-2.0.jar").write_bytes(b"jar")
    (maven / "mine-2.0.pom").write_text(
        "<project><modelVersion>4.0.0</modelVersion><groupId>example</groupId>"
        "<artifactId>mine</artifactId><version>2.0</version></project>"
    )
    settings(
        spark__jars__packages="example:mine:2.0",
        spark__jars__repositories=(tmp_path / "maven").as_uri(),
        spark__jars__ivy=str(tmp_path / "ivy"),
    )

    assert submitting.jars_of(set(), tmp_path / "jars") == ["mine-2.0.jar"]


# --- where files are ---------------------------------------------------------


def test_a_plain_path_is_not_of_this_machine_where_the_cluster_says_so(
    code, settings, tmp_path, monkeypatch
):
    (tmp_path / "core-site.xml").write_text(
        "<configuration><property><name>fs.defaultFS</name>"
        "<value>hdfs://names:8020</value></property></configuration>"
    )
    settings()
    monkeypatch.setattr(SparkContext, "_active_spark_context", None)
    monkeypatch.delenv("HADOOP_CONF_DIR", raising=False)
    assert code.session.has_local_files()

    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))

    assert not code.session.has_local_files()
    settings(spark__sql__warehouse__dir="file:///mnt/tables")
    assert code.session.warehouse() == "file:///mnt/tables"


# --- signals -----------------------------------------------------------------


def test_signal_handlers_are_given_back_after_a_run(project, spark):
    before = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]

    run_in_process(project, "sensor")

    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == before


def test_a_run_works_where_signals_cannot_be_handled(project, spark):
    problems = []

    def attempt():
        try:
            run_in_process(project, "sensor")
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()

    assert problems == []
    assert project.lines("data/03_primary/sensor/*.csv")
