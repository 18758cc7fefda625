"""Kill a run again and again, and count what was lost or written twice: ``make chaos``.

``kill -9`` of every process of a live run, at random moments, from the start of Java
to the middle of a batch. New files arrive before every start. In the end a bounded run
reads what is left, and the committed output is compared with the input.
"""

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from conftest import Project, new_project, wait_until

FILES = 2  # that arrive before every start
ROWS = 25  # of each
EARLY = 0.2  # of the runs die before their streams have started
LATE = 0.5  # of the runs die after a batch, on however slow a machine
LONGEST = 12.0  # seconds that a run may still live then
PRODUCTS = [f"VEG-{number:02}" for number in range(10)]
ONE_FILE = "    maxFilesPerTrigger: 1\n"
COPY = '''"""int.new_inventory -> copied: a file sink behind a file sink."""

from kedro.pipeline import Node, Pipeline


def copy(deliveries):
    return deliveries.select("sku", "new_stock", "arrived_at")


def create_pipeline():
    return Pipeline([Node(copy, "int.new_inventory", "copied", name="copy")])
'''
COPIED = """
copied:
  type: {package}.extras.datasets.SparkStreamingDataset
  file_format: csv
  filepath: data/03_primary/copied/
  save_args:
    checkpoint: data/04_checkpoint/copied
    header: true
"""


class Chaos:
    """A project under fire."""

    def __init__(self, project: Project, seed: int) -> None:
        self._project = project
        self._random = random.Random(seed)
        self._sent: Counter[tuple[str, str, str]] = Counter()
        self._files = 0
        self.commits_at_kill: list[int] = []
        self._prepare()

    def _prepare(self) -> None:
        """One file a batch, no pause between batches, and a chain of three streams."""
        project, package = self._project, self._project.package
        folder = project.folder / "src" / package / "pipelines/copy"
        folder.mkdir()
        (folder / "__init__.py").write_text(COPY)
        project.edit(
            "conf/base/catalog.yml",
            ("    trigger: 2 seconds", "    trigger: 100 milliseconds"),
            ("    schema: sku STRING, new", f"{ONE_FILE}    schema: sku STRING, new"),
            ("    schema: >-", f"{ONE_FILE}    schema: >-"),
        )
        catalog = project.folder / "conf/base/catalog.yml"
        catalog.write_text(catalog.read_text() + COPIED.format(package=package))
        self._inbox = project.folder / "data/01_raw/stream/inventory"
        for sample in self._inbox.iterdir():
            sample.unlink()

    def feed(self) -> None:
        """Let new files arrive, each at once, as a good sender does."""
        for _ in range(FILES):
            rows = [self._row(number) for number in range(ROWS)]
            part = self._inbox.parent / "part"
            part.write_text("".join(json.dumps(row) + "\n" for row in rows))
            part.rename(self._inbox / f"{self._files:05}.json")
            self._files += 1

    def _row(self, number: int) -> dict:
        row = {
            "sku": self._random.choice(PRODUCTS),
            "new_stock": self._random.randint(1, 100),
            "arrived_at": f"2026-03-02T06:{self._files % 60:02}:{number:02}Z",
        }
        arrived = row["arrived_at"].replace("Z", ".000Z")
        self._sent[row["sku"], str(row["new_stock"]), arrived] += 1
        return row

    def live_and_die(self) -> None:
        """Start a run, and kill all its processes at a random moment.

        Of ten, two die while Spark starts, three from the start of the streams on, and
        five once a batch was committed.
        """
        kind = self._random.random()
        moment = self._random.uniform(0, LONGEST)
        before = self._commits
        with self._project.live("--pipelines=inventory,copy") as run:
            if kind > EARLY:
                run.says("Starting copied")
            if kind > 1 - LATE:
                wait_until(
                    lambda: self._commits > before or run.process.poll() is not None,
                    "a batch",
                )
            try:
                code = run.process.wait(timeout=moment)
            except subprocess.TimeoutExpired:
                run.kill()
            else:
                sys.exit(f"the run ended by itself, with {code}:\n{run.text}")
        self.commits_at_kill.append(self._commits)

    @property
    def _commits(self) -> int:
        return self._project.commits("int_new_inventory")

    def finish(self) -> None:
        """Read what is left, without disturbance."""
        self._project.run("--pipelines=inventory,copy")

    def report(self) -> dict[str, dict[str, int]]:
        """Compare, for each sink, what was sent with what was committed."""
        shelf: Counter[str] = Counter()
        for (sku, units, _), count in self._sent.items():
            shelf[sku] += int(units) * count
        with (self._project.folder / "data/03_primary/stock.csv").open() as file:
            stock = Counter(
                {row["sku"]: int(row["units"]) for row in csv.DictReader(file)}
            )
        return {
            "int.new_inventory (files)": _compare(
                self._sent, self._committed("data/02_intermediate/inventory")
            ),
            "copied (files behind files)": _compare(
                self._sent, self._committed("data/03_primary/copied")
            ),
            "processed.stock (units, behind files)": _compare(shelf, stock),
        }

    def _committed(self, folder: str) -> Counter[tuple[str, str, str]]:
        """Read the files that Spark's own list says are part of the output."""
        rows: Counter[tuple[str, str, str]] = Counter()
        for path in sorted(committed_files(self._project.folder / folder)):
            with open(path) as file:
                for row in csv.DictReader(file):
                    rows[row["sku"], row["new_stock"], row["arrived_at"]] += 1
        return rows


def committed_files(output: Path) -> set[str]:
    """Return the files that are part of a file sink's output."""
    log = output / "_spark_metadata"
    return {
        json.loads(line)["path"].removeprefix("file://")
        for entry in log.iterdir()
        if entry.name.removesuffix(".compact").isdigit()
        for line in entry.read_text().splitlines()[1:]
    }


def _compare(sent: Counter, found: Counter) -> dict[str, int]:
    return {
        "sent": sent.total(),
        "found": found.total(),
        "lost": (sent - found).total(),
        "doubled": (found - sent).total(),
    }


def attack(folder: Path, kills: int, seed: int) -> tuple[Chaos, dict]:
    """Generate a project, kill its runs, let the last one end, and compare."""
    chaos = Chaos(new_project(folder, "Cold Store"), seed)
    for number in range(kills):
        chaos.feed()
        chaos.live_and_die()
        kept = chaos.commits_at_kill[-1]
        print(f"kill {number + 1} of {kills}, {kept} commits kept", flush=True)
    chaos.feed()
    chaos.finish()
    return chaos, chaos.report()


def main() -> int:
    """Run from the command line; exit 1 if a row was lost or doubled."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    given = parser.parse_args()
    print(f"{given.kills} kills, seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        _, report = attack(Path(folder), given.kills, given.seed)
    print(json.dumps({"kills": given.kills, "seed": given.seed, **report}, indent=2))
    return int(any(sink["lost"] or sink["doubled"] for sink in report.values()))


if __name__ == "__main__":
    sys.exit(main())
