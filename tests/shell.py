"""Commands that are run to their end, and conditions that are waited for."""

import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEADLINE = 300  # seconds; only ever reached by a failure


def sh(*command: object, cwd: Path | None = None, env: dict | None = None, **kwargs):
    """Run a command to its end; the caller looks at code and output."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        **kwargs,
    )


def ok(*command: object, **kwargs) -> str:
    """Run a command that must succeed, and return what it printed."""
    result = sh(*command, **kwargs)
    output = result.stdout + result.stderr
    assert result.returncode == 0, f"{command} exited {result.returncode}:\n{output}"
    return output


def wait_until(condition: Callable[[], object], what: str) -> None:
    """Wait for a condition, and fail with its name when it does not come."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


def answers(port: int) -> bool:
    """Whether somebody listens at a port of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def fetch(url: str, accept: str = "*/*") -> str:
    """Return a page that a server of this machine shows."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return answer.read().decode()
