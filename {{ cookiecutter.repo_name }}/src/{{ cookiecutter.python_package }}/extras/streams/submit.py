"""The command line that hands a run to a cluster, out of ``spark.yml``."""

import os
import re
import sys
from pathlib import Path
from typing import Any

from . import session
from .errors import SECRET, SECRET_VALUE, StreamsError
from .jars import download, sparks_own

PACKAGE = __name__.partition(".")[0]
ENTRY = "deploy/run.py"  # what spark-submit runs
IN_IMAGE = "/opt/{{ cookiecutter.repo_name }}"  # where the Dockerfile puts it
CONF = f"conf-{PACKAGE}.tar.gz"  # what kedro package makes of conf/

FILES = "spark.files"

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
    formats: set[str], env: str | None, master: str | None, run_options: tuple[str, ...]
) -> list[str]:
    """Compose the call of spark-submit: what takes effect only there, and the run."""
    settings = session.settings_for(*formats)
    settings["spark.master"] = master or settings.get("spark.master", "local[*]")
    settings.setdefault("spark.submit.deployMode", "client")
    _refuse_impossible(settings)
    settings.update(_pythons(settings))
    decided = {k: session.text(v) for k, v in settings.items() if _is_decided(k)}
    if _runs_in_image(settings):  # which has the jars
        decided = {k: v for k, v in decided.items() if not k.startswith("spark.jars")}
    _refuse_secrets(decided)
    script, conf_source, files = _places(settings)
    if files:
        decided[FILES] = ",".join(filter(None, [decided.get(FILES), files]))
    command = [_spark_submit()]
    for key in sorted(decided, key=lambda k: (k not in OPTIONS, k)):
        option = OPTIONS.get(key)
        value = decided[key]
        command += [option, value] if option else ["--conf", f"{key}={value}"]
    command += [script, f"--conf-source={conf_source}"]
    return [*command, *([f"--env={env}"] if env else []), *run_options]


def jars_of(formats: set[str], folder: Path) -> list[str]:
    """Download what spark-submit would, into a folder; return what is there then."""
    settings = session.settings_for(*formats)
    packages = _list(settings.get(session.PACKAGES))
    if not packages:
        return []
    excludes = _list(settings.get("spark.jars.excludes"))
    return download(packages, folder, excludes, sparks_own())


def _list(text: str | None) -> list[str]:
    return text.split(",") if text else []


def _is_decided(key: str) -> bool:
    """Whether a setting takes effect only when spark-submit knows it."""
    is_at_launch = session.AT_LAUNCH.match(key) or key.startswith("spark.driver.")
    return key in OPTIONS or bool(is_at_launch)


def _pythons(settings: dict[str, Any]) -> dict[str, str]:
    """Let a driver on this machine run in this environment, whatever workers run in."""
    if settings["spark.submit.deployMode"] == "cluster":
        return {}
    is_local = settings["spark.master"].startswith("local")
    workers = {"spark.pyspark.python": sys.executable} if is_local else {}
    return {**workers, "spark.pyspark.driver.python": sys.executable}


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
    return str(project / ENTRY), archive.name, str(archive)


def _runs_in_image(settings: dict[str, Any]) -> bool:
    """Whether the driver runs in a container of Kubernetes."""
    in_cluster = settings["spark.submit.deployMode"] == "cluster"
    return in_cluster and settings["spark.master"].startswith("k8s://")


def _refuse_impossible(settings: dict[str, Any]) -> None:
    mode, master = settings["spark.submit.deployMode"], settings["spark.master"]
    if mode == "cluster" and master.startswith("spark://"):
        raise StreamsError(
            "spark.submit.deployMode is cluster, which a standalone cluster does not "
            "offer to Python; remove it, and submit from a machine that stays on"
        )


def _refuse_secrets(decided: dict[str, str]) -> None:
    """Keep passwords off a command line, which everybody on a machine can read."""
    for key, value in decided.items():
        # Kubernetes has it, or a file.
        is_reference = re.search(r"\.secret(s|KeyRef)\.|(File|Provider)$", key)
        is_secret = re.search(SECRET, key, re.IGNORECASE) and not is_reference
        if is_secret or SECRET_VALUE.search(value):
            raise StreamsError(
                f"'{key}' in spark.yml would be on a command line that everybody can "
                "read; put it into credentials.yml of the environment, and name its "
                "entry with credentials: NAME in spark.yml"
            )


def _spark_submit() -> str:
    name = "spark-submit.cmd" if os.name == "nt" else "spark-submit"
    return str(session.spark_home() / "bin" / name)
