"""Calls to an object store, counted by a proxy in front of a real S3 server.

Takes the folder of a generated project, and what to compare: ``sinks``, ``choices`` that
conf/s3 makes for one, or ``refusals``. The last line it prints is JSON: for each what was
called, how often for reading, during how many batches and seconds; of refusals, how many
seconds each takes, and what is downloaded. A stream reads a file a batch and stores its
rows. Nothing but what is counted differs, and all keep ten batches in their logs, so that
deleting old ones, which belongs to every batch, begins early.
"""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import yaml
from bench_project.extras.streams.installed import hadoop_package
from object_store import BUCKET, Proxy, object_store
from pyspark.sql import SparkSession
from run import KEDRO, PACKAGE, await_, kedro_run, say

WARM_UP, MEASURED = 15, 10  # batches; Spark compacts its logs every tenth
CYCLE = 50  # batches in which every choice compacts its logs at least once
SOURCE = "01_raw"  # the folder of the files that are read
SCHEMA = "sensor_id STRING, value DOUBLE, read_at TIMESTAMP"
READING = "sensor_id,value,read_at\ns1,4.0,2026-03-02T08:00:00Z\n"
RETAINED = "spark.sql.streaming.minBatchesToRetain"
PIPELINE = """\
from kedro.pipeline import Node, Pipeline


def write(batch, batch_id, folder):
    batch.write.mode("overwrite").parquet(f"{folder}/batch_id={batch_id}")


def create_pipeline():
    return Pipeline([Node(lambda rows: rows, "raw.sensor", "copied", name="copy")])
"""
STREAM = {
    "type": f"{PACKAGE}.extras.datasets.SparkStreamingDataset",
    "save_args": {"checkpoint": "${globals:checkpoints}/copied", "trigger": "1 minute"},
}
BATCHES = {
    "type": f"{PACKAGE}.extras.datasets.MicroBatchDataset",
    "function": f"{PACKAGE}.pipelines.copy.write",
    "arguments": {"folder": "${globals:bucket}/copied"},
    "save_args": STREAM["save_args"],
}
FILES = {"file_format": "parquet", "filepath": "${globals:bucket}/copied"}
SETTINGS = {
    "files": {**STREAM, **FILES},
    "shared_disk": {**STREAM, **FILES},
    "micro_batches": BATCHES,
    "committer": BATCHES,
    "delta": {**STREAM, **FILES, "file_format": "delta"},
    "iceberg": {**STREAM, "file_format": "iceberg", "table": "lake.db.copied"},
}
# For every choice: files of logs are deleted at once, and not after Spark's ten minutes.
PROMPT = {
    f"spark.sql.streaming.{log}.log.cleanupDelay": "1s"
    for log in ("fileSink", "fileSource")
}
# Settings that undo a choice of conf/s3, or make one that it leaves to Spark.
FLAGS = {"spark.hadoop.fs.s3a.performance.flags": ""}
MANAGER = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.FileContextBasedCheckpointFileManager"
    )
}
CHOICES: dict[str, dict] = {
    "shipped": {},
    "no_flags": FLAGS,
    "usual_manager": MANAGER,
    "neither": {**FLAGS, **MANAGER},
    "rare_compaction": {"spark.sql.streaming.fileSink.log.compactInterval": CYCLE},
    "no_deletion": {"spark.sql.streaming.fileSink.log.deletion": False},
    "retention": {},
}


def main(folder: Path, what: str) -> None:
    with object_store(folder) as proxy:
        parts = {"sinks": sinks, "choices": choices, "refusals": refusals}
        measured = parts[what](folder, proxy)
    print(json.dumps(measured))


