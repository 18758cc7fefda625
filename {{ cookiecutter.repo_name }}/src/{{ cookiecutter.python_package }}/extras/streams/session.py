"""The Spark session: one a process, out of ``spark.yml``, started when first needed."""

import http.client
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
from contextlib import redirect_stderr, suppress
from importlib import metadata
from io import StringIO
from pathlib import Path
from threading import RLock
from typing import Any
from urllib.request import getproxies
from xml.etree import ElementTree

from kedro.utils import find_kedro_project
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext, __version__
from pyspark.errors import PySparkRuntimeError
from pyspark.find_spark_home import _find_spark_home
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from .errors import StreamsError, first_sentence

logger = logging.getLogger(__name__)

SPARK = 4  # the oldest whose Python and Java we speak to
JAVA = 17  # the oldest that Spark 4 runs on
JAVA_ADVICE = (
    f"install Java {JAVA} or newer (Debian, Ubuntu: apt install "
    f"openjdk-{JAVA}-jre-headless; macOS: brew install openjdk@{JAVA}; "
    "conda: conda install openjdk) and, if it is not on the PATH, set JAVA_HOME"
)
CREDENTIALS = "credentials"  # the key of spark.yml that names some
JARS = "spark.jars"
PACKAGES = "spark.jars.packages"
WAREHOUSE = "spark.sql.warehouse.dir"
CATALOG, OWN_CATALOG = "spark.sql.catalogImplementation", "in-memory"  # | hive
LISTS = (PACKAGES, "spark.sql.extensions")  # several formats share them
FILES = (  # lists of files that travel with a run
    "spark.archives",
    "spark.files",
    JARS,
    "spark.submit.pyFiles",
    "spark.kubernetes.driver.podTemplateFile",
    "spark.kubernetes.executor.podTemplateFile",
)
OF_A_CLUSTER = (  # of no use to who only looks at files
    *("spark.archives", "spark.pyspark.", "spark.submit."),
    *("spark.driver.host", "spark.driver.bindAddress"),
    *("spark.executor.", "spark.task.", "spark.cores.max"),
)
IN_IMAGE = "local:"  # before a jar that machines of a cluster have, and not this one
DEFAULT_FILES = "fs.defaultFS"  # where a path leads that names no file system
DISTRIBUTION = "{{ cookiecutter.repo_name }}"  # what the wheel is called
LOGGING = Path(__file__).with_name("log4j2.properties")

# Read by the program that starts the JVM, so without effect once it runs.
AT_LAUNCH = re.compile(
    r"spark\.(master$|archives|files|jars|submit|kubernetes|yarn|pyspark"
    r"|kerberos\.(keytab|principal)|driver\.(?!host|bindAddress|port))"
)
MASTER = re.compile(r"local($|\[|-cluster\[)|(spark|k8s)://|yarn$")
KUBERNETES = re.compile(r"k8s://(?:(https?)://)?(\[.*\]|[^:/]+)(?::([^/]*))?")
EVENT_LOG = "spark.eventLog.dir"
HADOOP = "3.4.1"  # of Spark 4.0, where its own is not to be found
REACHED = 10.0  # seconds that a cluster may take to answer
LOOKED_UP = 3.0  # seconds that its page may take, without which we go on
PAGE_BEGINS = 10_000  # bytes of it
NOT_TAKEN = "stopped SparkContext"  # what Spark says of itself when a master is silent
MASTERS_PAGE = ("spark.master.ui.port", 8080)
MASTERS_VERSION = r'class="version[^>]*>\s*([\d.]+).*Spark Master at spark://[^<]*:{}\b'


class _State:
    """What the hooks handed over, and the session made of it."""

    settings: dict[str, Any] = {}
    secrets: dict[str, Any] = {}
    project_path: Path | None = None
    env: str | None = None
    started: SparkContext | None = None
    launched = False  # whether the JVM is ours, too
    warned_about: SparkContext | None = None
    default_files: tuple[SparkContext, str] | None = None
    lock = RLock()


