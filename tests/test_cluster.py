"""The packaged project on a real standalone cluster, and what a cluster can lack."""

import importlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import jsonschema
import pyspark
import pytest
import yaml
from chaos import committed_files
from clusters import YARN, Cluster, kubernetes, standalone, yarn
from conftest import BIN, BOUNDED, ROOT, Project, ok, sh, wait_until
from kedro.framework.cli.project import run as RUN
from object_store import ACCESS, BUCKET, SECRET, object_store, stock_in
from servers import DOWNLOADS, free_port, one_at_a_time
from shell import fetch
from test_runs import (
    SENSOR,
    expected_averages,
    expected_deliveries,
    expected_stock,
    without_processing_time,
)

CLUSTER = "--env=cluster"
BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)
PIP = {"PIP_FIND_LINKS": str(ROOT / ".cache/wheels")}
OPERATOR = "github.com/kubeflow/spark-operator/v2@v2.4.0"
CRD = "config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml"
# In the place of the image's user: may read everything here, and write what is his.
IS_ROOT = os.getuid() == 0
NOBODY = (
    *("setpriv", "--reuid=nobody", "--regid=65534", "--clear-groups"),
    *("--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search"),
)
GATE = '''\
"""Code of a user's own that runs on executors, and waits there at a gate."""

import os
import time
from pathlib import Path

from pyspark.sql import functions as F


def wait_at(folder):
    part = Path(folder) / f"{os.getpid()}.part"
    part.write_text(str(os.getpid()))
    part.replace(Path(folder) / "waiting")
    while not (Path(folder) / "open").exists():
        time.sleep(0.05)
    return True


def passes(column, folder):
    return F.udf(lambda _: wait_at(folder), "boolean")(column)


class Writer:
    def __init__(self, folder):
        self.folder = folder

    def open(self, partition, batch_id):
        self.file = Path(self.folder) / f"batch-{batch_id}"

    def process(self, row):
        wait_at(self.folder)
        with self.file.open("a") as file:
            file.write(f"{row.sensor_id}\\n")
'''


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A master and two workers."""
    with standalone(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def artifacts(pristine, tmp_path_factory) -> Path:
    """What docs/deploy.md makes: wheel, configuration, environment."""
    project = pristine.copy(tmp_path_factory.mktemp("artifacts"))
    (project.folder / "src/cold_store/gate.py").write_text(GATE)
    (commands,) = BLOCK.findall((project.folder / "docs/deploy.md").read_text())
    here = {"PATH": f"{BIN}:{os.environ['PATH']}"}
    environment = {**os.environ, **PIP, **here}
    ok("bash", "-ec", commands, cwd=project.folder, env=environment)
    return project.folder / "dist"


def settle(project: Project, master: str, archive: Path | None) -> None:
    """Let the project run on a small cluster, which shares its folder."""
    project.edit(
        "conf/cluster/globals.yml",
        ("s3a://my-bucket/cold-store/data", str(project.folder / "data")),
    )
    project.edit("conf/cluster/catalog.yml", ("1 minute", "1 second"))
    project.edit(
        "conf/cluster/spark.yml",
        ("spark://127.0.0.1:7077", master),
        ("executor.memory: 2g", "executor.memory: 600m"),
        ("executor.cores: 2", "executor.cores: 1"),
        ("cores.max: 4", "cores.max: 2"),
        ("partitions: 8", "partitions: 2"),
        ("driver.host: null", "driver.host: 127.0.0.1"),
        ("ui.port: 4040", "ui.port: 0"),
    )
    if archive:
        configure(
            project,
            {
                "spark.archives": f"{archive}#environment",
                "spark.pyspark.python": "./environment/bin/python",
            },
        )


def configure(project: Project, settings: dict[str, object]) -> None:
    """Add settings to those of the environment."""
    file = project.folder / "conf/cluster/spark.yml"
    lines = [yaml.safe_dump({key: value}) for key, value in settings.items()]
    file.write_text(file.read_text() + "".join(lines))


@pytest.fixture
def clustered(project, cluster, artifacts) -> Project:
    """A project that can run on the cluster."""
    settle(project, cluster.master, artifacts / "environment.tar.gz")
    return project


def with_the_project_installed(project: Project) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(project.folder / "src")}


def submit(project: Project, *options: str):
    return project.kedro("streams", "submit", CLUSTER, *options)


def live(project: Project, *options: str):
    """Submit a run that goes on; its process is spark-submit's Java."""
    return project.live(*options, command=("streams", "submit", CLUSTER))


@dataclass
class Gate:
    """Holds a batch on executors until it is opened."""

    folder: Path

    @property
    def is_reached(self) -> bool:
        return bool(self.process)

    @property
    def process(self) -> int:
        """The process of Python that waits, 0 if there is none."""
        file = self.folder / "waiting"
        return int(file.read_text()) if file.exists() else 0

    def open(self) -> None:
        (self.folder / "open").touch()

    def close(self) -> None:
        for file in self.folder.iterdir():
            file.unlink(missing_ok=True)


@pytest.fixture
def gate(clustered) -> Gate:
    """A gate for code of the wheel, which the driver finds in the project."""
    (clustered.folder / "src/cold_store/gate.py").write_text(GATE)
    folder = clustered.folder / "data/gate"
    folder.mkdir()
    return Gate(folder)


def hold_deliveries(project: Project, gate: Gate) -> None:
    """Let every batch of deliveries wait at the gate."""
    passing = f"passes('sku', '{gate.folder}')"
    project.edit(
        "src/cold_store/pipelines/inventory/nodes.py",
        ("F\n", "F\n\nfrom cold_store.gate import passes\n"),
        ("return deliveries.join", f"return deliveries.where({passing}).join"),
    )


def committed(project: Project, folder: str) -> list[str]:
    """Return the rows of the files that a stream has committed; a kill leaves others."""
    files = committed_files(project.folder / "data" / folder)
    return sorted(row for f in files for row in Path(f).read_text().splitlines()[1:])


def deliveries_of(project: Project) -> list[str]:
    return without_processing_time(committed(project, "02_intermediate/inventory"))


def averages_of(project: Project) -> list[str]:
    return committed(project, "03_primary/sensor")


def stock_of(project: Project, spark) -> list[str]:
    stock = spark.read.format("delta").load(
        str(project.folder / "data/03_primary/stock")
    )
    return sorted(
        ",".join("" if v is None else str(v) for v in row) for row in stock.collect()
    )


def send(project: Project, number: int) -> None:
    """Let a delivery arrive, at once, as a good sender does."""
    row = {"sku": "ICE-01", "new_stock": number, "arrived_at": "2026-03-03T06:00:00Z"}
    part = project.folder / f"data/01_raw/{number}.part"
    part.write_text(json.dumps(row) + "\n")
    part.rename(project.folder / f"data/01_raw/stream/inventory/more_{number}.json")


# --- running -----------------------------------------------------------------


