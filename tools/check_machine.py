"""Say in one sentence what a machine lacks, before anything is installed."""

import re
import shutil
import subprocess
import sys

PYTHON, JAVA = (3, 10), 17


def lack() -> str | None:
    """Return what is missing or too old, or nothing."""
    if sys.version_info < PYTHON:
        return "Python 3.10 or newer is needed; try: make PYTHON=python3.12 ..."
    java = shutil.which("java")
    if java is None:
        return (
            f"Java {JAVA} or newer is needed, and there is none on the PATH; install it "
            f"(Debian, Ubuntu: apt install openjdk-{JAVA}-jre-headless; macOS: brew "
            f"install openjdk@{JAVA})"
        )
    answer = subprocess.run([java, "-version"], capture_output=True, text=True)
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    if version and int(version[1]) < JAVA:
        return f"Java {JAVA} or newer is needed, and {java} is Java {version[1]}"
    return None


if __name__ == "__main__":
    sys.exit(lack())