def configure(
    settings: dict[str, Any],
    project_path: Path,
    secrets: dict[str, Any] | None = None,
    env: str | None = None,
) -> None:
    """Remember ``spark.yml``, and the credentials it names; nothing starts yet."""
    # An environment takes a setting of base's back with null.
    given = {k: v for k, v in settings.items() if v is not None}
    _State.settings = {k: v for k, v in given.items() if k != CREDENTIALS}
    _State.secrets = secrets or {}
    _State.project_path = project_path
    _State.env = env


def look_from_here() -> None:
    """Let a Spark that only looks at files start on this machine, not on a cluster."""
    given = _State.settings
    if not str(given.get("spark.master", "local")).startswith("local"):
        here = {k: v for k, v in given.items() if not k.startswith(OF_A_CLUSTER)}
        if given.get("spark.submit.deployMode") == "cluster":
            here.pop("spark.driver.extraJavaOptions", None)  # of Java in the cluster
        named = text(here.pop(JARS, "")).split(",")
        if jars := [jar for jar in named if jar and not jar.startswith(IN_IMAGE)]:
            here[JARS] = ",".join(jars)
        _State.settings = {**here, "spark.master": "local[1]"}


def our_command(*words: str) -> str:
    """Write a command of this project's as it is to be typed, in this environment."""
    env = [f"--env={_State.env}"] if _State.env else []
    return " ".join(["kedro streams", *words, *env])


def project_path() -> Path:
    """Return the folder that relative paths start from."""
    return _State.project_path or find_kedro_project(Path.cwd()) or Path.cwd()


def shown(text: str) -> str:
    """Write paths as a user would: from the project's folder on."""
    return text.replace(f"{project_path()}/", "")


def log_file() -> Path:
    """Return where a Spark that is started here writes warnings and stack traces."""
    return project_path() / "logs" / "spark.log"


def where_the_trace_is() -> str:
    """Say where to look for what Spark has to say about a failure."""
    return str(log_file()) if _State.launched else "the log of whatever started Spark"


def was_submitted() -> bool:
    """Whether spark-submit has started Java, and Java us."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_running() -> bool:
    """Whether there is a session already."""
    return SparkContext._active_spark_context is not None


def has_local_files() -> bool:
    """Whether a path that names no file system is one of this machine's."""
    context: Any = SparkContext._active_spark_context
    if context is None:
        chosen = _State.settings.get(f"spark.hadoop.{DEFAULT_FILES}")
        default = chosen or _in_core_site(DEFAULT_FILES) or "file:///"
    elif _State.default_files and _State.default_files[0] is context:
        default = _State.default_files[1]
    else:
        default = context._jsc.hadoopConfiguration().get(DEFAULT_FILES, "file:///")
        _State.default_files = (context, default)
    return str(default).startswith("file:")


def _in_core_site(name: str) -> str | None:
    """Return what the cluster's own file says, which Spark reads when it starts."""
    folders = map(os.environ.get, ("HADOOP_CONF_DIR", "YARN_CONF_DIR"))
    for file in [Path(folder, "core-site.xml") for folder in folders if folder]:
        with suppress(OSError, ElementTree.ParseError):
            for entry in ElementTree.parse(file).iter("property"):
                if (entry.findtext("name") or "").strip() == name:
                    return (entry.findtext("value") or "").strip()
    return None


def get_spark(*formats: str) -> SparkSession:
    """Return the running session, or start one that can read and write ``formats``."""
    with _State.lock:
        running = SparkContext._active_spark_context
        if running is None:
            return _start(settings_for(*formats))
        session = SparkSession.builder.getOrCreate()
        if running not in (_State.started, _State.warned_about):
            _refuse_other_version(session.version)
            _refuse_unpinned()
            _adapt(session)
            _hand_over_secrets(session)
            _State.warned_about = running
        _settle_in_this_thread(session)
        return session


