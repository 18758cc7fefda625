"""What this machine has: Spark, pyspark and Java that belong together, and cores."""

import os
import re
import shutil
import subprocess
from contextlib import redirect_stderr, suppress
from importlib import metadata
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree

from pyspark import __version__
from pyspark.find_spark_home import _find_spark_home

from .errors import StreamsError

SPARK = 4  # the oldest whose Python and Java we speak to
JAVA = 17  # the oldest that Spark 4 runs on
JAVA_ADVICE = (
    f"install Java {JAVA} or newer (Debian, Ubuntu: apt install "
    f"openjdk-{JAVA}-jre-headless; macOS: brew install openjdk@{JAVA}; "
    "conda: conda install openjdk) and, if it is not on the PATH, set JAVA_HOME"
)
HADOOP = "3.4.1"  # of Spark 4.0, where its own is not to be found
DISTRIBUTION = "{{ cookiecutter.repo_name }}"  # what the wheel is called


def spark_package(artifact: str) -> str:
    """Return the coordinates of a Spark module, of the installed pyspark's version."""
    return f"org.apache.spark:{artifact}_2.13:{_release(__version__)}"


def hadoop_package(artifact: str) -> str:
    """Return the coordinates of a Hadoop module, of the version that Spark brings."""
    try:
        found = _version_in(spark_home(), "hadoop-client-api-*.jar")
    except StreamsError:  # a container of YARN's has the Python half of Spark alone
        found = None
    return f"org.apache.hadoop:{artifact}:{found or HADOOP}"


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


def hadoop_setting(file: str, name: str) -> str | None:
    """Return what a cluster's own file says, which Spark reads when it starts."""
    folders = map(os.environ.get, ("HADOOP_CONF_DIR", "YARN_CONF_DIR"))
    for path in [Path(folder, file) for folder in folders if folder]:
        with suppress(OSError, ElementTree.ParseError):
            for entry in ElementTree.parse(path).iter("property"):
                if (entry.findtext("name") or "").strip() == name:
                    return (entry.findtext("value") or "").strip()
    return None


def _release(version: str) -> str:
    """Return a version without what vendors add to it."""
    return ".".join(re.findall(r"\d+", version)[:3])


def _version_in(home: Path, jars: str) -> str | None:
    """Return the version in the name of a jar of Spark's."""
    names = [jar.stem for jar in (home / "jars").glob(jars)]
    found = re.search(r"-(\d+\.\d+\.\d+)", names[0]) if names else None
    return found[1] if found else None


def refuse_other_home() -> None:
    """Refuse a SPARK_HOME that our pyspark cannot start, or not speak to."""
    home = spark_home()
    if version := _version_in(home, "spark-core_*.jar"):
        refuse_other_version(version, f"in {home}")


def refuse_other_version(version: str, where: str = "here") -> None:
    """Refuse a Spark that is not the one our pyspark speaks to."""
    if _release(version) != _release(__version__):
        is_known = int(version.partition(".")[0]) >= SPARK
        move = f"write pyspark=={version} into pyproject.toml, or " if is_known else ""
        raise StreamsError(
            f"Spark is {version} {where}, and the installed pyspark {__version__}; "
            f"they must be the same: {move}let the cluster run the other one"
        )


def refuse_unpinned(project: Path) -> None:
    """Refuse a Spark that brought its own pyspark instead of the project's."""
    pinned = _pinned(project)
    if pinned and _release(__version__) != pinned:
        raise StreamsError(
            f"Spark and its pyspark are {__version__} here, and this project is made for "
            f"pyspark=={pinned}; run it with that Spark, or write the other number "
            f"(of Spark {SPARK} or newer) into pyproject.toml and package it again"
        )


def _pinned(project: Path) -> str | None:
    """Return the pyspark that the wheel, or the project around us, asks for."""
    try:
        wanted = "\n".join(metadata.requires(DISTRIBUTION) or ())
    except metadata.PackageNotFoundError:
        file = project / "pyproject.toml"
        wanted = file.read_text() if file.is_file() else ""
    found = re.search(r"\bpyspark==(\d+\.\d+\.\d+)", wanted)
    return found[1] if found else None


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


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
