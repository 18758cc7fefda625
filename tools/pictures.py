"""Make the pictures of the README: the pipelines, and the table of a real run."""

import io
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import pexpect
import pyte
from rich.console import Console

KEDRO = Path(sys.executable).with_name("kedro")
DEADLINE = 120  # seconds
WIDTH, HEIGHT = 80, 40
TEMPLATE = Path(__file__).parents[1] / "{{ cookiecutter.repo_name }}"
STREAMS = ("int.malformed", "int.new_inventory", "processed.sensor", "processed.stock")


def main(target: Path) -> None:
    """Generate a project, and photograph it at rest and at work."""
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("a browser is needed: apt install chromium")
    target.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        new = [KEDRO, "new", "--starter=spark-streaming", "--name=Cold Store"]
        subprocess.run(new, cwd=scratch, check=True, stdout=subprocess.DEVNULL)
        project = Path(scratch) / "cold-store"
        draw_table(project, target / "table.svg")
        shutil.copy(target / "table.svg", TEMPLATE / "docs")
        draw_pipelines(browser, project, target.resolve() / "pipelines.png")


def draw_table(project: Path, picture: Path) -> None:
    """Run the streams in a terminal of 80 columns, and keep what it shows."""
    screen = pyte.Screen(WIDTH, HEIGHT)
    stream = pyte.Stream(screen)
    run = pexpect.spawn(
        str(KEDRO),
        ["run"],
        cwd=project,
        dimensions=(HEIGHT, WIDTH),
        encoding="utf-8",
        env={**os.environ, "TERM": "xterm"},
        timeout=DEADLINE,
    )
    while not all(
        re.search(f"{name} +waiting +\\d", "\n".join(screen.display))
        for name in STREAMS
    ):
        stream.feed(run.read_nonblocking(size=4096, timeout=DEADLINE))
    run.sendintr()
    run.expect(pexpect.EOF)
    lines = [line.rstrip() for line in screen.display]
    begin = next(i for i, line in enumerate(lines) if line.startswith("stream "))
    console = Console(record=True, width=WIDTH, file=io.StringIO())
    console.print(
        "$ kedro run", *filter(None, lines[begin:]), sep="\n", highlight=False
    )
    svg = console.export_svg(title="Cold Store")
    # Without the fonts that rich would let the reader's browser load from elsewhere.
    picture.write_text(re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.DOTALL))


def draw_pipelines(browser: str, project: Path, picture: Path) -> None:
    """Serve the pipelines with kedro-viz, and let a browser draw them."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    viz = [KEDRO, "viz", "run", "--no-browser", "--host=127.0.0.1", f"--port={port}"]
    server = subprocess.Popen(viz, cwd=project, start_new_session=True)
    try:
        page = f"http://127.0.0.1:{port}/"
        wait_for(page + "api/main", server)
        photograph(browser, page, str(project.parent), picture)
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
            *("--window-size=2100,1300", "--virtual-time-budget=20000"),
            f"--screenshot={picture}",
            page,
        ],
        check=True,
        capture_output=True,
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