def _settle_in_this_thread(session: SparkSession) -> None:
    """Let Java find our settings: in a thread it has not seen it knows no catalog."""
    java: Any = session._jvm
    sessions = java.org.apache.spark.sql.classic.SparkSession
    if sessions.getActiveSession().isEmpty():  # a batch has one of its own
        sessions.setActiveSession(session._jsparkSession)


def stop_spark() -> None:
    """Close the session if it was started here; somebody else's stays open."""
    with _State.lock:
        context = _State.started
        _State.started = None
        if context is not None and context is SparkContext._active_spark_context:
            with suppress(Py4JNetworkError, ConnectionError):  # Java died before
                SparkSession.builder.getOrCreate().stop()


def package_for(file_format: str) -> str | None:
    """Return the package that ``spark.yml`` names for a format."""
    return _bundle(file_format).get("package")


def missing_format(file_format: str) -> str:
    """Say which package, or which other spelling, would make a format known."""
    if package := package_for(file_format):
        return (
            f"file_format '{file_format}' needs the package {package}, and the running "
            "Spark was started without it; start Spark anew (restart the notebook "
            f"kernel), or pass --packages {package} to spark-submit"
        )
    return (
        f"file_format '{file_format}' is not known to Spark; correct it, or, if it comes "
        f"in a package of its own, add it to conf/base/spark.yml under packages, e.g. "
        f"{file_format}: group:artifact_2.13:version"
    )


def _bundle(file_format: str) -> dict[str, Any]:
    """Return what ``spark.yml`` says a format needs: a package, and maybe settings."""
    packages = _State.settings.get("packages") or {}
    found = packages.get(file_format.lower()) or {}
    bundle = found if isinstance(found, dict) else {"package": found}
    return {key: value for key, value in bundle.items() if value is not None}


def warehouse() -> str:
    """Return the folder of tables that are known by a plain name."""
    if is_running():
        folder = get_spark().conf.get(WAREHOUSE)
    else:
        folder = _anchored(WAREHOUSE, _State.settings.get(WAREHOUSE, "spark-warehouse"))
    return re.sub("^file:/+", "/", str(folder)) if has_local_files() else str(folder)


def has_own_catalog() -> bool:
    """Whether plain tables are Spark's own, which are all in its warehouse."""
    if is_running():
        return get_spark().conf.get(CATALOG, OWN_CATALOG) == OWN_CATALOG
    return _State.settings.get(CATALOG, OWN_CATALOG) == OWN_CATALOG


def spark_package(artifact: str) -> str:
    """Return the coordinates of a Spark module, of the installed pyspark's version."""
    return f"org.apache.spark:{artifact}_2.13:{_release(__version__)}"


def _release(version: str) -> str:
    """Return a version without what vendors add to it."""
    return ".".join(re.findall(r"\d+", version)[:3])


def hadoop_package(artifact: str) -> str:
    """Return the coordinates of a Hadoop module, of the version that Spark brings."""
    try:
        found = _version_in(spark_home(), "hadoop-client-api-*.jar")
    except StreamsError:  # a container of YARN's has the Python half of Spark alone
        found = None
    return f"org.apache.hadoop:{artifact}:{found or HADOOP}"


def _version_in(home: Path, jars: str) -> str | None:
    """Return the version in the name of a jar of Spark's."""
    names = [jar.stem for jar in (home / "jars").glob(jars)]
    found = re.search(r"-(\d+\.\d+\.\d+)", names[0]) if names else None
    return found[1] if found else None


def spark_home() -> Path:
    """Return the folder of the Spark that is run: of pyspark, or of SPARK_HOME."""
    try:
        with redirect_stderr(StringIO()):  # it prints a page, and ends the process
            return Path(_find_spark_home())
    except SystemExit as error:
        raise StreamsError(
            "there is no Spark here, because pyspark has come without its jars; set "
            "SPARK_HOME to the folder of one"
        ) from error


