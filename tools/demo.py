"""Generate a project, run its streams on the sample data, show what came out."""

import csv
import re
import shutil
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

NAME, FOLDER = "Cold Store", "cold-store"


def main(scratch: Path) -> None:
    """Do what a new user does, and end by itself."""
    console = Console()
    project = scratch / FOLDER
    shutil.rmtree(project, ignore_errors=True)
    scratch.mkdir(parents=True, exist_ok=True)

    console.rule(f'kedro new --starter=spark-streaming --name="{NAME}"')
    run("kedro", "new", "--starter=spark-streaming", f"--name={NAME}", cwd=scratch)

    console.rule("pip install -e .")
    environment = scratch / "venv"
    run("uv", "venv", "-q", "--allow-existing", str(environment))
    python = environment / "bin" / "python"
    run("uv", "pip", "install", "-q", "--python", str(python), "-e", str(project))

    console.rule("kedro run --params=streams.until=caught_up")
    kedro = environment / "bin" / "kedro"
    run(str(kedro), "run", "--params=streams.until=caught_up", cwd=project)

    console.rule("what the streams wrote")
    for title, pattern in [
        ("data/02_intermediate/inventory: deliveries", "02_intermediate/inventory"),
        ("data/03_primary/stock.csv: units on the shelf", "03_primary"),
        ("data/03_primary/sensor: average per window", "03_primary/sensor"),
    ]:
        console.print(table(title, sorted((project / "data" / pattern).glob("*.csv"))))

    console.rule("next")
    console.print(
        f"cd {project}\n"
        f"source {environment}/bin/activate\n"
        "kedro run                 # live, until Ctrl-C; meanwhile, in another terminal:\n"
        "cp data/01_raw/stream/inventory/deliveries_01.json "
        "data/01_raw/stream/inventory/more.json",
        soft_wrap=True,
        highlight=False,
    )


def run(*command: str, cwd: Path | None = None) -> None:
    """Run a command, and end with its exit code if it fails."""
    code = subprocess.run(command, cwd=cwd).returncode
    if code:
        sys.exit(code)


def table(title: str, files: list[Path]) -> Table:
    """Show the rows of CSV files as one sorted table."""
    rows = [row for file in files for row in csv.DictReader(file.open())]
    result = Table(*(rows[0] if rows else ["nothing"]), title=title, title_style="bold")
    for values in sorted(tuple(row.values()) for row in rows):
        result.add_row(*map(short_time, values))
    return result


def short_time(value: str) -> str:
    """Shorten a timestamp to month, day, hour and minute."""
    return re.sub(r"^\d{4}-(\d\d-\d\d)T(\d\d:\d\d).*", r"\1 \2", value)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
