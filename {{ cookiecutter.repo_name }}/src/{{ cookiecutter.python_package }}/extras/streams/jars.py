"""Jars of Maven's, downloaded by the tool that Spark downloads its packages with."""

import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from .errors import StreamsError
from .session import check_java, ivy_folder, ivy_settings, spark_home


def download(
    packages: list[str], folder: Path, excludes: list[str], own: set[str] | None = None
) -> list[str]:
    """Put packages (``group:name:version``) and what they need into a folder.

    Jars whose name is among ``own`` are there already, in whichever version.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as part:
        wanted = Path(part) / "ivy.xml"
        wanted.write_text(_ivy_file(packages, excludes))
        tool = next((spark_home() / "jars").glob("ivy-*.jar"))
        pattern = f"{part}/[artifact]-[revision](-[classifier]).[ext]"
        command = [check_java(), "-jar", str(tool), "-ivy", str(wanted)]
        command += ["-cache", str(ivy_folder() / "cache"), "-retrieve", pattern]
        if mirror := ivy_settings():
            command += ["-settings", mirror]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = list(Path(part).glob("*.jar"))
        if done.returncode or not found:
            raise StreamsError(
                f"{' and '.join(packages)} could not be downloaded from Maven Central: "
                f"{last_lines(done.stdout + done.stderr)}"
            )
        new = [jar for jar in found if _name(jar) not in (own or set())]
        for jar in new:
            jar.replace(folder / jar.name)
    return sorted(jar.name for jar in new)


def sparks_own() -> set[str]:
    """Return the names of the jars that Spark brings, without their versions."""
    return {_name(jar) for jar in (spark_home() / "jars").glob("*.jar")}


def _name(jar: Path) -> str:
    """Return what a jar is called without its version."""
    return re.split(r"-\d", jar.name)[0]


def _ivy_file(packages: list[str], excludes: list[str]) -> str:
    wanted = "".join(
        '<dependency org="{}" name="{}" rev="{}" conf="*->default"/>'.format(
            *package.split(":")
        )
        for package in packages
    )
    unwanted = "".join(
        '<exclude org="{}" module="{}"/>'.format(*exclude.split(":"))
        for exclude in excludes
    )
    return (
        '<ivy-module version="2.0"><info organisation="local" module="jars"/>'
        f"<dependencies>{wanted}{unwanted}</dependencies></ivy-module>"
    )


def last_lines(text: str) -> str:
    """Return what a program said in the end, in one line."""
    return " | ".join(text.strip().splitlines()[-3:])