def test_a_packaged_project_gives_on_a_cluster_the_rows_that_it_gives_here(
    clustered, cluster, artifacts, spark, tmp_path
):
    """By the command of the docs, where nothing else is than they say.

    As in a container of YARN's, Python does not know where Spark is.
    """
    elsewhere = tmp_path / "elsewhere"
    shutil.copytree(clustered.folder / "deploy", elsewhere / "deploy")
    ok(*clustered.command("package"), cwd=clustered.folder)
    (elsewhere / "dist").mkdir()
    for made in ("conf-cold_store.tar.gz", "environment.tar.gz"):
        folder = clustered.folder / "dist" if made.startswith("conf") else artifacts
        (elsewhere / "dist" / made).symlink_to(folder / made)
    python = elsewhere / "python3"
    wheels = artifacts / "environment/bin/python"
    python.write_text(f'#!/bin/sh\nunset SPARK_HOME\nexec {wheels} "$@"\n')
    python.chmod(0o755)
    docs = (clustered.folder / "docs/deploy.md").read_text()
    command = re.search(
        r"^pip install dist.*\n(spark-submit (?:.*\\\n)*.*)", docs, re.M
    )[1]
    for written, here in (
        ("spark://host:7077", cluster.master),
        (",org.apache.hadoop:hadoop-aws:3.4.1", ""),  # for a bucket, which is not here
    ):
        assert written in command
        command = command.replace(written, here)
    before = cluster.applications()

    output = ok(
        *("bash", "-ec", f"{command} {BOUNDED}"),
        cwd=elsewhere,
        env={
            **os.environ,
            "PATH": f"{elsewhere}:{BIN}:{os.environ['PATH']}",
            "SPARK_HOME": str(Path(pyspark.__file__).parent),
        },
    )

    assert cluster.applications() == before + 1
    assert deliveries_of(clustered) == expected_deliveries(clustered)
    assert stock_of(clustered, spark) == expected_stock(clustered)
    assert averages_of(clustered) == expected_averages(clustered)
    assert "processed.sensor: ended, last committed batch" in output


def test_a_worker_that_dies_costs_no_row_and_sigterm_finishes_the_batch(
    clustered, cluster, gate, spark, tmp_path
):
    """With it goes the state that its executor had: of units, of windows, of readings."""
    hold_deliveries(clustered, gate)
    stream, readings = (
        "int_new_inventory",
        clustered.folder / "data/01_raw/stream/sensor",
    )
    later = [readings / f"readings_0{number}.csv" for number in (3, 4)]
    for file in later:
        file.rename(tmp_path / file.name)
    gate.open()
    with live(clustered, "--pipelines=inventory,sensor") as run:
        run.says("processed.stock: batch")
        wait_until(lambda: clustered.commits("processed_sensor") > 1, "two batches")
        gate.close()
        send(clustered, 0)
        wait_until(lambda: gate.is_reached, "a batch on the executors")
        assert 0 <= clustered.newest(stream) < clustered.newest(stream, "offsets")
        cluster.kill_worker_of(gate.process)
        cluster.add_worker("worker-again")
        gate.open()
        for number in range(1, 10):
            send(clustered, number)
        for file in later:
            (tmp_path / file.name).rename(file)
        wait_until(
            lambda: stock_of(clustered, spark) == expected_stock(clustered),
            "all deliveries in stock",
        )
        wait_until(
            lambda: averages_of(clustered) == expected_averages(clustered),
            "all windows that are closed",
        )
        gate.close()
        send(clustered, 10)
        wait_until(lambda: gate.is_reached, "a batch on the executors")
        run.process.terminate()
        run.says("after the batch they are in")
        gate.open()
        code = run.end()

    assert code == 0, run.text
    assert deliveries_of(clustered) == expected_deliveries(clustered)
    assert averages_of(clustered) == expected_averages(clustered)
    assert clustered.newest(stream) == clustered.newest(stream, "offsets")
    assert "int.new_inventory: ended, last committed batch" in run.text


def test_a_driver_that_is_killed_in_a_batch_goes_on_where_it_was(
    clustered, gate, spark
):
    hold_deliveries(clustered, gate)
    stream = "int_new_inventory"
    both = "--pipelines=inventory,sensor"
    gate.open()
    with live(clustered, both) as run:
        run.says("processed.stock: batch")
        wait_until(lambda: clustered.commits("processed_sensor") > 1, "two batches")
        gate.close()
        for number in range(5):
            send(clustered, number)
        wait_until(lambda: gate.is_reached, "a batch on the executors")
        assert 0 <= clustered.newest(stream) < clustered.newest(stream, "offsets")
        run.kill()

    gate.open()
    again = submit(clustered, both, BOUNDED)

    assert again.returncode == 0, again.stdout + again.stderr
    assert deliveries_of(clustered) == expected_deliveries(clustered)
    assert stock_of(clustered, spark) == expected_stock(clustered)
    assert averages_of(clustered) == expected_averages(clustered)


def test_sigterm_to_python_finishes_a_batch_that_code_of_the_wheel_writes(
    clustered, gate
):
    replace_entry(
        clustered,
        "processed.sensor",
        foreach="cold_store.gate.Writer",
        arguments={"folder": str(gate.folder)},
    )
    stream = "processed_sensor"
    with live(clustered, "--pipelines=sensor") as run:
        wait_until(lambda: gate.is_reached, "a batch on the executors")
        running = clustered.newest(stream, "offsets")
        assert clustered.newest(stream) < running
        (python,) = run.started("run.py")
        python.terminate()
        run.says("after the batch they are in")
        gate.open()
        code = run.end()

    assert code == 0, run.text
    assert clustered.newest(stream) >= running
    written = (gate.folder / f"batch-{running}").read_text().split()
    averages = expected_averages(clustered)
    assert written and {*written} <= {row.partition(",")[0] for row in averages}


def test_executors_stage_what_is_merged_into_postgresql(clustered, postgres):
    upsert = {
        "type": "cold_store.extras.datasets.UpsertDataset",
        "file_format": "postgresql",
        "table": "clustered",
        "keys": ["sku"],
        "order_by": "arrived_at",
        "add": ["new_stock"],
        "create": True,
        "credentials": "warehouse",
    }
    replace_entry(clustered, "int.new_inventory", datasets=[upsert])
    credentials = yaml.safe_dump({"warehouse": postgres.credentials})
    (clustered.folder / "conf/cluster/credentials.yml").write_text(credentials)
    try:
        result = submit(clustered, "--to-nodes=stamp_processing_time", BOUNDED)
        assert result.returncode == 0, result.stdout + result.stderr
        merged = dict(postgres.rows("SELECT sku, new_stock FROM clustered"))
    finally:
        postgres.do("DROP TABLE IF EXISTS clustered, spark_batches")

    units: Counter[str] = Counter()
    for line in expected_deliveries(clustered):
        sku, new_stock, *_ = line.split(",")
        units[sku] += int(new_stock)
    assert merged == units


def replace_entry(project: Project, name: str, **config: object) -> None:
    """Let a stream of the environment's catalog save its batches in another way."""
    file = project.folder / "conf/cluster/catalog.yml"
    catalog = yaml.safe_load(file.read_text())
    saved = {"checkpoint": catalog[name]["save_args"]["checkpoint"]}
    kind = "cold_store.extras.datasets.MicroBatchDataset"
    catalog[name] = {"type": kind, **config, "save_args": saved}
    file.write_text(yaml.safe_dump(catalog))