def spark_conf() -> Path:
    """Return the folder of Spark's own configuration, as its scripts find it."""
    return Path(os.environ.get("SPARK_CONF_DIR") or spark_home() / "conf")


def spark_defaults() -> set[str]:
    """Return the settings that Spark's own file decides, unless a command line does."""
    with suppress(OSError):
        text = (spark_conf() / "spark-defaults.conf").read_text()
        return set(re.findall(r"^\s*(spark\.[^\s=:]+)", text, re.MULTILINE))
    return set()


def refuse_other_home() -> None:
    """Refuse a SPARK_HOME that our pyspark cannot start, or not speak to."""
    home = spark_home()
    if version := _version_in(home, "spark-core_*.jar"):
        _refuse_other_version(version, f"in {home}")


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def settings_for(*formats: str) -> dict[str, Any]:
    """Add what the formats in use need to the settings of ``spark.yml``."""
    settings = {k: v for k, v in _State.settings.items() if k != "packages"}
    needed = {name.lower() for name in formats}
    stores = {folder.partition(":")[0] for folder in table_folders(needed)}
    for bundle in map(_bundle, sorted(needed | stores)):
        for key, value in bundle.items():
            name = PACKAGES if key == "package" else key
            if name in LISTS and settings.get(name):
                settings[name] += f",{value}"
            elif name in LISTS or name not in settings:
                settings[name] = value  # unless spark.yml itself says something else
    return {key: _anchored(key, value) for key, value in settings.items()}


def table_folders(formats: set[str]) -> set[str]:
    """Return where the catalogs of the formats in use keep their tables."""
    bundles = [_bundle(name) for name in formats]
    named = {k: v for bundle in bundles for k, v in bundle.items()}
    folders = {key: value for key, value in named.items() if _is_table_folder(key)}
    folders |= {key: _State.settings[key] for key in folders if key in _State.settings}
    return {_anchored(key, value) for key, value in folders.items()}


def _is_table_folder(key: str) -> bool:
    return key.startswith("spark.sql.catalog.") and key.endswith(".warehouse")


def _anchored(key: str, value: Any) -> Any:
    """Let folders of tables, and files that travel, begin at the project."""
    if key in FILES:
        named = filter(None, text(value).split(","))
        return ",".join(map(_in_project, named))
    is_folder = _is_table_folder(key) or key == WAREHOUSE
    return _in_project(str(value)) if is_folder else value


def _in_project(path: str) -> str:
    return path if ":/" in path else str(project_path() / path)


def _start(settings: dict[str, Any]) -> SparkSession:
    settings = _with_warehouse(_with_event_log(settings))
    if was_submitted():
        _refuse_unpinned()
        settings = _not_decided_by_submit(settings)
        refuse_unreachable(SparkConf().get("spark.master"))
        session = _create(settings)
        session.sparkContext.setLogLevel("WARN")  # it prints every batch otherwise
    else:
        refuse_unreachable(settings.get("spark.master"))
        refuse_other_home()
        check_java()
        logger.info("Starting Spark ...")
        _announce_download(str(settings.get(PACKAGES, "")))
        session = _launch(_for_this_machine(settings))
    logging.getLogger().addFilter(_is_not_py4j)
    _refuse_other_version(session.version)
    _silence_traces()
    _hand_over_secrets(session)
    _State.started = session.sparkContext
    logger.info("Spark %s started, UI at %s", session.version, _ui(session))
    return session


