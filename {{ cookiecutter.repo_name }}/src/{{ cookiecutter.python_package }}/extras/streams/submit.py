"""The command line that hands a run to a cluster, out of ``spark.yml``."""

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from glob import glob
from pathlib import Path
from typing import Any

from . import cluster, installed, session
from .errors import SECRET, SECRET_VALUE, USER_IN_URL, StreamsError, without_user
from .files import is_remote, on_disk
from .jars import download, name_of, sparks_own

PACKAGE = __name__.partition(".")[0]
ENTRY = "deploy/run.py"  # what spark-submit runs
IN_IMAGE = "/opt/{{ cookiecutter.repo_name }}"  # where the Dockerfile puts it
CONF = f"conf-{PACKAGE}.tar.gz"  # what kedro package makes of conf/

FILES = "spark.files"
IMAGE = "container.image"  # of driver and executors, or of one of them
UPLOAD = "spark.kubernetes.file.upload.path"
DRIVERS_PYTHON = "spark.pyspark.driver.python"

# What names a secret that Kubernetes keeps, or a file, and is none itself.
REFERENCE = re.compile(
    r"^spark\.kubernetes\.((driver|executor)\.secret(s|KeyRef)\."
    r"|container\.image\.pullSecrets$|kerberos\.tokenSecret\.)|(File|_FILE|[Pp]rovider)$"
    r"|^spark\.kerberos\.renewal\.credentials$"
    r"|\.security\.credentials\.\w+\.enabled$"
)
SENT = re.compile(r"archives$|files$|spark\.yarn\.dist\.")  # what travels with a run
# Java reads them when it starts, wherever that is.
FIRST = ("spark.driver.", "spark.kerberos.", "spark.hadoop.yarn.")

# Where spark-submit has an option of its own, which people know.
OPTIONS = {
    "spark.master": "--master",
    "spark.submit.deployMode": "--deploy-mode",
    "spark.app.name": "--name",
    "spark.jars.packages": "--packages",
    "spark.jars.excludes": "--exclude-packages",
    "spark.driver.memory": "--driver-memory",
    "spark.archives": "--archives",
    FILES: "--files",
}


def submit_command(
    formats: set[str],
    env: str | None,
    master: str | None,
    run_options: tuple[str, ...],
    conf_source: str | None = None,
) -> list[str]:
    """Compose the call of spark-submit: what takes effect only there, and the run."""
    settings = session.settings_for(*formats)
    settings["spark.master"] = master or settings.get("spark.master", "local[*]")
    settings.setdefault("spark.submit.deployMode", "client")
    _refuse_impossible(settings, conf_source, run_options)
    settings.update(_pythons(settings))
    defaults = installed.spark_defaults()  # which go before what a run sets later
    decided = {
        k: session.text(v)
        for k, v in settings.items()
        if k in defaults or _is_decided(k)
    }
    if _runs_in_image(settings):  # which has the jars
        jars = _list(decided.get(session.JARS))
        inside = [jar for jar in jars if jar.startswith(session.IN_IMAGE)]
        decided = {k: v for k, v in decided.items() if not k.startswith(session.JARS)}
        decided |= {session.JARS: ",".join(inside)} if inside else {}
    _refuse_secrets(decided)
    script, packed, files = _places(settings)
    if files:
        decided[FILES] = ",".join(filter(None, [decided.get(FILES), files]))
    command = [_spark_submit()]
    for key in sorted(decided, key=lambda k: (k not in OPTIONS, k)):
        option = OPTIONS.get(key)
        value = decided[key]
        command += [option, value] if option else ["--conf", f"{key}={value}"]
    command += [script, f"--conf-source={conf_source or packed}"]
    return [*command, *([f"--env={env}"] if env else []), *run_options]


def jars_of(formats: set[str], folder: Path) -> list[str]:
    """Download what spark-submit would, into a folder; return what is there then."""
    settings = session.settings_for(*formats)
    folder.mkdir(parents=True, exist_ok=True)  # an image copies it, even if it is empty
    named = _list(settings.get(session.JARS))
    named = [jar for jar in named if not jar.startswith(session.IN_IMAGE)]
    own = [jar for name in named for jar in _matching(name)]
    found = [_copied(jar, folder) for jar in own]
    if packages := _list(settings.get(session.PACKAGES)):
        excludes = _list(settings.get("spark.jars.excludes"))
        repositories = _list(settings.get("spark.jars.repositories"))
        found += download(packages, folder, excludes, sparks_own(), repositories)
    names = {name_of(jar) for jar in found}
    for jar in folder.glob("*.jar"):
        if name_of(jar.name) in names and jar.name not in found:
            jar.unlink()  # of another version, of which Java would take any
    return sorted(found)