def sinks(folder: Path, proxy: Proxy) -> dict:
    """Count Spark's defaults alone, for they call all the time; then ours, together."""
    measured = {"defaults": defaults(proxy)}
    projects = {
        name: project(
            folder, name, proxy, entry, committer(folder) if name == "committer" else {}
        )
        for name, entry in SETTINGS.items()
    }
    for name, there in projects.items():
        say(f"calls to a store: the first batches of {name}")
        put(proxy, name, range(WARM_UP))
        subprocess.run(
            kedro_run("--env=s3", "--pipelines=copy"),
            cwd=there,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        put(proxy, name, range(WARM_UP, WARM_UP + MEASURED + 5))
    say(f"calls to a store: {MEASURED} minutes of all settings")
    with ThreadPoolExecutor(len(projects)) as threads:
        counts = threads.map(lambda n: live(proxy, n, projects[n], MEASURED), projects)
        return measured | dict(zip(projects, counts, strict=True))


def committer(folder: Path) -> dict:
    """Read the settings of Hadoop's directory committer from the cookbook."""
    page = (folder / "docs/cookbook.md").read_text()
    block = re.search(r"```\n(packages:\n  s3a:.*?)```", page, re.DOTALL)
    assert block, "the cookbook has no settings of a committer"
    return yaml.safe_load(block[1])


def choices(folder: Path, proxy: Proxy) -> dict:
    """Count one choice at a time, in batches that follow each other."""

    def counted(name: str) -> dict:
        say(f"calls to a store: {CYCLE} batches of {name}")
        save_args = {"checkpoint": STREAM["save_args"]["checkpoint"]}
        if name == "retention":
            save_args["retention"] = "10s"
        entry = {**STREAM, **FILES, "save_args": save_args}
        there = project(folder, name, proxy, entry, {**PROMPT, **CHOICES[name]})
        put(proxy, name, range(WARM_UP + CYCLE + 5))
        return live(proxy, name, there, CYCLE)

    first, *others = CHOICES
    measured = {first: counted(first)}  # alone: it may have to download the connector
    with ThreadPoolExecutor(2) as threads:
        counts = threads.map(counted, others)
        return measured | dict(zip(others, counts, strict=True))


SAID = {"key": "refuses the keys", "bucket": "there is no bucket"}


def refusals(folder: Path, proxy: Proxy) -> dict:
    """Time what a store refuses, from the command to its end, the jars being there."""
    with ExitStack() as opened:
        sockets = {
            "nobody": opened.enter_context(socket.socket()),
            "silent": opened.enter_context(socket.create_server(("127.0.0.1", 0))),
            "full": opened.enter_context(
                socket.create_server(("127.0.0.1", 0), backlog=0)
            ),
        }
        sockets["nobody"].bind(("127.0.0.1", 0))
        for _ in range(8):  # more than are let in
            caller = opened.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(sockets["full"].getsockname())
        places = {
            name: {"fs.s3a.endpoint": f"http://127.0.0.1:{s.getsockname()[1]}"}
            for name, s in sockets.items()
        }
        wrong: dict[str, dict] = {
            "key": {"fs.s3a.secret.key": "another"},
            "bucket": {},
            **places,
        }
        seconds = {}
        for name, credentials in wrong.items():
            say(f"a store that refuses: {name}")
            there = project(folder, name, proxy, {**STREAM, **FILES}, {})
            write(there, "credentials", {"s3": {**proxy.credentials, **credentials}})
            if name == "bucket":
                elsewhere = {"bucket": "s3a://no", "checkpoints": "s3a://no/checkpoint"}
                write(there, "globals", elsewhere)
            seconds[name] = seconds_to_the_end(there, SAID.get(name, "does not answer"))
    jars = folder / "jars"
    command = [KEDRO, "streams", "jars", jars, "--env=s3"]
    subprocess.run(command, cwd=there, check=True, stdout=subprocess.DEVNULL)
    size = sum(jar.stat().st_size for jar in jars.iterdir()) / 1e6
    return {"seconds": seconds, "megabytes": size}


def seconds_to_the_end(there: Path, sentence: str) -> float:
    """Run what is refused, by a sentence; return how long that takes."""
    began = time.monotonic()
    run = subprocess.run(
        [KEDRO, "run", "--env=s3", "--pipelines=copy"],
        cwd=there,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert run.returncode == 1 and sentence in run.stdout, run.stdout
    return time.monotonic() - began


def defaults(proxy: Proxy) -> dict:
    """The stream as somebody would write it by hand, with no setting but the address."""
    say("calls to a store: Spark's defaults")
    put(proxy, "defaults", range(WARM_UP + 2 * MEASURED + 5))
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = SparkSession.builder.master("local[*]").config(RETAINED, 10)
    builder = builder.config("spark.jars.packages", hadoop_package("hadoop-aws"))
    builder = builder.config("spark.driver.host", "127.0.0.1")
    for key, value in proxy.credentials.items():
        builder = builder.config(f"spark.hadoop.{key}", str(value))
    spark, place = builder.getOrCreate(), f"s3a://{BUCKET}/defaults"
    reader = spark.readStream.schema(SCHEMA).option("header", True)
    rows = reader.option("maxFilesPerTrigger", 1).csv(f"{place}/{SOURCE}/sensor")
    writer = rows.writeStream.option("checkpointLocation", f"{place}/checkpoint")
    query = writer.start(f"{place}/copied", format="parquet")

    def newest() -> int:
        assert query.isActive, query.exception()
        progress = query.lastProgress
        return progress["batchId"] if progress else -1

    counted = count(proxy, "defaults", newest, 2 * MEASURED)
    query.stop()
    spark.stop()
    return counted


def project(folder: Path, name: str, proxy: Proxy, entry: dict, settings: dict) -> Path:
    """Return a copy of the project that copies readings in one of the ways."""
    there = folder.with_name(name)
    shutil.copytree(folder, there, ignore=shutil.ignore_patterns("data", "s3*"))
    shutil.copytree(folder / "conf/s3", there / "conf/s3")
    package = there / "src" / PACKAGE / "pipelines/copy"
    package.mkdir()
    (package / "__init__.py").write_text(PIPELINE)
    place = f"s3a://{BUCKET}/{name}"
    disk = str(folder / "checkpoints")
    places = disk if name == "shared_disk" else f"{place}/04_checkpoint"
    write(there, "globals", {"bucket": place, "checkpoints": places})
    write(there, "credentials", {"s3": proxy.credentials})
    write(there, "catalog_copied", {"copied": entry})
    write(there, "spark_bench", {RETAINED: 10, **settings})
    return there


def write(there: Path, name: str, content: dict) -> None:
    (there / f"conf/s3/{name}.yml").write_text(yaml.safe_dump(content))


def put(proxy: Proxy, name: str, numbers: range) -> None:
    for number in numbers:
        proxy.put(f"{name}/{SOURCE}/sensor/{number:03}.csv", READING)


def live(proxy: Proxy, name: str, there: Path, batches: int) -> dict:
    """Run a file a batch, and count."""
    log, every_batch = there / "log.txt", "--params=streams.progress=1 second"
    process = subprocess.Popen(
        [KEDRO, "run", "--env=s3", "--pipelines=copy", every_batch],
        cwd=there,
        stdout=log.open("w"),
        stderr=subprocess.STDOUT,
    )
    done = re.compile(r"copied: batch\s+(\d+)")

    def newest() -> int:
        assert process.poll() is None, log.read_text()
        return max(map(int, done.findall(log.read_text())), default=-1)

    try:
        await_(lambda: newest() >= WARM_UP, process)
        return count(proxy, name, newest, batches)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def count(proxy: Proxy, name: str, newest: Callable[[], int], batches: int) -> dict:
    """Count the calls from the end of a batch to that of a later one."""
    marks, batch = [], WARM_UP
    for _ in range(2):
        while newest() < batch:
            time.sleep(0.05)
        marks.append((len(proxy.calls), time.monotonic(), newest()))
        batch = newest() + batches
    (begin, began, first), (end, ended, last) = marks
    here = re.compile(rf"[/=>]{name}(/|%2F)")
    calls = [(k, path) for k, path in proxy.calls[begin:end] if here.search(path)]
    return {
        "calls": Counter(kind for kind, _ in calls),
        "reading": sum(SOURCE in path for _, path in calls),
        "batches": last - first,
        "seconds": ended - began,
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
