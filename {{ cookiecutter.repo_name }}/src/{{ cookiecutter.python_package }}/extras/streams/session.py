"""The Spark session: one a process, out of ``spark.yml``, started when first needed."""

import logging
import os
import re
import sys
from contextlib import suppress
from pathlib import Path
from threading import RLock
from typing import Any

from kedro.utils import find_kedro_project
from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark import SparkConf, SparkContext, __version__
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from .cluster import MASTERS_PAGE, refuse_unreachable, was_submitted
from .errors import StreamsError, first_sentence
from .installed import (
    check_java,
    hadoop_setting,
    refuse_other_home,
    refuse_other_version,
    refuse_unpinned,
)

logger = logging.getLogger(__name__)

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
LOGGING = Path(__file__).with_name("log4j2.properties")

# Read by the program that starts the JVM, so without effect once it runs.
AT_LAUNCH = re.compile(
    r"spark\.(master$|archives|files|jars|submit|kubernetes|yarn|pyspark"
    r"|kerberos\.(keytab|principal)|driver\.(?!host|bindAddress|port))"
)
EVENT_LOG = "spark.eventLog.dir"
NO_NUMBER = re.compile(r'(?:input string: "|(?:byte|time) string: )([^"\n]+)')
NOT_TAKEN = "stopped SparkContext"  # what Spark says of itself when a master is silent


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


def is_running() -> bool:
    """Whether there is a session already."""
    return SparkContext._active_spark_context is not None


def has_local_files() -> bool:
    """Whether a path that names no file system is one of this machine's."""
    context: Any = SparkContext._active_spark_context
    if context is None:
        chosen = _State.settings.get(f"spark.hadoop.{DEFAULT_FILES}")
        theirs = hadoop_setting("core-site.xml", DEFAULT_FILES)
        default = chosen or theirs or "file:///"
    elif _State.default_files and _State.default_files[0] is context:
        default = _State.default_files[1]
    else:
        default = context._jsc.hadoopConfiguration().get(DEFAULT_FILES, "file:///")
        _State.default_files = (context, default)
    return str(default).startswith("file:")


def get_spark(*formats: str) -> SparkSession:
    """Return the running session, or start one that can read and write ``formats``."""
    with _State.lock:
        running = SparkContext._active_spark_context
        if running is None:
            return _start(settings_for(*formats))
        session = SparkSession.builder.getOrCreate()
        if running not in (_State.started, _State.warned_about):
            refuse_other_version(session.version)
            refuse_unpinned(project_path())
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
        refuse_unpinned(project_path())
        ours = _not_decided_by_submit(settings)
        refuse_unreachable(str(SparkConf().get("spark.master") or ""), settings)
        session = _create(ours)
        session.sparkContext.setLogLevel("WARN")  # it prints every batch otherwise
    else:
        refuse_unreachable(str(settings.get("spark.master") or ""), settings)
        refuse_other_home()
        check_java()
        logger.info("Starting Spark ...")
        _announce_download(str(settings.get(PACKAGES, "")))
        session = _launch(_for_this_machine(settings))
    logging.getLogger().addFilter(_is_not_py4j)
    refuse_other_version(session.version)
    _silence_traces()
    _hand_over_secrets(session)
    _State.started = session.sparkContext
    logger.info("Spark %s started, UI at %s", session.version, _ui(session))
    return session


def _silence_traces() -> None:
    """Keep Spark from printing, as JSON, the trace of what is said in a sentence."""
    from pyspark.logger import PySparkLogger  # noqa: PLC0415 - Spark 3 has none

    for kind in ("DataFrame", "SQL"):
        PySparkLogger.getLogger(f"{kind}QueryContextLogger").setLevel(logging.CRITICAL)


def ivy_folder() -> Path:
    """Return where packages stay once they have been downloaded."""
    chosen = _State.settings.get("spark.jars.ivy")
    return Path(str(chosen)) if chosen else Path.home() / ".ivy2.5.2"


def setting(name: str) -> Any:
    """Return what ``spark.yml`` says of a setting of Spark's, if it does."""
    return _State.settings.get(name)


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
                f"Spark does not start: {_blamed(str(error), settings)}"
                f"{first_sentence(error)}; {where_the_trace_is()} "
                "has the trace, and spark.yml the settings"
            ) from error
        raise StreamsError(
            "the cluster answers, and does not take this run; most likely its port is not "
            "the master's own (7077, as a rule), or its Spark is "
            f"another one than the installed pyspark {__version__}: the master's page says "
            f"which (if it is not at port {MASTERS_PAGE[1]}, say where with "
            f"{MASTERS_PAGE[0]} in spark.yml), and {where_the_trace_is()} what else it may be"
        ) from error


def _blamed(error: str, settings: dict[str, Any]) -> str:
    """Name the setting whose value is no number, of which Java says only the value."""
    found = NO_NUMBER.search(error)
    names = [k for k, v in settings.items() if found and text(v) == found[1]]
    return f"{' or '.join(names)} in spark.yml: " if names else ""


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