def _matching(name: str) -> list[str]:
    """Return the files that a name with a star means; of any other, the name."""
    return sorted(glob(on_disk(name) or name)) or [name]


def _copied(jar: str, folder: Path) -> str:
    """Put a jar of the user's own beside those of Maven's."""
    file = Path(on_disk(jar) or jar)
    if not file.is_file():
        raise StreamsError(
            f"spark.jars in spark.yml names {without_user(jar)}, which is no file of "
            "this machine; name one, or let packages name what Maven has"
        )
    if file.resolve().parent != folder.resolve():
        shutil.copy(file, folder)
    return file.name


def _list(text: str | None) -> list[str]:
    return text.split(",") if text else []


def _is_decided(key: str) -> bool:
    """Whether a setting takes effect only when spark-submit knows it."""
    is_at_launch = session.AT_LAUNCH.match(key) or key.startswith(FIRST)
    return key in OPTIONS or bool(is_at_launch)


def _pythons(settings: dict[str, Any]) -> dict[str, str]:
    """Let a driver on this machine run in this environment, whatever workers run in."""
    if settings["spark.submit.deployMode"] == "cluster":
        return {}
    is_local = settings["spark.master"].startswith("local")
    workers = {"spark.pyspark.python": sys.executable} if is_local else {}
    driver = settings.get(DRIVERS_PYTHON, sys.executable)
    return {**workers, DRIVERS_PYTHON: driver}


def _places(settings: dict[str, Any]) -> tuple[str, str, str | None]:
    """Return the script, the configuration, and what must travel with them."""
    project = session.project_path()
    if settings["spark.submit.deployMode"] == "client":
        return str(project / ENTRY), str(project / "conf"), None
    if _runs_in_image(settings):
        return f"local://{IN_IMAGE}/run.py", f"{IN_IMAGE}/conf/{CONF}", None
    archive = project / "dist" / CONF
    if not archive.exists():
        raise StreamsError(
            f"{session.shown(str(archive))} is not there, and a driver that runs in the "
            "cluster finds no other configuration; type kedro package"
        )
    conf = project / "conf"
    packed = [f for f in conf.rglob("*") if f.relative_to(conf).parts[0] != "local"]
    if _newest(packed) > archive.stat().st_mtime:
        raise StreamsError(
            f"{session.shown(str(archive))} is older than what is in conf/, and a driver "
            "that runs in the cluster would have the old configuration; type kedro package"
        )
    return str(project / ENTRY), archive.name, str(archive)


def _newest(paths: Iterable[Path]) -> float:
    """Return when one of some files was changed last."""
    return max((p.stat().st_mtime for p in paths if p.is_file()), default=0.0)


def _runs_in_image(settings: dict[str, Any]) -> bool:
    """Whether the driver runs in a container of Kubernetes."""
    in_cluster = settings["spark.submit.deployMode"] == "cluster"
    return in_cluster and settings["spark.master"].startswith("k8s://")


def _refuse_impossible(
    settings: dict[str, Any], conf_source: str | None, options: tuple[str, ...]
) -> None:
    cluster.refuse_unknown_master(settings["spark.master"])
    known = settings.keys() | installed.spark_defaults()
    _refuse_kubernetes_without_image(settings, known)
    _refuse_archives_that_cannot_travel(settings, known)
    if not any(map(SENT.search, known - settings.keys())):  # what they bring is unknown
        _refuse_python_that_nothing_brings(settings)
    if settings["spark.submit.deployMode"] == "cluster":
        _refuse_what_a_driver_elsewhere_lacks(settings, conf_source, options)


def _refuse_kubernetes_without_image(settings: dict[str, Any], known: set[str]) -> None:
    is_kubernetes = settings["spark.master"].startswith("k8s://")
    if is_kubernetes and not any(k.endswith(IMAGE) for k in known):
        raise StreamsError(
            f"spark.kubernetes.{IMAGE} is not in spark.yml, and Kubernetes runs nothing "
            "without an image; add it, see docs/deploy.md"
        )


