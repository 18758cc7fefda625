"""Make the pictures of the README: the pipelines as kedro-viz draws them."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

KEDRO = Path(sys.executable).with_name("kedro")
DEADLINE = 120  # seconds


def main(target: Path) -> None:
    """Generate a project, serve its picture, and photograph it."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("a browser is needed: apt install chromium")
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        new = [KEDRO, "new", "--starter=spark-streaming", "--name=Cold Store"]
        subprocess.run(new, cwd=scratch, check=True, stdout=subprocess.DEVNULL)
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        viz = [
            KEDRO,
            "viz",
            "run",
            "--no-browser",
            "--host=127.0.0.1",
            f"--port={port}",
        ]
        folder = Path(scratch) / "cold-store"
        server = subprocess.Popen(viz, cwd=folder, start_new_session=True)
        try:
            page = f"http://127.0.0.1:{port}/"
            wait_for(page + "api/main", server)
            photograph(browser, page, scratch, target.resolve() / "pipelines.png")
        finally:
            os.killpg(server.pid, signal.SIGTERM)  # it has processes of its own
            server.wait()


def wait_for(address: str, server: subprocess.Popen) -> None:
    """Wait until the page can be had."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline and server.poll() is None:
        try:
            urllib.request.urlopen(address, timeout=5).close()
            return
        except OSError:
            time.sleep(0.5)
    sys.exit("kedro viz did not answer")


def photograph(browser: str, page: str, scratch: str, picture: Path) -> None:
    """Let a headless browser draw the page."""
    subprocess.run(
        [
            browser,
            *("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"),
            *("--no-first-run", "--disable-background-networking", "--disable-sync"),
            *("--disable-component-update", f"--user-data-dir={scratch}/browser"),
            *("--window-size=1400,900", "--virtual-time-budget=20000"),
            f"--screenshot={picture}",
            page,
        ],
        check=True,
        capture_output=True,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