def test_the_exit_code_is_the_runs(project):
    project.edit(
        "src/cold_store/pipelines/sensor/nodes.py",
        ("    return windows.", "    raise SystemExit(7)\n    return windows."),
    )
    settle(project, "local[1]", None)

    result = submit(project, "--pipelines=sensor")

    assert result.returncode == 7, result.stdout + result.stderr


HEARD = """
import json, runpy, sys
from unittest import mock
from kedro.framework.session import KedroSession

told = {}
session = mock.MagicMock()
session.__enter__().run = lambda **given: told.update(given)
made = lambda **given: told.update(given) or session
sys.argv = sys.argv[1:]
with mock.patch.object(KedroSession, "create", made):
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        assert not end.code, end
shown = lambda runner: [type(runner).__name__, runner._max_workers]
print("heard " + json.dumps(told, sort_keys=True, default=shown))
"""
OPTIONS = [
    *("--from-inputs=a", "--to-outputs=b", "--from-nodes=c", "--to-nodes=d"),
    *("--nodes=e", "--tags=f", "--load-versions=g:h", "--pipelines=i"),
    *("--namespaces=k", "--params=l=1", "--only-missing-outputs", "--async"),
    *("--runner=ThreadRunner", "--runner-params=max_workers=3"),
    *("--env=cluster", "--conf-source=conf"),
]


def test_the_entry_script_hears_every_option_as_kedro_run_does(project):
    (project.folder / "kedro_run.py").write_text(
        "import sys\nfrom kedro.framework.cli.cli import main\n"
        "sys.argv.insert(1, 'run')\nmain()\n"
    )
    of_a_test_of_its_own, instead_of_another = "--config", "--pipeline"
    given = {option.partition("=")[0] for option in OPTIONS}
    known = {max(option.opts, key=len) for option in RUN.params}
    assert known - given == {of_a_test_of_its_own, instead_of_another}

    heard = [
        re.findall(
            "^heard .*",
            ok(
                *(project.python, "-W", "ignore", "-c", HEARD, script, *OPTIONS),
                cwd=project.folder,
                env=with_the_project_installed(project),
            ),
            re.MULTILINE,
        )
        for script in ("deploy/run.py", "kedro_run.py")
    ]

    assert heard[0] == heard[1]
    told = json.loads(heard[0][0].removeprefix("heard "))
    assert told["runtime_params"] == {"l": 1} and told["runner"] == ["ThreadRunner", 3]
    assert told["pipeline_names"] == ["i"]


# --- other clusters ----------------------------------------------------------


@pytest.fixture(scope="module")
def on_yarn(code, tmp_path_factory) -> Iterator[dict[str, str]]:
    """A YARN, and the environment in which it is found."""
    download = importlib.import_module("cold_store.extras.streams.jars").download
    jars = DOWNLOADS / "yarn"
    ours = ["hadoop-client-api", "hadoop-client-runtime"]
    with one_at_a_time():
        if not (jars / "complete").exists():
            try:
                download(YARN, jars, [f"org.apache.hadoop:{name}" for name in ours])
            except code.errors.StreamsError as error:
                pytest.skip(f"YARN's jars cannot be had: {error}")
            (jars / "complete").touch()
    with yarn(tmp_path_factory.mktemp("yarn"), jars) as conf:
        yield {
            **os.environ,
            "HADOOP_CONF_DIR": str(conf),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }


@pytest.fixture
def for_yarn(project, artifacts) -> Project:
    """A project whose driver runs in YARN, with the environment that travels."""
    settle(project, "yarn", artifacts / "environment.tar.gz")
    project.edit("conf/cluster/globals.yml", ("data: /", "data: file:///"))
    settings = {
        "spark.submit.deployMode": "cluster",
        "spark.executor.instances": 1,
        "spark.yarn.maxAppAttempts": 1,
        # What YARN's machines have need not be sent to them.
        "spark.yarn.jars": f"local:{Path(pyspark.__file__).parent}/jars/*",
        "spark.yarn.report.interval": "1s",
    }
    configure(project, settings)
    ok(*project.command("package"), cwd=project.folder)
    return project


def test_a_driver_in_yarn_gives_the_rows_that_it_gives_here(for_yarn, on_yarn):
    """A ResourceManager and a NodeManager, which start driver and executor by themselves."""
    result = for_yarn.kedro(
        *("streams", "submit", CLUSTER, "--pipelines=sensor", BOUNDED), env=on_yarn
    )

    said = result.stdout + result.stderr
    assert result.returncode == 0, said
    assert "final status: SUCCEEDED" in said
    assert for_yarn.lines(SENSOR) == expected_averages(for_yarn)


def test_a_driver_in_yarn_that_fails_is_a_submit_that_fails(
    for_yarn, on_yarn, artifacts
):
    for_yarn.edit(
        "conf/cluster/spark.yml",
        ("spark.archives:", "my.archives:"),  # it is there, on this machine
        ("./environment/bin/python", str(artifacts / "environment/bin/python")),
    )
    ok(*for_yarn.command("package"), cwd=for_yarn.folder)

    result = for_yarn.kedro(
        *("streams", "submit", CLUSTER, "--nodes=nowhere"), env=on_yarn
    )

    assert result.returncode == 1
    assert "final status: FAILED" in result.stdout + result.stderr


def test_kubernetes_is_given_a_driver_that_drains_and_names_no_secret(project):
    """What Spark makes of the settings of the docs, when it speaks to an API server."""
    docs = (project.folder / "docs/deploy.md").read_text()
    docs = docs.partition("\nWithout the operator")[2]
    settings = yaml.safe_load(re.search(r"```yaml\n(spark.*?)```", docs, re.DOTALL)[1])
    settings["spark.kubernetes.submission.waitAppCompletion"] = False
    configure(project, settings)
    project.edit("conf/cluster/globals.yml", ("s3a://my-bucket", "s3a://our-bucket"))

    with kubernetes() as server:
        result = submit(project, f"--master={server.master}", BOUNDED)

    assert result.returncode == 0, result.stdout + result.stderr
    pod = server.created["/api/v1/namespaces/streams/pods"]
    annotations, spec = pod["metadata"]["annotations"], pod["spec"]
    (driver,) = spec["containers"]
    assert spec["terminationGracePeriodSeconds"] == 120
    assert spec["serviceAccountName"] == "spark"
    assert annotations["prometheus.io/path"] == "/metrics/prometheus/"
    assert driver["image"] == "cold-store:latest"
    conf = "/opt/cold-store/conf/conf-cold_store.tar.gz"
    run = ["local:///opt/cold-store/run.py", f"--conf-source={conf}", CLUSTER, BOUNDED]
    assert driver["args"][-len(run) :] == run
    volumes = {v["name"]: v.get("secret") for v in spec["volumes"]}
    mounted = {m["mountPath"]: volumes[m["name"]] for m in driver["volumeMounts"]}
    assert mounted["/opt/cold-store/conf"] == {"secretName": "cold-store-conf"}
    named = {e["name"]: e.get("valueFrom") for e in driver["env"]}
    assert named["AWS_SECRET_ACCESS_KEY"]["secretKeyRef"]["key"] == "secret-key"


