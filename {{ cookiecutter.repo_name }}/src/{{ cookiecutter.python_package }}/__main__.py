"""Run the packaged project: ``python -m {{ cookiecutter.python_package }}``."""

import sys
from pathlib import Path
from typing import Any

from kedro.config import MissingConfigException
from kedro.framework.cli.utils import find_run_command
from kedro.framework.project import configure_project


def main(*args: Any, **kwargs: Any) -> Any:
    """Take the options of ``kedro run``, and exit with its code."""
    package_name = Path(__file__).parent.name
    configure_project(package_name)
    kwargs["standalone_mode"] = not hasattr(sys, "ps1")
    kwargs["prog_name"] = "run"  # the part of a --config file that is read
    try:
        return find_run_command(package_name)(*args, **kwargs)
    except MissingConfigException as error:
        given = [str(word) for word in (args[0] if args else sys.argv[1:])]
        sys.exit(f"Error: {error}\n{_advice(given, package_name)}")


def _advice(given: list[str], package_name: str) -> str:
    if any(word.startswith("--conf-source") for word in given):
        return "Look at --conf-source, and at --env: it names a folder in there"
    return (
        "A wheel has no configuration: name its folder, or the archive of kedro "
        f"package, with --conf-source=conf-{package_name}.tar.gz"
    )


if __name__ == "__main__":
    main()