def _silence_traces() -> None:
    """Keep Spark from printing, as JSON, the trace of what is said in a sentence."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - Spark 3 has none

    PySparkLogger.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)


def ivy_folder() -> Path:
    """Return where packages stay once they have been downloaded."""
    chosen = _State.settings.get("spark.jars.ivy")
    return Path(str(chosen)) if chosen else Path.home() / ".ivy2.5.2"


def ivy_settings() -> str | None:
    """Return the file that names a mirror to download from, if there is one."""
    return _State.settings.get("spark.jars.ivySettings")


def _announce_download(packages: str) -> None:
    """Say why the first start takes longer than the others."""
    missing = []
    for package in filter(None, packages.split(",")):
        group, name, version = f"{package}::".split(":")[:3]
        jars = ivy_folder() / "cache" / group / name / "jars"
        if not (jars / f"{name}-{version}.jar").exists():
            missing.append(package)
    if missing:
        logger.info(
            "Downloading %s into %s, which takes a minute, once ...",
            " and ".join(missing),
            ivy_folder(),
        )


def _hand_over_secrets(session: SparkSession) -> None:
    """Tell Hadoop once it runs: settings of Spark's are on a command line, and shown."""
    files = session.sparkContext._jsc.hadoopConfiguration()  # type: ignore[attr-defined]
    for key, value in _State.secrets.items():
        files.set(key, text(value))


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """py4j logs a traceback as nobody when Java dies; a run says it in a sentence."""
    return record.module != "java_gateway"


def _launch(settings: dict[str, Any]) -> SparkSession:
    """Start a JVM that does not share our terminal, and a session in it.

    It and its Python workers complain to a file, not over the table; and a SIGTERM
    for the whole process group, as process managers send it, reaches only us.
    """
    log_file().parent.mkdir(parents=True, exist_ok=True)
    _State.launched = True
    conf = SparkConf().setAll([(k, text(v)) for k, v in settings.items()])
    try:
        if SparkContext._gateway is None:
            with log_file().open("ab") as log:
                options = {"stderr": log, "start_new_session": True}
                gateway = launch_gateway(conf, options)
            SparkContext._ensure_initialized(gateway=gateway)
        return _create(settings)
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise StreamsError(
            f"Java ended before Spark had started, and {log_file()} says why"
            f"{_offline_advice(str(settings.get(PACKAGES) or ''))}"
        ) from error


def _offline_advice(packages: str) -> str:
    if not packages:
        return ""
    return (
        f"; often a package could not be downloaded: {packages}. Without a way to Maven "
        "Central, name a mirror in a file of Ivy's settings (spark.jars.ivySettings), "
        f"copy {ivy_folder()} from a machine that has a way, or list jar files of "
        "your own (spark.jars, with packages: {} in spark.yml)"
    )


def _create(settings: dict[str, Any]) -> SparkSession:
    try:
        return SparkSession.builder.config(map=settings).getOrCreate()
    except Py4JJavaError as error:
        if NOT_TAKEN not in str(error):
            raise StreamsError(
                f"Spark does not start: {first_sentence(error)}; {where_the_trace_is()} "
                "has the trace, and spark.yml the settings"
            ) from error
        raise StreamsError(
            "the cluster answers, and does not take this run; most likely its Spark is "
            f"another one than the installed pyspark {__version__}: the master's page says "
            f"which (if it is not at port {MASTERS_PAGE[1]}, say where with "
            f"{MASTERS_PAGE[0]} in spark.yml), and {where_the_trace_is()} what else it may be"
        ) from error