def test_the_entry_script_takes_a_file_of_options(project, tmp_path):
    options = tmp_path / "run.yml"
    options.write_text("run:\n  pipelines: nowhere\n")

    result = sh(
        *(project.python, "deploy/run.py", f"--config={options}", "--conf-source=conf"),
        cwd=project.folder,
        env=with_the_project_installed(project),
    )

    said = result.stdout + result.stderr
    assert result.returncode == 1
    assert "nowhere" in said and "KeyError: 'run" not in said


def test_a_run_can_be_looked_at_afterwards(project):
    project.edit(
        "conf/base/spark.yml",
        ("spark.ui.port: 0", "spark.eventLog.enabled: true\nspark.ui.port: 0"),
    )

    project.run("--pipelines=sensor")

    events = project.folder / "logs/events"
    history = f"-Dspark.history.fs.logDirectory={events.as_uri()}"
    port = free_port()
    server = subprocess.Popen(
        [
            Path(pyspark.__file__).parent / "bin/spark-class",
            "org.apache.spark.deploy.history.HistoryServer",
        ],
        env={
            **os.environ,
            "SPARK_HISTORY_OPTS": f"{history} -Dspark.history.ui.port={port} "
            "-Dspark.history.fs.update.interval=1s",
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: "Cold Store" in applications(port), "the run's page")
    finally:
        server.kill()
        server.wait()


def applications(port: int) -> str:
    try:
        return fetch(f"http://127.0.0.1:{port}/api/v1/applications")
    except OSError:
        return ""


# --- the command line --------------------------------------------------------


def test_the_command_line_has_what_takes_effect_only_there(project):
    project.edit(
        "conf/cluster/spark.yml",
        ("spark.executor.cores: 2", "spark.driver.memory: 3g\nspark.executor.cores: 2"),
        ("spark.driver.host: null", "spark.driver.host: 10.0.0.7"),
    )
    options = ("--master=local[2]", "--dry-run", "--pipelines=inventory")

    printed = submit(project, *options).stdout

    words = shlex.split(printed)
    given = dict(zip(words[1::2], words[2::2], strict=False))
    assert given["--master"] == "local[2]"
    assert given["--driver-memory"] == "3g"
    assert "spark.driver.host=10.0.0.7" in words
    assert given["--name"] == "Cold Store"
    docs = (project.folder / "docs/deploy.md").read_text()
    for option in ("--packages", "--exclude-packages"):
        written = re.search(rf"{option}=(\S+)", docs)[1]
        assert sorted(given[option].split(",")) == sorted(written.split(","))
    assert "--env=cluster" in words and "--pipelines=inventory" in words
    assert "spark.executor.cores" not in printed, "it takes effect later, too"


def test_what_sparks_own_file_decides_is_decided_on_the_command_line(project, tmp_path):
    """Where a run would set it, it would be too late."""
    (tmp_path / "spark-defaults.conf").write_text("spark.executor.cores 7\n")
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path)}

    command = ("streams", "submit", CLUSTER, "--dry-run")
    words = shlex.split(project.kedro(*command, env=environment).stdout)

    assert "spark.executor.cores=2" in words


def test_no_secret_is_on_the_command_line(project):
    configure(project, {"credentials": "s3", "spark.hadoop.fs.s3a.secret.key": "deep"})
    secrets = yaml.safe_dump({"s3": {"fs.s3a.access.key": "deeper"}})
    (project.folder / "conf/cluster/credentials.yml").write_text(secrets)

    printed = submit(project, "--dry-run")

    assert printed.returncode == 0 and "deep" not in printed.stdout + printed.stderr


def test_every_option_of_kedro_run_is_handed_on(project):
    values = {"--params": "a=1", "--runner-params": "a=1", "--load-versions": "a:1"}
    values |= {"--pipeline": "sensor", "--pipelines": "sensor"}
    ours = {"--env", "--conf-source", "--config"}
    given = []
    for option in RUN.params:
        name = max(option.opts, key=len)
        if name not in ours:
            value = values.get(name, "some")
            given.append(name if option.is_flag else f"{name}={value}")
    assert "--async" in given and "--pipelines=sensor" in given

    words = shlex.split(submit(project, "--dry-run", *given).stdout)

    assert words[words.index(CLUSTER) + 1 :] == given


def test_the_environment_is_that_of_a_run(project, tmp_path):
    """In a file of options, or in a variable, which does not travel to a driver."""
    file = tmp_path / "run.yml"
    file.write_text("run:\n  env: cluster\n")
    variable = {**os.environ, "KEDRO_ENV": "cluster"}
    command = ("streams", "submit", "--dry-run")

    by_file = project.kedro(*command, f"--config={file}").stdout
    by_variable = project.kedro(*command, env=variable).stdout

    for printed in (by_file, by_variable):
        words = shlex.split(printed)
        assert "--env=cluster" in words and "spark://127.0.0.1:7077" in words


def test_a_file_of_options_does_not_travel_to_a_driver_in_the_cluster(project):
    configure(project, {"spark.submit.deployMode": "cluster"})
    (project.folder / "run.yml").write_text("run:\n  env: cluster\n")

    result = submit(project, "--master=yarn", "--dry-run", "--config=run.yml")

    said = " ".join((result.stdout + result.stderr).split())
    assert result.returncode == 1 and "write what is in it as options" in said


def test_older_code_in_the_environment_that_travels_is_warned_of(project):
    configure(
        project,
        {
            "spark.archives": "dist/environment.tar.gz#environment",
            "spark.pyspark.python": "./environment/bin/python",
        },
    )
    archive = project.folder / "dist/environment.tar.gz"
    archive.parent.mkdir()
    archive.touch()

    fresh = submit(project, "--dry-run")
    os.utime(archive, (0, 0))
    old = submit(project, "--dry-run")

    sentence = "dist/environment.tar.gz is older than what is in src/"
    assert sentence not in " ".join(fresh.stdout.split() + fresh.stderr.split())
    assert sentence in " ".join(old.stdout.split() + old.stderr.split())


def test_a_configuration_that_is_nowhere_is_a_sentence(project):
    result = submit(project, "--dry-run", "--conf-source=nowhere")

    said = result.stdout + result.stderr
    assert result.returncode != 0 and "nowhere" in said and "Traceback" not in said


def test_another_configuration_is_composed_from_and_run_with(project, tmp_path):
    there = shutil.copytree(project.folder / "conf", tmp_path / "prod")
    settings = there / "cluster/globals.yml"
    settings.write_text(f"data: {tmp_path}\ncheckpoints: {tmp_path}\n")

    printed = submit(project, f"--conf-source={there}", "--dry-run").stdout

    words = shlex.split(printed)
    given = dict(zip(words[1::2], words[2::2], strict=False))
    assert "hadoop-aws" not in given["--packages"], "as the project's own would have it"
    assert [w for w in words if "conf-source" in w] == [f"--conf-source={there}"]


def test_parameters_that_the_catalog_uses_are_composed_with(project):
    settle(project, "local[1]", None)
    project.edit(
        "conf/cluster/catalog.yml",
        ("${globals:data}/01_raw/products", "${runtime_params:products}"),
    )
    given = "--params=products=s3a://shop/products,streams.until=caught_up"

    words = shlex.split(submit(project, "--dry-run", given).stdout)

    packages = words[words.index("--packages") + 1]
    assert "org.apache.hadoop:hadoop-aws:" in packages
    assert words[-1] == given
    file = project.folder / "run.yml"
    params = {"products": "s3a://shop/products"}
    file.write_text(yaml.safe_dump({"run": {"params": params}}))
    composed = submit(project, "--dry-run", f"--config={file}").stdout
    assert packages in shlex.split(composed)
    wrong = submit(project, "--dry-run", "--params=caught_up")
    said = wrong.stdout + wrong.stderr
    assert wrong.returncode == 2 and "Invalid format of `params`" in said


