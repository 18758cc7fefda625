"""Megabytes read and seconds taken by several sinks that store the same rows.

Takes the folder of a generated project. In turns in one JVM: a stream for each sink,
and one ``MicroBatchDataset`` with a dataset for each. The last line it prints is JSON.
"""

import json
import statistics
import sys
import time
from itertools import count
from pathlib import Path

from bench_project.extras.datasets import MicroBatchDataset, SparkStreamingDataset
from bench_project.extras.streams import session
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from pyspark.sql import DataFrame
from run import say

SINKS, ROUNDS = (1, 2, 5, 10), 3
_numbers = count()


def main(folder: Path) -> None:
    """Measure every number of sinks both ways; the first time does not count."""
    bootstrap_project(folder)
    with KedroSession.create(folder) as kedro:
        kedro.load_context()  # hands spark.yml over
    spark = session.get_spark()
    ways = {"streams": as_streams, "datasets": as_datasets}
    took: dict[int, dict[str, list]] = {n: {way: [] for way in ways} for n in SINKS}
    for number in range(ROUNDS + 1):
        for sinks in SINKS:
            say(f"one read, many sinks: round {number} of {ROUNDS}, {sinks} sinks")
            for way in sorted(ways, reverse=number % 2 == 0):
                before, began = bytes_read(spark), time.monotonic()
                ways[way](folder, readings(folder), sinks)
                read, seconds = bytes_read(spark) - before, time.monotonic() - began
                took[sinks][way] += [(read / 2**20, seconds)] if number else []
    print(
        json.dumps(
            {
                sinks: {
                    way: [
                        statistics.median(column) for column in zip(*rows, strict=True)
                    ]
                    for way, rows in found.items()
                }
                for sinks, found in took.items()
            }
        )
    )
    spark.stop()


def readings(folder: Path) -> DataFrame:
    return SparkStreamingDataset(
        file_format="csv",
        filepath=str(folder / "data/01_raw/stream/sensor"),
        load_args={
            "schema": "sensor_id STRING, value DOUBLE, read_at TIMESTAMP",
            "header": True,
            "maxFilesPerTrigger": 2,
        },
    ).load()


def as_streams(folder: Path, rows: DataFrame, sinks: int) -> None:
    """Every sink is a stream of its own, and all run at the same time."""
    entries = []
    for _ in range(sinks):
        entry = SparkStreamingDataset(
            file_format="parquet",
            filepath=str(scratch(folder)),
            save_args=save_args(folder),
        )
        entry.save(rows)
        entries.append(entry)
    for entry in entries:
        assert entry.query is not None
        entry.query.awaitTermination()


def as_datasets(folder: Path, rows: DataFrame, sinks: int) -> None:
    """One stream gives its batches to all sinks."""
    datasets = [
        {
            "type": "spark.SparkDatasetV2",
            "filepath": f"{scratch(folder)}/batch_id={{batch_id}}",
            "file_format": "parquet",
            "save_args": {"mode": "overwrite"},
        }
        for _ in range(sinks)
    ]
    entry = MicroBatchDataset(datasets=datasets, save_args=save_args(folder))
    entry.save(rows)
    assert entry.query is not None
    entry.query.awaitTermination()


def save_args(folder: Path) -> dict[str, str]:
    return {"checkpoint": str(scratch(folder)), "trigger": "available_now"}


def scratch(folder: Path) -> Path:
    return folder / f"data/scratch/{next(_numbers)}"


def bytes_read(spark) -> int:
    """Return what Spark has read from files so far, by Hadoop's own count."""
    files = spark._jvm.org.apache.hadoop.fs.FileSystem.getAllStatistics()
    return sum(each.getBytesRead() for each in files if each.getScheme() == "file")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
