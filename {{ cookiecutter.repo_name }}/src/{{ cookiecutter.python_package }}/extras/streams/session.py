"""The Spark session: one a process, out of ``spark.yml``, started when first needed."""

import logging
import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from threading import RLock
from typing import Any

from kedro.utils import find_kedro_project
from py4j.protocol import Py4JNetworkError
from pyspark import SparkConf, SparkContext, __version__
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from .errors import StreamsError

logger = logging.getLogger(__name__)

JAVA = 17  # the oldest that Spark 4 runs on
JAVA_ADVICE = (
    f"install Java {JAVA} or newer (Debian, Ubuntu: apt install "
    f"openjdk-{JAVA}-jre-headless; macOS: brew install openjdk@{JAVA}; "
    "conda: conda install openjdk) and, if it is not on the PATH, set JAVA_HOME"
)
CREDENTIALS = "credentials"  # the key of spark.yml that names some
PACKAGES = "spark.jars.packages"
LISTS = (PACKAGES, "spark.sql.extensions")  # several formats share them
LOGGING = Path(__file__).with_name("log4j2.properties")

# Read by the program that starts the JVM, so without effect once it runs.
AT_LAUNCH = {
    "spark.driver.extraClassPath",
    "spark.driver.extraJavaOptions",
    "spark.driver.memory",
    "spark.jars.excludes",
    "spark.jars.ivy",
    "spark.jars.ivySettings",
    PACKAGES,
}


class _State:
    """What the hooks handed over, and the session made of it."""

    settings: dict[str, Any] = {}
    secrets: dict[str, Any] = {}
    project_path: Path | None = None
    started: SparkContext | None = None
    launched = False  # whether the JVM is ours, too
    warned_about: SparkContext | None = None
    default_files: tuple[SparkContext, str] | None = None
    lock = RLock()


def configure(
    settings: dict[str, Any], project_path: Path, secrets: dict[str, Any] | None = None
) -> None:
    """Remember ``spark.yml``, and the credentials it names; nothing starts yet."""
    _State.settings = {k: v for k, v in settings.items() if k != CREDENTIALS}
    _State.secrets = secrets or {}
    _State.project_path = project_path


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


def is_running() -> bool:
    """Whether there is a session already."""
    return SparkContext._active_spark_context is not None


def has_local_files() -> bool:
    """Whether a path that names no file system is one of this machine's."""
    context: Any = SparkContext._active_spark_context
    if context is None:
        default = _State.settings.get("spark.hadoop.fs.defaultFS", "file:///")
    elif _State.default_files and _State.default_files[0] is context:
        default = _State.default_files[1]
    else:
        default = context._jsc.hadoopConfiguration().get("fs.defaultFS", "file:///")
        _State.default_files = (context, default)
    return str(default).startswith("file:")


def get_spark(*formats: str) -> SparkSession:
    """Return the running session, or start one that can read and write ``formats``."""
    with _State.lock:
        running = SparkContext._active_spark_context
        if running is None:
            return _start(_settings_for(formats))
        session = SparkSession.builder.getOrCreate()
        if running not in (_State.started, _State.warned_about):
            _adapt(session)
            _hand_over_secrets(session)
            _State.warned_about = running
        return session


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


def _bundle(file_format: str) -> dict[str, Any]:
    """Return what ``spark.yml`` says a format needs: a package, and maybe settings."""
    packages = _State.settings.get("packages") or {}
    found = packages.get(file_format.lower()) or {}
    return found if isinstance(found, dict) else {"package": found}


def warehouse(session: SparkSession) -> str:
    """Return the folder of tables that are known by a plain name."""
    return str(session.conf.get("spark.sql.warehouse.dir"))


def spark_package(artifact: str) -> str:
    """Return the coordinates of a Spark module, of the installed pyspark's version."""
    return f"org.apache.spark:{artifact}_2.13:{__version__}"


def hadoop_package(artifact: str) -> str:
    """Return the coordinates of a Hadoop module, of the version that pyspark brings."""
    jars = Path(find_spec("pyspark").origin or "").parent / "jars"  # type: ignore[union-attr]
    (client,) = jars.glob("hadoop-client-api-*.jar")
    return f"org.apache.hadoop:{artifact}:{client.stem.rpartition('-')[2]}"


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _settings_for(formats: tuple[str, ...]) -> dict[str, Any]:
    """Add what the formats in use need to the settings of ``spark.yml``."""
    settings = {k: v for k, v in _State.settings.items() if k != "packages"}
    for bundle in map(_bundle, formats):
        for key, value in bundle.items():
            name = PACKAGES if key == "package" else key
            both = [settings[name]] if name in LISTS and settings.get(name) else []
            settings[name] = ",".join([*both, value]) if name in LISTS else value
    return {key: _anchored(key, value) for key, value in settings.items()}


def _anchored(key: str, value: Any) -> Any:
    """Let the folder of a catalog of tables begin at the project."""
    is_folder = key.startswith("spark.sql.catalog.") and key.endswith(".warehouse")
    return str(project_path() / value) if is_folder and "://" not in value else value


def _start(settings: dict[str, Any]) -> SparkSession:
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        session = _create(_not_decided_by_submit(settings))
    else:
        check_java()
        logger.info("Starting Spark ...")
        _announce_download(str(settings.get(PACKAGES, "")))
        session = _launch(_for_this_machine(settings))
        _State.launched = True
        logging.getLogger().addFilter(_is_not_py4j)
    # It prints, as one line of JSON, the Java trace of what is said in a sentence.
    PySparkLogger.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL)
    _hand_over_secrets(session)
    _State.started = session.sparkContext
    logger.info("Spark %s started, UI at %s", session.version, _ui(session))
    return session


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
        files.set(key, _text(value))


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """py4j logs a traceback as nobody when Java dies; a run says it in a sentence."""
    return record.module != "java_gateway"


def _launch(settings: dict[str, Any]) -> SparkSession:
    """Start a JVM that does not share our terminal, and a session in it.

    It and its Python workers complain to a file, not over the table; and a SIGTERM
    for the whole process group, as process managers send it, reaches only us.
    """
    log_file().parent.mkdir(parents=True, exist_ok=True)
    conf = SparkConf().setAll([(k, _text(v)) for k, v in settings.items()])
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
    return SparkSession.builder.config(map=settings).getOrCreate()


def _text(value: Any) -> str:
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
    options = (
        f"-Dlog4j2.configurationFile={LOGGING.as_uri()} "
        f'-Dspark.log.file="{log_file().as_posix()}" '
        f"{settings.get('spark.driver.extraJavaOptions', '')}"
    )
    return {
        "spark.sql.warehouse.dir": str(project_path() / "spark-warehouse"),
        **settings,
        "spark.driver.extraJavaOptions": options.strip(),
    }


def _not_decided_by_submit(settings: dict[str, Any]) -> dict[str, Any]:
    """Drop what spark-submit has decided already, and say what comes too late."""
    SparkContext._ensure_initialized()
    given = dict(SparkConf().getAll())
    _warn_too_late([k for k in AT_LAUNCH & settings.keys() if k not in given])
    return {
        key: value
        for key, value in settings.items()
        if key not in given and key not in AT_LAUNCH
    }


def _adapt(session: SparkSession) -> None:
    """Apply to a session that was there before us what can still be applied."""
    too_late = []
    for key, value in _settings_for(()).items():
        text = _text(value)
        if session.conf.isModifiable(key):
            session.conf.set(key, text)
        elif session.conf.get(key, "") != text:
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