def test_a_jar_that_is_in_the_image_is_named_to_kubernetes(project):
    settings = {
        "spark.submit.deployMode": "cluster",
        "spark.kubernetes.container.image": "cold-store",
        "spark.jars": "local:///opt/drivers/own.jar,https://host/other.jar",
    }
    configure(project, settings)

    words = shlex.split(
        submit(project, "--master=k8s://https://h:1", "--dry-run").stdout
    )

    assert "spark.jars=local:///opt/drivers/own.jar" in words


def test_a_driver_in_a_kubernetes_cluster_is_submitted_as_the_docs_write_it(project):
    docs = (project.folder / "docs/deploy.md").read_text()
    docs = docs.partition("\nWithout the operator")[2]
    settings = yaml.safe_load(re.search(r"```yaml\n(spark.*?)```", docs, re.DOTALL)[1])
    written = re.search(r"```\n(spark-submit .*?)```", docs, re.DOTALL)[1]
    configure(project, settings)

    printed = submit(project, "--master=k8s://https://host:6443", "--dry-run").stdout

    words = shlex.split(printed.replace(f"{project.folder}/", ""))
    assert words[1:] == shlex.split(written.replace("\\\n", ""))[1:]


def test_a_driver_in_a_yarn_cluster_gets_configuration_and_environment_along(project):
    settings = {
        "spark.submit.deployMode": "cluster",
        "spark.archives": "dist/environment.tar.gz#environment",
        "spark.pyspark.python": "./environment/bin/python",
    }
    configure(project, settings)
    archive = project.folder / "dist/conf-cold_store.tar.gz"
    archive.parent.mkdir()
    archive.touch()
    (archive.parent / "environment.tar.gz").touch()

    typed = project.command("streams", "submit", CLUSTER, "--master=yarn", "--dry-run")
    words = shlex.split(ok(*typed, cwd=project.folder / "conf").splitlines()[-1])

    given = dict(zip(words[1::2], words[2::2], strict=False))
    assert (given["--master"], given["--deploy-mode"]) == ("yarn", "cluster")
    assert given["--files"] == str(archive)
    assert given["--archives"] == f"{archive.parent}/environment.tar.gz#environment"
    assert "spark.pyspark.python=./environment/bin/python" in words
    script = words.index(str(project.folder / "deploy/run.py"))
    assert words[script + 1] == f"--conf-source={archive.name}"


def test_an_older_configuration_is_not_sent_along(project):
    configure(project, {"spark.submit.deployMode": "cluster"})
    archive = project.folder / "dist/conf-cold_store.tar.gz"
    archive.parent.mkdir()
    archive.touch()
    os.utime(archive, (0, 0))

    result = submit(project, "--master=yarn", "--dry-run")

    said = " ".join((result.stdout + result.stderr).split())
    assert result.returncode == 1
    assert "is older than what is in conf/" in said and "type kedro package" in said


def test_an_environment_that_is_not_there_is_named(project):
    result = project.kedro("streams", "submit", "--env=clutser", "--dry-run")

    said = " ".join((result.stdout + result.stderr).split())
    assert result.returncode == 1
    assert "there is no environment clutser" in said and "base, cluster, kafka" in said
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("missing", "where"),
    [
        ("data", "spark.yml asks for it at spark.sql.catalog.lake.warehouse"),
        ("checkpoints", "catalog.yml asks for it at int.new_inventory.save_args"),
    ],
)
def test_a_place_that_nobody_names_is_a_sentence(project, missing, where):
    project.edit("conf/cluster/globals.yml", (f"\n{missing}:", f"\nmy_{missing}:"))

    for command in (("streams", "submit", "--dry-run"), ("run",)):
        result = project.kedro(*command, CLUSTER)

        said = " ".join((result.stdout + result.stderr).split())
        assert result.returncode == 1 and "Traceback" not in said
        assert f"Globals key '{missing}' not found" in said and where in said
        assert "write it into globals.yml of the environment" in said


def test_a_python_that_nothing_brings_is_named(project, tmp_path):
    configure(project, {"spark.pyspark.python": "./environment/bin/python"})

    result = submit(project, "--dry-run")

    said = " ".join((result.stdout + result.stderr).split())
    assert result.returncode == 1 and "Traceback" not in said
    assert "and nothing brings the folder environment there; write spark.arch" in said
    defaults = "spark.archives hdfs:/shared.tar.gz#environment\n"
    (tmp_path / "spark-defaults.conf").write_text(defaults)
    environment = {**os.environ, "SPARK_CONF_DIR": str(tmp_path)}
    command = ("streams", "submit", CLUSTER, "--dry-run")
    assert project.kedro(*command, env=environment).returncode == 0


@pytest.mark.parametrize(
    ("written", "advice"),
    [
        ("${_data}/tables", "correct it there; ${globals:x} is a value of globals.yml"),
        ("${oc.env:DATA}", "environment variables are for credentials.yml alone"),
        (
            "${runtime_params:data}",
            "write a default behind a comma, ${runtime_params:x, y}",
        ),
    ],
)
def test_a_value_that_cannot_be_found_is_a_sentence(project, written, advice):
    configure(project, {"spark.sql.mine": written})

    result = project.kedro("streams", "submit", "--dry-run", CLUSTER)

    said = " ".join((result.stdout + result.stderr).split())
    assert result.returncode == 1 and "Traceback" not in said
    assert "spark.yml asks for it at spark.sql.mine" in said and advice in said


def test_what_is_not_settled_yet_is_said_before_anything_is_submitted(project):
    bucket = project.kedro("streams", "submit", CLUSTER)
    pipeline = project.kedro("streams", "submit", CLUSTER, "--pipelines=sensr")

    for result, sentence in (
        (bucket, "globals.yml of this environment still names s3a://my-bucket"),
        (pipeline, "there is no pipeline sensr"),
    ):
        said = " ".join((result.stdout + result.stderr).split())
        assert result.returncode and sentence in said and "Traceback" not in said


