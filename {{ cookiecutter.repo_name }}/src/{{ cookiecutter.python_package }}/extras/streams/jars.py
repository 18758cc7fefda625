"""Jars of Maven's, downloaded by the tool that Spark downloads its packages with."""

import re
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.sax.saxutils import quoteattr

from .errors import StreamsError, without_user
from .installed import check_java, spark_home
from .session import ivy_folder, setting


def download(
    packages: list[str],
    folder: Path,
    excludes: list[str],
    own: set[str] | None = None,
    repositories: list[str] | None = None,
) -> list[str]:
    """Put packages (``group:name:version``) and what they need into a folder.

    Jars whose name is among ``own`` are there already, in whichever version.
    ``repositories`` are asked before Maven Central, unless Ivy's settings name others.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as part:
        wanted = Path(part) / "ivy.xml"
        wanted.write_text(_ivy_file(packages, excludes))
        tool = next((spark_home() / "jars").glob("ivy-*.jar"))
        pattern = f"{part}/[artifact]-[revision](-[classifier]).[ext]"
        command = [check_java(), "-jar", str(tool), "-ivy", str(wanted)]
        command += ["-cache", str(ivy_folder() / "cache"), "-retrieve", pattern]
        settings = setting("spark.jars.ivySettings")
        if repositories and not settings:
            settings = f"{part}/settings.xml"
            Path(settings).write_text(_ivy_settings(repositories))
        if settings:
            command += ["-settings", settings]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        found = list(Path(part).glob("*.jar"))
        if done.returncode or not found:
            places = " or ".join([*(repositories or ()), "Maven Central"])
            reason = f"{places}: {last_lines(done.stdout + done.stderr)}"
            raise StreamsError(
                f"{' and '.join(packages)} could not be downloaded from "
                f"{without_user(reason)}; without a way there, name a "
                "mirror in a file of Ivy's settings (spark.jars.ivySettings in "
                f"spark.yml), or copy {ivy_folder()} from a machine that has a way"
            )
        new = [jar for jar in found if name_of(jar.name) not in (own or set())]
        for jar in new:
            jar.replace(folder / jar.name)
    return sorted(jar.name for jar in new)


def sparks_own() -> set[str]:
    """Return the names of the jars that Spark brings, without their versions."""
    return {name_of(jar.name) for jar in (spark_home() / "jars").glob("*.jar")}


def name_of(jar: str) -> str:
    """Return what a jar is called without its version."""
    return re.split(r"-\d", jar)[0]


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


def _ivy_settings(repositories: list[str]) -> str:
    others = "".join(
        f'<ibiblio name="repository-{number}" m2compatible="true" root={quoteattr(root)}/>'
        for number, root in enumerate(repositories)
    )
    return (
        '<ivysettings><settings defaultResolver="all"/><resolvers>'
        f'<chain name="all" returnFirst="true">{others}<ibiblio name="central" m2compatible="true"/>'
        "</chain></resolvers></ivysettings>"
    )


def last_lines(text: str) -> str:
    """Return what a program said in the end, in one line."""
    return " | ".join(text.strip().splitlines()[-3:])
