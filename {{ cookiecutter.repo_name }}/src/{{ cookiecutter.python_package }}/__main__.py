"""Run the packaged project: ``python -m {{ cookiecutter.python_package }}``."""

import sys
from pathlib import Path
from typing import Any

from kedro.framework.cli.utils import find_run_command
from kedro.framework.project import configure_project


def main(*args: Any, **kwargs: Any) -> Any:
    """Take the options of ``kedro run``, and exit with its code."""
    package_name = Path(__file__).parent.name
    configure_project(package_name)
    kwargs["standalone_mode"] = not hasattr(sys, "ps1")
    return find_run_command(package_name)(*args, **kwargs)


if __name__ == "__main__":
    main()