@pytest.mark.parametrize(
    ("settings", "master", "sentence"),
    [
        ({}, "spark://127.0.0.1:PORT", "does not answer"),
        (
            {"spark.kubernetes.container.image": "cold-store"},
            "k8s://https://127.0.0.1:PORT",
            "does not answer",
        ),
        (
            {},
            "k8s://https://127.0.0.1:PORT",
            "spark.kubernetes.container.image is not in spark.yml",
        ),
        (
            {
                "spark.submit.deployMode": "cluster",
                "spark.kubernetes.container.image": "cold-store",
                "spark.archives": "dist/environment.tar.gz#environment",
            },
            "k8s://https://127.0.0.1:PORT",
            "remove spark.archives and spark.pyspark.python",
        ),
        (
            {
                "spark.hadoop.fs.defaultFS": "hdfs://h",
                "spark.archives": "dist/environment.tar.gz#environment",
            },
            "yarn",
            "names dist/environment.tar.gz, which is not there",
        ),
        ({}, "localhost:PORT", "is no master of Spark's; write spark://host:7077"),
        (
            {"spark.submit.deployMode": "cluster"},
            "spark://127.0.0.1:PORT",
            "a standalone cluster does not offer to Python",
        ),
        ({"spark.submit.deployMode": "cluster"}, "yarn", "type kedro package"),
        (
            {"spark.kubernetes.container.image": "cold-store"},
            "k8s://https://127.0.0.1:PORTS",
            "does not answer (invalid literal",
        ),
        (
            {"spark.archives": "dist/environmnt.tar.gz#environment"},
            "local[1]",
            "spark.archives in spark.yml names dist/environmnt.tar.gz, which is not",
        ),
    ],
)
def test_what_cannot_be_submitted_is_one_sentence(project, settings, master, sentence):
    configure(project, settings)
    project.edit("conf/cluster/globals.yml", ("s3a://my-bucket", "s3a://our-bucket"))

    result = submit(project, f"--master={master}".replace("PORT", str(free_port())))

    assert result.returncode == 1
    said = " ".join((result.stdout + result.stderr).split())
    assert sentence in said and "Traceback" not in said


# --- what a cluster lacks ----------------------------------------------------


def refused(project: Project, *options: str) -> str:
    command = project.command("run", CLUSTER, BOUNDED, *options)
    result = sh(*command, cwd=project.folder)
    assert result.returncode == 1, result.stdout
    said = " ".join((result.stdout + result.stderr).split())
    assert "Traceback" not in said
    assert not list((project.folder / "data").glob("04_checkpoint/*/offsets"))
    return said


def test_a_master_that_does_not_answer_is_said_so(project):
    settle(project, f"spark://127.0.0.1:{free_port()}", None)

    assert "does not answer" in refused(project)


def test_a_spark_that_does_not_start_is_said_so(project):
    settings = {"spark.driver.bindAddress": "203.0.113.7"}  # nobody's
    (project.folder / "conf/local/spark.yml").write_text(yaml.safe_dump(settings))

    result = project.kedro("run")

    said = " ".join((result.stdout + result.stderr).split())
    assert result.returncode == 1
    assert "Spark does not start: " in said and "Traceback" not in said


def test_an_executor_of_another_spark_is_named(looking):
    answer = {"host": "shed", "pyspark": "3.5.1", "missing": "", "seen": []}

    (said,) = looking._lacks(answer, {})

    assert said.startswith("executors on shed run pyspark 3.5.1, and the driver ")


def test_a_source_that_may_only_be_read_is_looked_for_itself(
    looking, tmp_path, monkeypatch
):
    def refuse(*_):
        raise PermissionError

    monkeypatch.setattr(Path, "touch", refuse)
    source = f"{tmp_path}/*.json"

    with looking._marks([source]) as marks:
        assert marks == {source: str(tmp_path)}


@pytest.fixture
def looking(code):
    """The module that looks at executors."""
    return importlib.import_module("cold_store.extras.streams.workers")


def test_executors_without_this_project_are_named(project, cluster):
    settle(project, cluster.master, None)
    configure(project, {"spark.pyspark.python": os.path.realpath(project.python)})

    assert "give them this project's environment" in refused(project)


def test_a_cluster_without_room_is_said_so(clustered):
    clustered.edit("conf/cluster/spark.yml", ("cores: 1", "cores: 64"))

    said = refused(clustered)

    assert "has given this run no executor within" in said
    assert "600m (spark.executor.memory) and 64 (spark.executor.cores)" in said


def test_ctrl_c_is_heard_while_a_cluster_is_asked(clustered):
    clustered.edit("conf/cluster/spark.yml", ("cores: 1", "cores: 64"))
    with clustered.live(CLUSTER) as run:
        run.says("Spark 4.0.0 started")
        code = run.stop(signal.SIGINT)

    assert code == 0, run.text
    assert "Stopped before any stream was started" in run.text


def test_a_folder_that_executors_do_not_see_is_named(project, artifacts, tmp_path):
    hidden = f'mount -t tmpfs tmpfs {project.folder / "data"} && exec "$@"'
    ways = [("unshare", "--mount"), ("unshare", "--map-root-user", "--mount")]
    wrapped = [(*way, "sh", "-c", hidden, "sh") for way in ways]
    alone = next((way for way in wrapped if sh(*way, "true").returncode == 0), None)
    if alone is None:
        pytest.skip("a mount cannot be hidden from others here (unshare --mount)")
    (tmp_path / "cluster").mkdir()
    with standalone(tmp_path / "cluster", *alone) as lonely:
        settle(project, lonely.master, artifacts / "environment.tar.gz")
        project.edit("conf/cluster/globals.yml", ("data: /", "data: file:///"))
        patience = "spark.scheduler.maxRegisteredResourcesWaitingTime"
        configure(project, {patience: "5min"})
        said = refused(project, "--pipelines=inventory")

    assert "data/04_checkpoint/int_new_inventory is not the same folder on" in said
    assert "data/01_raw/stream/inventory is not the same folder on" in said


def test_a_jar_that_only_the_driver_has_is_named(clustered, spark):
    """Where the image of executors is older than that of the driver, for example."""
    jars = [str(jar) for jar in (Path.home() / ".ivy2.5.2/jars").glob("io.delta_*.jar")]
    assert jars, "the session of the tests has downloaded them"
    settings = {
        "packages": {"delta": {"package": None}},
        "spark.driver.extraClassPath": ":".join(jars),
    }
    configure(clustered, settings)

    result = submit(clustered, "--pipelines=inventory", BOUNDED)

    said = " ".join((result.stdout + result.stderr).split())
    assert result.returncode == 1, "as of any stream that fails for good"
    assert "processed.stock failed" in said
    assert "executors lack a jar that the driver has" in said


@pytest.mark.parametrize(
    "lacking",
    [
        "java.lang.ClassNotFoundException: "
        "org.apache.spark.sql.kafka010.KafkaBatchInputPartition",
        "java.lang.NoClassDefFoundError: org/apache/hadoop/fs/s3a/S3AFileSystem",
    ],
)
def test_a_class_is_missed_where_it_is_missed(code, lacking):
    """In the words of Spark 4.0."""
    said = (
        "Job aborted due to stage failure: Task 0 in stage 1.0 failed 4 times, most "
        "recent failure: Lost task 0.3 in stage 1.0 (TID 7) (10.0.0.3 executor {}): "
    ) + lacking

    of_an_executor = code.errors.first_sentence(Exception(said.format(1)))
    of_the_driver = code.errors.first_sentence(Exception(said.format("driver")))

    assert of_an_executor.startswith(lacking)
    assert "executors lack a jar that the driver has" in of_an_executor
    assert of_the_driver == lacking


@pytest.fixture(scope="module")
def other_spark(tmp_path_factory) -> Path:
    """A Spark of another version, as many clusters still have it."""
    there = tmp_path_factory.mktemp("other") / "environment"
    ok("uv", "venv", "-q", there)
    ok("uv", "pip", "install", "-q", "--python", there / "bin/python", "pyspark==3.5.*")
    return next(there.glob("lib/*/site-packages/pyspark"))