def text(value: Any) -> str:
    """Write a setting as Spark does."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _ui(session: SparkSession) -> str:
    return session.sparkContext.uiWebUrl or "none (spark.ui.enabled is false)"


def _for_this_machine(settings: dict[str, Any]) -> dict[str, Any]:
    """Prepare the JVM that is about to start."""
    if str(settings.get("spark.master", "local")).startswith("local"):
        # Workers would otherwise run whatever python3 comes first on the PATH.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        # The UI would otherwise listen on every network interface.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if workers := settings.get("spark.pyspark.python"):
        os.environ.setdefault("PYSPARK_PYTHON", str(workers))
    options = (
        f"-Dlog4j2.configurationFile={LOGGING.as_uri()} "
        f'-Dspark.log.file="{log_file().as_posix()}" '
        f"{settings.get('spark.driver.extraJavaOptions', '')}"
    )
    here = {k: v for k, v in settings.items() if not k.startswith("spark.submit.")}
    return {**here, "spark.driver.extraJavaOptions": options.strip()}


def _not_decided_by_submit(settings: dict[str, Any]) -> dict[str, Any]:
    """Drop what spark-submit has decided already, and say what comes too late."""
    SparkContext._ensure_initialized()
    given = dict(SparkConf().getAll())
    ours = {key: value for key, value in settings.items() if key not in given}
    late = {key for key in ours if AT_LAUNCH.match(key)}
    others = [
        k for k in settings.keys() & given.keys() if text(settings[k]) != given[k]
    ]
    if others := sorted(key for key in others if not AT_LAUNCH.match(key)):
        logger.info(
            "What spark-submit was told goes before spark.yml: %s", ", ".join(others)
        )
    # Of packages the checks say which is missing: an image may hold the jars itself.
    _warn_too_late([key for key in late if not key.startswith("spark.jars")])
    return {key: value for key, value in ours.items() if key not in late}


def _with_warehouse(settings: dict[str, Any]) -> dict[str, Any]:
    """Keep tables by a plain name with the project, wherever a command is typed."""
    if was_submitted() and not has_local_files():
        return settings
    return {WAREHOUSE: str(project_path() / "spark-warehouse"), **settings}


def _with_event_log(settings: dict[str, Any]) -> dict[str, Any]:
    """Give the log for the history server a folder, which Spark wants to be there."""
    if text(settings.get("spark.eventLog.enabled")) != "true":
        return settings
    folder = settings.get(EVENT_LOG, "logs/events")
    if ":/" not in folder:
        (project_path() / folder).mkdir(parents=True, exist_ok=True)
        folder = (project_path() / folder).as_uri()
    return {**settings, EVENT_LOG: folder}


def refuse_unreachable(master: str | None) -> None:
    """Ask a cluster for an answer; Spark would ask for a minute, or end in a log."""
    master = master or ""
    if master and not was_submitted():  # vendors have masters that only they know
        _refuse_lost_master(master)
    if master.startswith("spark://"):
        addresses = master.removeprefix("spark://").split(",")
        places = [a.rpartition(":")[::2] for a in addresses]
        host, port = _reach(master, [(h.strip("[]"), p) for h, p in places])
        if version := _version_on_page_of(host, port):
            _refuse_other_version(version, f"at {master}")


def _refuse_lost_master(master: str) -> None:
    """Refuse what nobody listens to, where Java would end before it can say so."""
    refuse_unknown_master(master)
    if master == "yarn":
        _refuse_unconfigured_yarn()
    is_direct = not getproxies().keys() & {"http", "https", "all"}
    if is_direct and (found := KUBERNETES.match(master)):
        scheme, host, port = found.groups()
        usual = "80" if scheme == "http" else "443"
        _reach(master, [(host.strip("[]"), port or usual)])


def _reach(master: str, places: list[tuple[str, str]]) -> tuple[str, str]:
    """Return the first place of a cluster that answers."""
    for host, port in places:
        try:
            socket.create_connection((host, int(port)), REACHED).close()
            return host, port
        except (OSError, ValueError) as error:  # ValueError: there is no port
            reason = error
    raise StreamsError(
        f"the cluster at {master} does not answer ({reason}); start its master, or "
        "correct spark.master in spark.yml, or --master"
    )


def _refuse_unconfigured_yarn() -> None:
    """Refuse to look for a YARN of which nobody says where it is."""
    is_told = any(map(os.environ.get, ("HADOOP_CONF_DIR", "YARN_CONF_DIR")))
    if not is_told and not (spark_conf() / "spark-env.sh").exists():
        raise StreamsError(
            "spark.master is yarn, and nothing says where YARN is; set HADOOP_CONF_DIR "
            "to the folder with the cluster's core-site.xml and yarn-site.xml"
        )


def refuse_unknown_master(master: str) -> None:
    """Refuse what Spark would end by, in a log, as if Java were the matter."""
    if not MASTER.match(master):
        raise StreamsError(
            f"'{master}' is no master of Spark's; write spark://host:7077, "
            "k8s://https://host:6443, yarn or local[*] as spark.master in spark.yml, or "
            "as --master of kedro streams submit"
        )


def _version_on_page_of(host: str, masters_port: str) -> str | None:
    """Look up which Spark a master runs; another one would not even answer ours."""
    try:
        port = int(_State.settings.get(*MASTERS_PAGE))
        page = http.client.HTTPConnection(host, port, timeout=LOOKED_UP)
        page.request("GET", "/")
        text = page.getresponse().read(PAGE_BEGINS).decode(errors="replace")
        found = re.search(MASTERS_VERSION.format(masters_port), text, re.DOTALL)
    except (OSError, http.client.HTTPException, ValueError):
        return None  # there is no such page, or it is somebody else's
    return found[1] if found else None


def _refuse_other_version(version: str, where: str = "here") -> None:
    """Refuse a Spark that is not the one our pyspark speaks to."""
    if _release(version) != _release(__version__):
        is_known = int(version.partition(".")[0]) >= SPARK
        move = f"write pyspark=={version} into pyproject.toml, or " if is_known else ""
        raise StreamsError(
            f"Spark is {version} {where}, and the installed pyspark {__version__}; "
            f"they must be the same: {move}let the cluster run the other one"
        )


def _refuse_unpinned() -> None:
    """Refuse a Spark that brought its own pyspark instead of the project's."""
    pinned = _pinned()
    if pinned and _release(__version__) != pinned:
        raise StreamsError(
            f"Spark and its pyspark are {__version__} here, and this project is made for "
            f"pyspark=={pinned}; run it with that Spark, or write the other number "
            f"(of Spark {SPARK} or newer) into pyproject.toml and package it again"
        )


