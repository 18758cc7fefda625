"""Ratios, measured side by side in one run: ``make bench``.

Every figure comes from outside the measured process: from the time stamps of
Spark's own commit files, so that the project and plain PySpark are measured alike.
"""

import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import yaml
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
KEDRO = Path(sys.executable).with_name("kedro")
PACKAGE = "bench_project"
ROUNDS = 5
DEADLINE = 300  # seconds that a condition may take
os.environ["KEDRO_DISABLE_TELEMETRY"] = "1"  # it would wait for a network


def main(chosen: list[str]) -> int:
    """Measure, print a table, write JSON, fail if a promise is not kept."""
    parts = {
        "plain": against_plain_spark,
        "settings": against_default_settings,
        "streams": many_streams,
        "supervisor": against_a_bare_wait,
        "stop": time_to_stop,
        "decoding": decoding,
        "registered": decoding_registered,
        "messages": messages,
        "store": calls_to_a_store,
        "choices": choices_for_a_store,
        "refusals": refusals_of_a_store,
        "sinks": one_read_many_sinks,
        "cluster": on_a_cluster,
    }
    file = HERE / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    for name in chosen or parts:
        with tempfile.TemporaryDirectory() as scratch:
            results[name] = parts[name](Path(scratch))
        file.write_text(json.dumps(results, indent=2) + "\n")
    rows = [row for name in parts for row in results.get(name, [])]
    show(rows)
    return 0 if all(row["kept"] for row in rows) else 1


def result(what: str, value: float, promise: str, kept: bool, details: str) -> dict:
    """One row of the table."""
    row = {"what": what, "value": round(value, 3), "promise": promise}
    return {**row, "kept": kept, "details": details}


# --- (a) the project against plain PySpark -----------------------------------


def against_plain_spark(scratch: Path) -> list[dict]:
    """The same job, hand-written and generated, in turns."""
    files, rows, warm_up = 16, 50_000, 4
    readings = make_readings(scratch / "readings", files, rows)
    first: dict[str, list[float]] = {"plain": [], "project": []}
    batch: dict[str, list[float]] = {"plain": [], "project": []}
    for number in range(ROUNDS):
        # Each goes first as often as second: a machine's speed drifts.
        for kind in ("plain", "project")[:: 1 if number % 2 else -1]:
            say(f"plain PySpark against the project: round {number + 1}, {kind}")
            folder = new_project(scratch / f"{kind}-{number}", readings)
            checkpoint = folder / "data/04_checkpoint/processed_sensor"
            command = [sys.executable, HERE / "plain.py", folder]
            if kind == "project":
                command = [*kedro_run("--pipelines=sensor")]
            started = time.time()
            subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
            times = commit_times(checkpoint)[:files]
            first[kind].append(times[0] - started)
            batch[kind] += [b - a for a, b in pairwise(times[warm_up:])]
    begin = medians(first)
    fast = {kind: rows / seconds for kind, seconds in medians(batch).items()}
    return [
        result(
            "time to the first committed batch, against plain PySpark",
            begin["project"] / begin["plain"],
            "at most 1.15",
            begin["project"] / begin["plain"] <= 1.15,
            f"{begin['project']:.1f} s against {begin['plain']:.1f} s, "
            f"median of {ROUNDS}",
        ),
        result(
            "rows per second, against plain PySpark",
            fast["project"] / fast["plain"],
            "at least 0.98",
            fast["project"] / fast["plain"] >= 0.98,
            f"{fast['project']:,.0f} against {fast['plain']:,.0f}, "
            f"median of {len(batch['plain'])} batches in {ROUNDS} runs",
        ),
    ]


# --- (b) our settings against Spark's ----------------------------------------