@pytest.mark.parametrize("command", [("run",), ("streams", "submit")])
def test_another_spark_than_pyspark_is_refused_with_both_versions(
    project, other_spark, command
):
    """SPARK_HOME often points at the cluster's Spark, which runs then."""
    result = sh(
        *project.command(*command, "--pipelines=sensor"),
        cwd=project.folder,
        env={**os.environ, "SPARK_HOME": str(other_spark)},
    )

    said = " ".join((result.stdout + result.stderr).split())
    assert result.returncode == 1
    versions = (
        rf"Spark is 3\.5\.\d+ in {other_spark}, and the installed pyspark 4\.0\.0;"
    )
    assert re.search(versions, said) and "Traceback" not in said


def test_a_spark_submit_of_another_spark_is_refused_with_both_versions(
    project, other_spark, artifacts
):
    """It brings a pyspark of its own, before that of any environment."""
    python = f"spark.pyspark.driver.python={artifacts}/environment/bin/python"
    result = sh(
        *(other_spark / "bin/spark-submit", "--master=local[1]", "--conf", python),
        *("deploy/run.py", "--pipelines=sensor", "--conf-source=conf"),
        cwd=project.folder,
        env={**os.environ, "SPARK_HOME": str(other_spark)},
    )

    said = " ".join((result.stdout + result.stderr).split())
    assert result.returncode == 1
    versions = r"are 3\.5\.\d+ here, and this project is made for pyspark==4\.0\.0;"
    assert re.search(versions, said) and "Traceback" not in said


@pytest.fixture(scope="module")
def other_master(other_spark, tmp_path_factory) -> Iterator[Cluster]:
    cluster = Cluster(tmp_path_factory.mktemp("other"), other_spark)
    try:
        cluster.start_master()
        fetch(f"http://127.0.0.1:{cluster.page}/")  # the first time, it is slow
        yield cluster
    finally:
        cluster.stop()


def test_a_cluster_of_another_spark_is_refused_with_both_versions(
    project, other_master
):
    settle(project, other_master.master, None)
    configure(project, {"spark.master.ui.port": other_master.page})

    versions = (
        rf"Spark is [\d.]+ at {other_master.master}, and the installed pyspark 4\.0\.0;"
    )
    assert re.search(versions, refused(project))


def test_a_cluster_of_another_spark_that_shows_no_page_is_refused(
    project, other_master
):
    settle(project, other_master.master, None)
    configure(project, {"spark.master.ui.port": free_port()})

    said = refused(project)

    assert "or its Spark is another one than the installed pyspark 4.0.0" in said
    assert "spark.master.ui.port" in said


def test_a_wheel_without_configuration_says_what_is_missing(
    project, artifacts, tmp_path
):
    python = f"spark.pyspark.driver.python={artifacts}/environment/bin/python"

    result = sh(
        *(BIN / "spark-submit", "--master=local[1]", "--conf", python),
        project.folder / "deploy/run.py",
        cwd=tmp_path,
    )

    said = " ".join((result.stdout + result.stderr).split())
    assert result.returncode == 1
    assert "A wheel has no configuration" in said and "Traceback" not in said


def test_an_environment_that_the_configuration_lacks_is_not_called_a_missing_one(
    project, tmp_path
):
    result = sh(
        *(project.python, "-m", "cold_store", "--env=clutser"),
        f"--conf-source={project.folder / 'conf'}",
        cwd=tmp_path,
        env=with_the_project_installed(project),
    )

    said = " ".join((result.stdout + result.stderr).split())
    assert result.returncode == 1
    assert "clutser" in said and "at --env" in said and "Traceback" not in said
    assert "A wheel has no configuration" not in said


# --- files for Docker and Kubernetes -----------------------------------------


@pytest.fixture
def reachable(pristine) -> Iterator[Project]:
    """A project that every user can reach, unlike those in tmp_path."""
    with TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        project = pristine.copy(Path(folder))
        ok("chmod", "-R", "a+rwX", project.folder / "data")
        yield project


@pytest.fixture
def image(reachable, artifacts) -> Path:
    """What the Dockerfile makes, without a container: its commands, in a folder."""
    if IS_ROOT and not (
        shutil.which("setpriv") and sh(*NOBODY, "true").returncode == 0
    ):
        pytest.skip("root cannot become another user here, as the image does (setpriv)")
    project, root = reachable, reachable.folder.parent
    shutil.copytree(artifacts, project.folder / "dist", symlinks=True)
    with one_at_a_time():  # Ivy keeps one report for all who ask
        jars = project.command("streams", "jars", "dist/jars", CLUSTER)
        ok(*jars, cwd=project.folder)
    jars = [jar.name for jar in (project.folder / "dist/jars").iterdir()]
    assert any("hadoop-aws" in jar for jar in jars)
    assert not [jar for jar in jars if re.search("gcs|azure|hadoop-client", jar)]
    ok("python3", "-m", "venv", root / "python")
    shutil.copytree(Path(pyspark.__file__).parent, root / "opt/spark")
    (root / "opt/cold-store").mkdir()
    environment = {
        **os.environ,
        "PATH": f"{root}/python/bin:{os.environ['PATH']}",
        **PIP,
    }
    here = project.folder
    text = dockerfile(project).replace("\\\n", " ")
    for line in text.splitlines():
        kind, _, words = line.partition(" ")
        words = re.sub(r"(?<!\S)/(?=opt/|tmp/)", f"{root}/", words)
        words = words.replace("chown 185", "chown nobody" if IS_ROOT else "ls")
        if kind == "COPY":
            *sources, target = words.split()
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            make = f"mkdir -p {target} && " if target.endswith("/") else ""
            contents = " ".join(f"{s}." if s.endswith("/") else s for s in sources)
            words, folder = f"{make}cp -r {contents} {target}", project.folder
        elif kind == "RUN":
            folder = here
        else:
            here = Path(words) if kind == "WORKDIR" else here
            continue
        ok("bash", "-ec", words, cwd=folder, env=environment)
    return root


def mount(project: Project, folder: Path) -> None:
    """Show the configuration as Kubernetes shows a secret: by links to a hidden folder."""
    ok(*project.command("package"), cwd=project.folder)
    archive = "conf-cold_store.tar.gz"
    (folder / "..data").mkdir(parents=True)
    shutil.copy(project.folder / "dist" / archive, folder / "..data" / archive)
    (folder / archive).symlink_to(Path("..data") / archive)


