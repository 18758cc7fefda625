"""Windows and messages on local[2] and on a standalone cluster; the start of a wheel.

Takes the folder of a generated project; the last line it prints is JSON. Seconds come
from the time stamps of Spark's commit files.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import yaml
from clusters import standalone
from conftest import Project
from run import KEDRO, PACKAGE, ROUNDS, commit_times, kedro_run, medians, say
from servers import broker_of, free_port

MESSAGES, A_BATCH, WARM_UP = 1_000_000, 100_000, 3
TURNS = 4  # each place is first as often as second
PIPELINE = """\
from kedro.pipeline import Node, Pipeline


def create_pipeline():
    return Pipeline([Node(lambda rows: rows, "messages", "stored", name="store")])
"""


def main(folder: Path) -> None:
    """Measure one part after the other."""
    (folder.parent / "standalone").mkdir()
    jobs = {"windows": "sensor", "kafka": "store"}
    places = ("local[2]", "cluster")
    seconds: dict[str, dict[str, list[float]]] = {
        job: {place: [] for place in places} for job in jobs
    }
    with (
        broker_of(Project(folder), free_port()) as (kafka, _),
        standalone(folder.parent / "standalone") as cluster,
    ):
        fill(kafka)
        for number in range(TURNS):
            for place in places[:: 1 if number % 2 else -1]:
                say(f"windows and messages: turn {number + 1}, {place}")
                master = cluster.master if place == "cluster" else place
                settle(folder, master, kafka)
                for job, pipeline in jobs.items():
                    seconds[job][place] += seconds_of_batches(folder, job, pipeline)
    measured = {job: medians(seconds[job]) for job in jobs}
    counts = {job: len(seconds[job]["cluster"]) for job in jobs}
    print(json.dumps({**measured, "batches": counts, "start": starts(folder)}))


def settle(folder: Path, master: str, kafka) -> None:
    """Let the environment cluster use this machine's folder and Python."""
    data = folder / "data"
    for name in ("03_primary", "04_checkpoint"):
        shutil.rmtree(data / name, ignore_errors=True)
    package = folder / "src" / PACKAGE / "pipelines/store"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").write_text(PIPELINE)
    conf = folder / "conf/cluster"
    places = {"data": str(data), "checkpoints": str(data / "04_checkpoint")}
    (conf / "globals.yml").write_text(yaml.safe_dump(places))
    settings = {
        "spark.master": master,
        "spark.executor.memory": "900m",
        "spark.executor.cores": 1,
        "spark.sql.shuffle.partitions": 2,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.port": 0,
        "spark.pyspark.python": sys.executable,
        "spark.executorEnv.PYTHONPATH": str(folder / "src"),
    }
    (conf / "spark.yml").write_text(yaml.safe_dump(settings))
    kind = f"{PACKAGE}.extras.datasets.SparkStreamingDataset"
    entries = {
        "messages": {
            "type": kind,
            "file_format": "kafka",
            "load_args": {
                **kafka.options,
                "subscribe": "messages",
                "startingOffsets": "earliest",
                "maxOffsetsPerTrigger": A_BATCH,
            },
            "payload": {"format": "json", "schema": "sensor_id STRING, value DOUBLE"},
        },
        "stored": {
            "type": kind,
            "file_format": "parquet",
            "filepath": "${globals:data}/03_primary/stored",
            "save_args": {"checkpoint": "${globals:checkpoints}/stored"},
        },
    }
    (conf / "catalog_messages.yml").write_text(yaml.safe_dump(entries))


def fill(kafka) -> None:
    """Send messages, as many as a few batches take."""
    kafka.topic("messages", partitions=2)
    rows = [
        json.dumps({"sensor_id": f"s{n % 10}", "value": n % 50}).encode()
        for n in range(MESSAGES)
    ]
    for begin in range(0, MESSAGES, A_BATCH // 2):  # as many as a producer holds
        kafka.send("messages", *rows[begin : begin + A_BATCH // 2])


def seconds_of_batches(folder: Path, job: str, pipeline: str) -> list[float]:
    """Run what is there; return how long each warm batch took."""
    subprocess.run(
        kedro_run("--env=cluster", f"--pipelines={pipeline}"),
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    name = "processed_sensor" if job == "windows" else "stored"
    times = commit_times(folder / "data/04_checkpoint" / name)
    return [b - a for a, b in pairwise(times[WARM_UP:])]


def starts(folder: Path) -> dict[str, float]:
    """Seconds to the first batch by kedro run, the wheel's command and spark-submit."""
    subprocess.run(
        [KEDRO, "package"], cwd=folder, check=True, stdout=subprocess.DEVNULL
    )
    (wheel,) = (folder / "dist").glob("*.whl")
    target = folder.parent / "installed"
    subprocess.run(
        ["uv", "pip", "install", "-q", "--no-deps", "--target", target, wheel],
        check=True,
    )
    checkpoint = folder / "data/04_checkpoint/processed_sensor"
    arguments = ["--params=streams.until=caught_up", "--pipelines=sensor"]
    arguments.append(f"--conf-source={folder}/dist/conf-{PACKAGE}.tar.gz")
    python = f"spark.pyspark.python={sys.executable}"
    submit = [KEDRO.with_name("spark-submit"), "--master=local[*]", "--conf", python]
    commands = {
        "project": kedro_run("--pipelines=sensor"),
        "wheel": [sys.executable, "-m", PACKAGE, *arguments],
        "submitted": [*submit, folder / "deploy/run.py", *arguments],
    }
    took: dict[str, list[float]] = {kind: [] for kind in commands}
    for number in range(ROUNDS):
        for kind in sorted(commands, reverse=number % 2 == 0):
            say(f"time to the first batch: round {number + 1}, {kind}")
            shutil.rmtree(folder / "data/03_primary", ignore_errors=True)
            shutil.rmtree(folder / "data/04_checkpoint", ignore_errors=True)
            began = time.time()
            subprocess.run(
                commands[kind],
                cwd=folder,
                env={**os.environ, "PYTHONPATH": str(target)},
                check=True,
                stdout=subprocess.DEVNULL,
            )
            took[kind].append(commit_times(checkpoint)[0] - began)
    return medians(took)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