def _refuse_archives_that_cannot_travel(
    settings: dict[str, Any], known: set[str]
) -> None:
    for file, _ in _archives(settings):
        if _runs_in_image(settings) and UPLOAD not in known:
            raise StreamsError(
                f"spark.archives in spark.yml names {session.shown(file)}, and a driver "
                "in a pod does not see this machine; the image has all it needs: remove "
                "spark.archives and spark.pyspark.python, see docs/deploy.md"
            )
        if not glob(file):
            raise StreamsError(
                f"spark.archives in spark.yml names {session.shown(file)}, which is not "
                "there; make it, see docs/deploy.md, or remove the line"
            )


def _refuse_what_a_driver_elsewhere_lacks(
    settings: dict[str, Any], conf_source: str | None, options: tuple[str, ...]
) -> None:
    if settings["spark.master"].startswith("spark://"):
        raise StreamsError(
            "spark.submit.deployMode is cluster, which a standalone cluster does not "
            "offer to Python; remove it, and submit from a machine that stays on"
        )
    if any(re.match("(--config|-c)(=|$)", option) for option in options):
        raise StreamsError(
            "--config names a file of this machine, which a driver in the cluster does "
            "not see; write what is in it as options"
        )
    if conf_source:
        raise StreamsError(
            "--conf-source is for a driver on this machine; one in the cluster has the "
            "archive that kedro package makes of conf/: leave the option out"
        )


def _refuse_python_that_nothing_brings(settings: dict[str, Any]) -> None:
    if settings["spark.master"].startswith("local"):
        return
    python = str(settings.get("spark.pyspark.python", ""))
    folder = python.removeprefix("./").partition("/")[0]
    sent = [i for k, v in settings.items() if SENT.search(k) for i in _list(str(v))]
    names = {item.partition("#")[2] or item.rpartition("/")[2] for item in sent}
    if python.startswith("./") and folder not in names:
        raise StreamsError(
            f"spark.pyspark.python in spark.yml is {python}, and nothing brings the "
            f"folder {folder} there; write spark.archives: "
            f"dist/environment.tar.gz#{folder}, see docs/deploy.md"
        )


def _archives(settings: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the archives of this machine, each with the folder it becomes there."""
    named = _list(settings.get("spark.archives"))
    parts = [name.partition("#")[::2] for name in named]
    files = [(re.sub("^file:/+", "/", file), folder) for file, folder in parts]
    return [(file, folder) for file, folder in files if not is_remote(file)]


def older_code() -> Iterator[str]:
    """Find environments of executors that have other code than the one that is here."""
    settings = session.settings_for()
    workers = str(settings.get("spark.pyspark.python", ""))
    for file, folder in _archives(settings):
        is_ours = folder and workers.startswith(f"./{folder}/") and Path(file).is_file()
        code = (session.project_path() / "src").rglob("*.py")
        if is_ours and _newest(code) > Path(file).stat().st_mtime:
            yield (
                f"{session.shown(file)} is older than what is in src/, so that the "
                "cluster runs older code than is here; make it anew, see docs/deploy.md"
            )


def _refuse_secrets(decided: dict[str, str]) -> None:
    """Keep passwords off a command line, which everybody on a machine can read."""
    for key, value in decided.items():
        named = re.search(SECRET, key, re.IGNORECASE) or SECRET_VALUE.search(value)
        is_secret = named and not REFERENCE.search(key)
        if is_secret or USER_IN_URL.search(value):
            raise StreamsError(
                f"'{key}' in spark.yml would be on a command line that everybody can "
                f"read; {_safe_place(key)}"
            )


def _safe_place(key: str) -> str:
    if key.startswith(session.JARS):
        return "put it into a file that spark.jars.ivySettings names"
    if match := re.fullmatch(r"spark\.kubernetes\.driverEnv\.(\w+)", key):
        return (
            "let Kubernetes keep it, and write "
            f"spark.kubernetes.driver.secretKeyRef.{match[1]}: SECRET:KEY"
        )
    if key.endswith("JavaOptions"):
        return "let Java find it in a file, or in a variable of the environment"
    return (
        "put it into credentials.yml of the environment, and name its entry with "
        "credentials: NAME in spark.yml"
    )


def _spark_submit() -> str:
    installed.refuse_other_home()
    name = "spark-submit.cmd" if os.name == "nt" else "spark-submit"
    return str(installed.spark_home() / "bin" / name)