def test_the_application_runs_in_its_image_with_checkpoints_in_a_bucket(
    reachable, image, tmp_path
):
    """As it is shipped, but for the bucket, its address, and workers in place of pods.

    The user is not root and has no home, and so no place for a jar from anywhere.
    """
    application = application_of(reachable)
    pod, place = "/opt/cold-store", "cold-store/data"
    conf = application["driver"]["volumeMounts"][0]["mountPath"]
    reachable.edit("conf/cluster/globals.yml", ("s3a://my-bucket", f"s3a://{BUCKET}"))
    python = image / "python/bin"
    with (
        object_store(tmp_path) as store,
        standalone(tmp_path, spark=image / "opt/spark") as pods,
    ):
        docs = (reachable.folder / "docs/deploy.md").read_text()
        address = re.search(r"```yaml\n(spark\S+s3a.*?)```", docs, re.DOTALL)[1]
        address = address.replace("http://store:9000", store.address)
        configure(reachable, yaml.safe_load(address))
        samples = reachable.folder / "data"
        for file in samples.glob("01_raw/**/*.*"):
            store.put(f"{place}/{file.relative_to(samples)}", file.read_text())
        mount(reachable, image / conf.removeprefix("/"))

        ok(
            *(NOBODY if IS_ROOT else ()),
            image / "opt/spark/bin/spark-submit",
            *("--master", pods.master, "--executor-memory=600m"),
            *("--conf", "spark.executor.cores=1", "--conf", "spark.cores.max=2"),
            *("--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.port=0"),
            *("--conf", f"spark.pyspark.python={python / 'python3'}"),
            application["mainApplicationFile"].replace(
                f"local://{pod}", f"{image}{pod}"
            ),
            *[word.replace(pod, f"{image}{pod}") for word in application["arguments"]],
            BOUNDED,
            cwd=image / pod.removeprefix("/"),
            env={
                "PATH": f"{python}:{os.environ['PATH']}",
                "HOME": "/nonexistent",
                # Nothing can be downloaded, either.
                "JAVA_TOOL_OPTIONS": "-Duser.home=/nonexistent "
                "-Dhttps.proxyHost=127.0.0.1 -Dhttps.proxyPort=9",
                "HTTPS_PROXY": "http://127.0.0.1:9",
                "SPARK_HOME": str(image / "opt/spark"),
                "SPARK_LOCAL_IP": "127.0.0.1",
                **dict(re.findall(r"^ENV (\w+)=(\S+)", dockerfile(reachable), re.M)),
                **secrets_of(application["driver"]),
            },
        )

        assert stock_in(store, place) == expected_stock(reachable)
        deliveries = store.committed(f"{place}/02_intermediate/inventory")
        assert without_processing_time(deliveries) == expected_deliveries(reachable)
        averages = store.committed(f"{place}/03_primary/sensor")
        assert averages == expected_averages(reachable)
        assert store.names(f"{place}/04_checkpoint/int_new_inventory/commits")

        status = reachable.kedro(
            *("streams", "status", CLUSTER),
            env={**os.environ, **secrets_of(application["driver"])},
        )
        assert "int.new_inventory: stopped" in status.stdout, (
            status.stdout + status.stderr
        )
        others = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
        keyless = reachable.kedro(
            *("streams", "status", CLUSTER),
            env={**others, "AWS_EC2_METADATA_DISABLED": "true"},
        )
        assert (
            "there are no keys for it; set AWS_ACCESS"
            in keyless.stdout + keyless.stderr
        )

        for command in ("feed --rate=1000", "reset --yes int.malformed"):
            done = reachable.kedro(
                *("streams", *command.split(), CLUSTER),
                env={**os.environ, **secrets_of(application["driver"])},
            )
            assert done.returncode == 0, done.stdout + done.stderr
        fed = store.names(f"{place}/01_raw/stream/inventory")
        assert any(name.startswith("part-") for name in fed)


def secrets_of(pod: dict) -> dict[str, str]:
    """What Kubernetes puts into a pod's environment, from the secret that is referred to."""
    keys = {"access-key": ACCESS, "secret-key": SECRET}
    return {e["name"]: keys[e["valueFrom"]["secretKeyRef"]["key"]] for e in pod["env"]}


def dockerfile(project: Project) -> str:
    return (project.folder / "deploy/Dockerfile").read_text()


def test_the_dockerfile_is_clean(generated):
    ok(BIN / "hadolint", "--ignore=DL3013", generated.folder / "deploy/Dockerfile")


def test_nothing_but_what_the_image_copies_is_sent_to_docker(project):
    lines = (project.folder / "deploy/Dockerfile.dockerignore").read_text().splitlines()
    everything, *allowed = [line for line in lines if not line.startswith("#")]
    copied = re.findall(r"^COPY (\S+) ", dockerfile(project), re.MULTILINE)

    assert everything == "*"
    assert sorted(allowed) == sorted(f"!{source.rstrip('/')}" for source in copied)


def test_the_application_fits_the_operators_schema(generated):
    go = shutil.which("go")
    if not go:
        pytest.skip("the operator's schema is a Go module, and there is no go here")
    found = sh(go, "mod", "download", "-json", OPERATOR)
    if found.returncode:
        pytest.skip(f"the operator's module cannot be had: {found.stdout[-200:]}")
    crd = yaml.safe_load((Path(json.loads(found.stdout)["Dir"]) / CRD).read_text())
    (version,) = [v for v in crd["spec"]["versions"] if v["name"] == "v1beta2"]
    schema = strict(version["schema"]["openAPIV3Schema"])
    file = generated.folder / "deploy/spark-application.yaml"

    jsonschema.validate(yaml.safe_load(file.read_text()), schema)

    broken = yaml.safe_load(file.read_text())
    broken["spec"]["driver"]["gracePeriod"] = 1
    with pytest.raises(jsonschema.ValidationError, match="gracePeriod"):
        jsonschema.validate(broken, schema)


def application_of(project: Project) -> dict:
    """What the operator of Kubernetes is told."""
    file = project.folder / "deploy/spark-application.yaml"
    return yaml.safe_load(file.read_text())["spec"]


def test_the_application_drains_restarts_and_names_no_secret(generated):
    spec = application_of(generated)
    driver = spec["driver"]
    parameters = (generated.folder / "conf/base/parameters.yml").read_text()
    drain = yaml.safe_load(parameters)["streams"]["drain"]

    assert spec["restartPolicy"]["type"] == "Always"
    source = next(generated.folder.glob("src/*/extras/streams/signals.py")).read_text()
    slack = int(re.search(r"^SLACK = (\d+)", source, re.MULTILINE)[1])
    patience = int(drain.split()[0]) + slack  # as long as Java may wait for Python
    assert driver["terminationGracePeriodSeconds"] > patience
    pod = yaml.safe_load((generated.folder / "deploy/driver-pod.yaml").read_text())
    assert pod["spec"]["terminationGracePeriodSeconds"] > patience
    assert driver["annotations"]["prometheus.io/scrape"] == "true"
    base = (generated.folder / "conf/base/spark.yml").read_text()
    served = re.search(r"prometheusServlet\.path: (\S+)", base)[1]
    assert driver["annotations"]["prometheus.io/path"] == f"{served}/"
    settings = (generated.folder / "conf/cluster/spark.yml").read_text()
    port = driver["annotations"]["prometheus.io/port"]
    assert int(port) == yaml.safe_load(settings)["spark.ui.port"]
    for part in (driver, spec["executor"]):
        named = {env["name"]: env["valueFrom"]["secretKeyRef"] for env in part["env"]}
        assert named.keys() == {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}


def strict(schema):
    """Refuse keys that a schema does not name, as Kubernetes does."""
    if isinstance(schema, dict):
        schema = {key: strict(value) for key, value in schema.items()}
        if "properties" in schema and isinstance(schema["properties"], dict):
            if (
                schema.get("type") == "object"
                and "x-kubernetes-preserve-unknown-fields" not in schema
            ):
                schema.setdefault("additionalProperties", False)
    return schema