def against_default_settings(scratch: Path) -> list[dict]:
    """The same windowed micro-batches, under our spark.yml and under Spark's defaults."""
    readings = make_readings(scratch / "small", files=8, rows=1_000)
    defaults = {
        "spark.sql.shuffle.partitions": 200,
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state"
            ".HDFSBackedStateStoreProvider"
        ),
    }
    took = {}
    for kind, settings in (("defaults", defaults), ("ours", {})):
        say(f"a windowed micro-batch: {kind}")
        folder = new_project(scratch / kind, readings)
        overlay = folder / "conf/local/spark.yml"
        overlay.write_text(yaml.safe_dump(settings))
        subprocess.run(
            kedro_run("--pipelines=sensor"),
            cwd=folder,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        times = commit_times(folder / "data/04_checkpoint/processed_sensor")
        warm = [after - before for before, after in pairwise(times[1:])]
        took[kind] = statistics.median(warm)
    ratio = took["defaults"] / took["ours"]
    return [
        result(
            "windowed micro-batch: Spark's defaults against our settings",
            ratio,
            "at least 5",
            ratio >= 5,
            f"{took['defaults']:.2f} s against {took['ours']:.2f} s on "
            f"{os.cpu_count()} cores, median of {len(warm)} batches",
        )
    ]


# --- (c) many streams --------------------------------------------------------


def many_streams(scratch: Path) -> list[dict]:
    """1, 10, 30 and 50 streams in one run: what one more stream costs."""
    measured = {count: measure_streams(scratch, count) for count in (1, 10, 30, 50)}
    return [
        one_more("seconds to start", "s", {n: m[0] for n, m in measured.items()}),
        one_more("live heap", "MB", {n: m[1] for n, m in measured.items()}),
    ]


def one_more(what: str, unit: str, total: dict[int, float]) -> dict:
    """Compare what one more stream costs among many with what it costs among few."""
    few = (total[30] - total[10]) / 20
    many = (total[50] - total[30]) / 20
    totals = ", ".join(f"{n} streams: {value:.0f} {unit}" for n, value in total.items())
    return result(
        f"{what} of one more stream: 30 to 50 against 10 to 30",
        many / few,
        "at most 1.2",  # two runs of the same differ by that much
        many / few <= 1.2,
        f"{many:.2f} {unit} against {few:.2f} {unit}; {totals}",
    )


def measure_streams(scratch: Path, count: int) -> tuple[float, float]:
    """Return seconds until every stream has committed, and the heap in use then."""
    say(f"{count} streams in one run")
    readings = make_readings(scratch / "tiny", files=1, rows=10)
    folder = new_project(scratch / f"many-{count}", readings)
    add_streams(folder, count, "trigger: 1 second")
    log = folder / "log.txt"
    process = subprocess.Popen(
        [KEDRO, "run", "--pipelines=many"],
        cwd=folder,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )
    try:
        await_(lambda: "Starting many_0" in log.read_text(), process)
        started = time.time()
        first = [folder / f"data/checkpoint/{i}/commits/0" for i in range(count)]
        await_(lambda: all(file.exists() for file in first), process)
        seconds = max(file.stat().st_mtime for file in first) - started
        heap = live_heap(process.pid)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    return seconds, heap


def add_streams(folder: Path, count: int, trigger: str = "") -> None:
    """Add a pipeline of streams that all read the same readings."""
    package = folder / "src" / PACKAGE / "pipelines/many"
    package.mkdir()
    (package / "__init__.py").write_text(
        "from kedro.pipeline import Node, Pipeline\n\n\n"
        "def create_pipeline():\n"
        "    return Pipeline([\n"
        "        Node(lambda x: x, 'raw.sensor', f'many_{i}', name=f'n{i}')\n"
        f"        for i in range({count})\n"
        "    ])\n"
    )
    kind = f"{PACKAGE}.extras.datasets.SparkStreamingDataset"
    (folder / "conf/local/catalog.yml").write_text(
        f'"many_{{i}}":\n'
        f"  type: {kind}\n"
        "  file_format: parquet\n"
        "  filepath: data/many/{i}\n"
        "  save_args:\n"
        "    checkpoint: data/checkpoint/{i}\n"
        f"    {trigger}\n"
    )


def java_of(pid: int) -> psutil.Process:
    """Return Spark's Java process."""
    family = psutil.Process(pid).children(recursive=True)
    return next(child for child in family if child.name() == "java")


def live_heap(pid: int) -> float:
    """Return megabytes of objects in Java that are still in use.

    Spark lets go of what batches have broadcast only after a collection has told it
    to, so the first of a few looks still counts that.
    """
    jcmd = ["jcmd", str(java_of(pid).pid), "GC.class_histogram"]
    totals = []
    for _ in range(3):
        table = subprocess.run(jcmd, check=True, capture_output=True, text=True).stdout
        totals.append(int(table.strip().split("\n")[-1].split()[2]) / 2**20)
        time.sleep(1)
    return min(totals)


# --- the supervisor ----------------------------------------------------------


def against_a_bare_wait(scratch: Path) -> list[dict]:
    """1 and 50 streams, supervised and with Spark's own awaitAnyTermination, in turns."""
    readings = make_readings(scratch / "tiny", files=1, rows=10)
    rows = []
    for count in (1, 50):
        say(f"streams: {count}, supervised and merely waited for; seven minutes")
        folder = new_project(scratch / f"supervised-{count}", readings)
        rows.append(compared(count, measured_by("supervised.py", folder, str(count))))
    return rows


def measured_by(script: str, folder: Path, *arguments: str) -> Any:
    """Run a script with a project's code, and return what it printed last."""
    paths = [folder / "src", HERE.parent / "tests"]
    printed = subprocess.run(
        [sys.executable, HERE / script, folder, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return json.loads(printed.strip().split("\n")[-1])


def compared(count: int, pairs: list[list[float]]) -> dict:
    """Compare the sums: single windows differ by a tenth."""
    supervised, bare = (statistics.mean(speeds) for speeds in zip(*pairs, strict=True))
    return result(
        f"rows per second, streams: {count}, supervised against merely waited for",
        supervised / bare,
        "at least 0.98",
        supervised / bare >= 0.98,
        f"{supervised:,.0f} against {bare:,.0f}, mean of {len(pairs)} windows each",
    )


def time_to_stop(scratch: Path) -> list[dict]:
    """From SIGTERM, in the middle of a batch, to the exit, without the batch itself."""
    readings = make_readings(
        scratch / "many", files=50, rows=10
    )  # there is always a next
    folder = new_project(scratch / "stop", readings)
    package = folder / "src" / PACKAGE / "pipelines/slow"
    package.mkdir()
    (package / "__init__.py").write_text((HERE / "slow.py").read_text())
    (folder / "conf/local/catalog.yml").write_text(
        "slow:\n"
        f"  type: {PACKAGE}.extras.datasets.MicroBatchDataset\n"
        "  datasets:\n"
        f"    - type: {PACKAGE}.pipelines.slow.Slow\n"
        "      filepath: data/slow.txt\n"
        "  save_args:\n"
        "    checkpoint: data/checkpoint/slow\n"
    )
    marks, took = folder / "data/slow.txt", []
    for number in range(ROUNDS):
        say(f"stopping, round {number + 1}")
        shutil.rmtree(folder / "data/checkpoint", ignore_errors=True)
        marks.unlink(missing_ok=True)
        process = subprocess.Popen(
            [KEDRO, "run", "--pipelines=slow"], cwd=folder, stdout=subprocess.DEVNULL
        )
        await_(marks.exists, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait() == 0
        assert marks.read_text() == "ended"
        took.append(time.time() - marks.stat().st_mtime)
    seconds = statistics.median(took)
    return [
        result(
            "seconds from the end of the running batch to the exit, after SIGTERM",
            seconds,
            "under 5",
            max(took) < 5,
            f"median of {ROUNDS}; the slowest took {max(took):.1f} s",
        )
    ]


# --- messages of Kafka -------------------------------------------------------


def decoding(scratch: Path) -> list[dict]:
    """Messages that become rows of parquet, by the project and by hand."""
    measured = measured_messages(scratch, "json", "avro")
    return [
        decoded("Kafka, JSON to parquet", measured["json"], 0.98),
        decoded("Kafka, Avro of one schema to parquet", measured["avro"], 0.98),
    ]


def decoding_registered(scratch: Path) -> list[dict]:
    """Messages whose schema a registry has, against those of one schema by hand."""
    measured = measured_messages(scratch, "mixed_ids", "new_id")
    return [
        decoded("Kafka, Avro of two registered versions", measured["mixed_ids"]),
        decoded("Kafka, Avro of a version new to the stream", measured["new_id"]),
    ]


def measured_messages(scratch: Path, *parts: str) -> Any:
    readings = make_readings(scratch / "tiny", files=1, rows=10)
    project = new_project(scratch / "kafka", readings)
    return measured_by("messages.py", project, *parts)


def messages(scratch: Path) -> list[dict]:
    """From topic to topic; ten sinks of one topic."""
    measured = measured_messages(scratch, "latency", "sinks")
    latency, sinks = measured["latency"], measured["sinks"]
    (half, most), (half_by_hand, most_by_hand) = latency["ours"], latency["by hand"]
    return [
        result(
            "Kafka to Kafka, seconds a message takes at 1,000 a second",
            half / half_by_hand,
            "reported",
            True,
            f"p50 {half:.2f} s against {half_by_hand:.2f} s by hand, "
            f"p99 {most:.2f} s against {most_by_hand:.2f} s",
        ),
        result(
            "seconds that ten sinks of one topic take, against ten by hand",
            sinks["ours"] / sinks["by hand"],
            "reported",
            True,
            f"{sinks['ours']:.1f} s against {sinks['by hand']:.1f} s",
        ),
    ]


def decoded(what: str, speeds: dict[str, list[float]], least: float = 0.0) -> dict:
    """Compare rows per second with those of hand-written PySpark beside it."""
    ratios = [a / b for a, b in zip(speeds["ours"], speeds["by hand"], strict=True)]
    ratio, usual = statistics.median(ratios), medians(speeds)
    return result(
        f"{what}: rows per second, against by hand",
        ratio,
        f"at least {least}" if least else "reported",
        ratio >= least,
        f"{usual['ours']:,.0f} against {usual['by hand']:,.0f}, median of "
        f"{len(ratios)} rounds, which lie from {min(ratios):.2f} to {max(ratios):.2f}",
    )


# --- an object store ---------------------------------------------------------

STORE = {  # what is counted
    "defaults": "Spark's defaults",
    "files": "conf/s3",
    "shared_disk": "conf/s3, checkpoints on a shared disk",
    "micro_batches": "conf/s3, MicroBatchDataset of parquet files",
    "committer": "conf/s3, the same by Hadoop's directory committer",
    "delta": "conf/s3, Delta",
    "iceberg": "conf/s3, Iceberg",
}
MOST_CALLS = {"shared_disk": 37}  # a batch


def calls_to_a_store(scratch: Path) -> list[dict]:
    """Calls of a batch that reads a file and writes one, by a counting proxy."""
    readings = make_readings(scratch / "tiny", files=1, rows=10)
    project = new_project(scratch / "store", readings)
    measured = measured_by("store.py", project, "sinks")
    a_batch, an_hour = {}, {}
    rows = []
    for name, what in STORE.items():
        calls, batches = measured[name]["calls"], measured[name]["batches"]
        total, most = sum(calls.values()), MOST_CALLS.get(name)
        a_batch[name] = total / batches
        an_hour[name] = total * 3600 / measured[name]["seconds"]
        row = result(
            f"calls to S3 a batch: {what}",
            a_batch[name],
            f"at most {most}" if most else "reported",
            most is None or a_batch[name] <= most,
            f"{calls_by_kind(measured[name])}; "
            f"{measured[name]['reading'] / batches:.1f} of them to the files "
            f"that are read; {an_hour[name]:,.0f} an hour",
        )
        rows.append(row)
    compared_with_defaults = {
        "calls to S3 a batch": (a_batch, 0.75),
        "calls to S3 an hour": (an_hour, 0.1),
    }
    for what, (calls, most) in compared_with_defaults.items():
        share = calls["files"] / calls["defaults"]
        row = result(
            f"{what}: conf/s3 against Spark's defaults",
            share,
            f"at most {most}",
            share <= most,
            f"{calls['files']:,.0f} against {calls['defaults']:,.0f}",
        )
        rows.append(row)
    return rows


CHOICES = {  # of conf/s3
    "shipped": "conf/s3",
    "no_flags": "without S3A's performance flags",
    "usual_manager": "with Spark's usual manager of checkpoints",
    "neither": "with neither",
    "rare_compaction": "the sink's log compacted every 50 batches, not 10",
    "no_deletion": "no file of the sink's log ever deleted",
    "retention": "the sink's log forgets files (retention)",
}


def choices_for_a_store(scratch: Path) -> list[dict]:
    """What each setting of conf/s3 saves, and what others would."""
    readings = make_readings(scratch / "tiny", files=1, rows=10)
    project = new_project(scratch / "choices", readings)
    measured = measured_by("store.py", project, "choices")
    return [
        result(
            f"calls to S3 a batch, batches without a pause: {what}",
            sum(measured[name]["calls"].values()) / measured[name]["batches"],
            "reported",
            True,
            calls_by_kind(measured[name]),
        )
        for name, what in CHOICES.items()
    ]


def refusals_of_a_store(scratch: Path) -> list[dict]:
    """How long it takes to be told that a store is not what it should be."""
    readings = make_readings(scratch / "tiny", files=1, rows=10)
    project = new_project(scratch / "refusals", readings)
    measured = measured_by("store.py", project, "refusals")
    seconds = measured["seconds"]
    details = ", ".join(f"{name} {value:.1f} s" for name, value in seconds.items())
    slowest = max(seconds.values())
    return [
        result(
            "seconds from kedro run to its exit, when a store refuses: the slowest",
            slowest,
            "under 30",
            slowest < 30,
            details,
        ),
        result(
            "megabytes of jars for conf/s3",
            measured["megabytes"],
            "reported",
            True,
            "without Google's and Azure's halves",
        ),
    ]


def calls_by_kind(measured: dict) -> str:
    """Write how often a batch has called what."""
    counts = sorted(measured["calls"].items())
    return ", ".join(f"{n / measured['batches']:.1f} {kind}" for kind, n in counts)


# --- one read, many sinks ----------------------------------------------------


def one_read_many_sinks(scratch: Path) -> list[dict]:
    """What several sinks of the same rows read, as streams and as datasets of one."""
    readings = make_readings(scratch / "large", files=8, rows=100_000)
    measured = measured_by("sinks.py", new_project(scratch / "sinks", readings))
    rows = []
    for count, ways in measured.items():
        (apart, apart_s), (together, together_s) = ways["streams"], ways["datasets"]
        row = result(
            f"megabytes read for {count} sinks: one MicroBatchDataset against streams",
            together / apart,
            "reported",
            True,
            f"{together:.0f} MB in {together_s:.1f} s against {apart:.0f} MB in "
            f"{apart_s:.1f} s",
        )
        rows.append(row)
    return rows


# --- a cluster ---------------------------------------------------------------


def on_a_cluster(scratch: Path) -> list[dict]:
    """The same jobs on two cores of this machine, and on two workers of a core each."""
    readings = make_readings(scratch / "readings", files=10, rows=50_000)
    measured = measured_by("cluster.py", new_project(scratch / "cluster", readings))
    rows = []
    for job in ("windows", "kafka"):
        here, there = measured[job]["local[2]"], measured[job]["cluster"]
        row = result(
            f"seconds a batch, {job}: two one-core workers against local[2]",
            there / here,
            "reported",
            True,
            f"{there:.2f} s against {here:.2f} s, medians of {measured['batches'][job]} "
            "warm batches, in turns",
        )
        rows.append(row)
    project = measured["start"].pop("project")
    ways = {
        "wheel": "the wheel's own command",
        "submitted": "the wheel by spark-submit",
    }
    for way, seconds in measured["start"].items():
        row = result(
            f"seconds to the first committed batch: {ways[way]} against kedro run",
            seconds / project,
            "reported",
            True,
            f"{seconds:.1f} s against {project:.1f} s, medians of {ROUNDS}",
        )
        rows.append(row)
    return rows


# --- what they share ---------------------------------------------------------


def new_project(parent: Path, readings: Path) -> Path:
    """Generate a project that reads these readings, one file a batch."""
    parent.mkdir()
    subprocess.run(
        [KEDRO, "new", "--starter=spark-streaming", "--name=Bench Project"],
        cwd=parent,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    folder = parent / "bench-project"
    target = folder / "data/01_raw/stream/sensor"
    shutil.rmtree(target)
    target.symlink_to(readings)
    return folder


def kedro_run(*arguments: str) -> list[str]:
    return [str(KEDRO), "run", "--params=streams.until=caught_up", *arguments]


def make_readings(folder: Path, files: int, rows: int) -> Path:
    """Write files of readings: ten sensors, a second apart, older files first."""
    if folder.exists():
        return folder
    folder.mkdir(parents=True)
    for number in range(files):
        lines = ["sensor_id,value,read_at"]
        for row in range(rows):
            second = number * rows // 10 + row // 10
            stamp = time.strftime(
                "%Y-%m-%dT%H:%M:%SZ", time.gmtime(1_772_438_400 + second)
            )
            lines.append(f"s{row % 10},{row % 50 / 2},{stamp}")
        file = folder / f"{number:03}.csv"
        file.write_text("\n".join(lines) + "\n")
        age = time.time() - (files - number)
        os.utime(file, (age, age))
    return folder


def commit_times(checkpoint: Path) -> list[float]:
    """Return when each batch was committed, in order."""
    return [file.stat().st_mtime for file in commits(checkpoint)]


def commits(checkpoint: Path) -> list[Path]:
    """Return the commits that Spark has kept, in order."""
    found = [f for f in (checkpoint / "commits").glob("*") if f.name.isdigit()]
    return sorted(found, key=lambda f: int(f.name))


def batches(checkpoint: Path) -> int:
    """Return how many batches were committed; Spark forgets the old ones."""
    kept = commits(checkpoint)
    return int(kept[-1].name) + 1 if kept else 0


def medians(figures: dict[str, list[float]]) -> dict[str, float]:
    return {kind: statistics.median(values) for kind, values in figures.items()}


def await_(condition: Callable[[], bool], process: subprocess.Popen) -> None:
    """Wait for a condition, as long as the run lives and a deadline allows."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            sys.exit(f"nothing after {DEADLINE} seconds: {process.args}")
        if process.poll() is not None:
            sys.exit(f"the run ended with {process.returncode}: {process.args}")
        time.sleep(0.05)


def say(text: str) -> None:
    Console(stderr=True).print(f"... {text}", style="dim")


def show(results: list[dict]) -> None:
    table = Table("what", "measured", "promised", "", "details")
    for row in results:
        mark = "kept" if row["kept"] else "NOT KEPT"
        table.add_row(
            row["what"], str(row["value"]), row["promise"], mark, row["details"]
        )
    Console(width=150).print(table)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