def _pinned() -> str | None:
    """Return the pyspark that the wheel, or the project around us, asks for."""
    try:
        wanted = "\n".join(metadata.requires(DISTRIBUTION) or ())
    except metadata.PackageNotFoundError:
        file = project_path() / "pyproject.toml"
        wanted = file.read_text() if file.is_file() else ""
    found = re.search(r"\bpyspark==(\d+\.\d+\.\d+)", wanted)
    return found[1] if found else None


def _adapt(session: SparkSession) -> None:
    """Apply to a session that was there before us what can still be applied."""
    too_late = []
    for key, value in settings_for().items():
        wanted = text(value)
        if session.conf.isModifiable(key):
            session.conf.set(key, wanted)
        elif session.conf.get(key, "") != wanted:
            too_late.append(key)
    _warn_too_late(too_late)


def _warn_too_late(keys: list[str]) -> None:
    if keys:
        logger.warning(
            "Spark was running already, so these settings of spark.yml have no "
            "effect: %s. Give them to whatever starts Spark (spark-submit --conf, "
            "the cluster's own settings), or start Spark here.",
            ", ".join(sorted(keys)),
        )


def check_java() -> str:
    """Return Java's path; refuse a missing or too old one before Spark's traceback."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        place = f"in JAVA_HOME ({home})" if home else "on the PATH"
        raise StreamsError(
            f"Spark needs Java, and there is none {place}; {JAVA_ADVICE}"
        )
    answer = subprocess.run(
        [java, "-version"], capture_output=True, text=True, check=False
    )
    found = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    if not found:
        raise StreamsError(f"Spark needs Java, and {java} is none; {JAVA_ADVICE}")
    if int(found[1]) < JAVA:
        raise StreamsError(
            f"Spark needs Java {JAVA} or newer, and {java} is Java {found[1]}; "
            f"{JAVA_ADVICE}"
        )
    return java
