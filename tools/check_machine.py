"""Say in one sentence what a machine lacks, before anything is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

PYTHON, JAVA = (3, 10), 17


def lack() -> str | None:
    """Return what is missing or too old, or nothing."""
    if sys.version_info < PYTHON:
        return "Python 3.10 or newer is needed; try: make PYTHON=python3.12 ..."
    advice = (
        f"; install Java {JAVA} (Debian, Ubuntu: apt install openjdk-{JAVA}-jre-headless; "
        f"macOS: brew install openjdk@{JAVA}) and, if it is not the first on the PATH, "
        "set JAVA_HOME"
    )
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None)
    if java is None:
        place = f"in JAVA_HOME ({home})" if home else "on the PATH"
        return f"Java {JAVA} or newer is needed, and there is none {place}{advice}"
    answer = subprocess.run([java, "-version"], capture_output=True, text=True)
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    if version is None or int(version[1]) < JAVA:
        found = f"Java {version[1]}" if version else "none"
        return f"Java {JAVA} or newer is needed, and {java} is {found}{advice}"
    return None


if __name__ == "__main__":
    sys.exit(lack())
