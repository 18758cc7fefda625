"""Rows per second of many streams, in turns supervised and merely waited for.

In one process and one JVM: two runs of the same differ by more than what is measured.
Prints a JSON list of [supervised, bare] rows per second, a pair a round.
"""

import json
import os
import sys
import time
from pathlib import Path
from threading import Timer

from bench_project.extras.datasets import SparkStreamingDataset
from bench_project.extras.streams import session
from bench_project.extras.streams.settings import RunSettings
from bench_project.extras.streams.signals import StopRequest
from bench_project.extras.streams.stream import Stream
from bench_project.extras.streams.supervisor import Supervisor
from kedro.framework.session import KedroSession
from kedro.framework.startup import bootstrap_project
from run import batches

FILES, ROWS = 4_000, 1_000  # a file a batch; more than one stream can read meanwhile
WARM_UP, WINDOW, ROUNDS = 60, 15, 10  # seconds, seconds, pairs of windows


def main(folder: Path, count: int) -> None:
    """Start the streams, and measure."""
    bootstrap_project(folder)
    with KedroSession.create(folder) as kedro:
        kedro.load_context()  # hands spark.yml over
    spark = session.get_spark()
    source = make_files(folder / "data/numbers")
    numbers = spark.readStream.schema("value LONG").option("maxFilesPerTrigger", 1)
    settings = RunSettings()
    streams = []
    for number in range(count):
        sink = SparkStreamingDataset(
            file_format="parquet",
            filepath=f"data/many/{number}",
            save_args={"checkpoint": f"data/checkpoint/{number}"},
            name=f"many_{number}",
        )
        sink.held = True
        sink.save(numbers.csv(source))
        streams.append(Stream(sink, set(), [source], settings, []))
        streams[-1].start()
    checkpoints = [folder / f"data/checkpoint/{n}" for n in range(count)]
    spark.streams.awaitAnyTermination(WARM_UP)
    pairs = []
    for number in range(ROUNDS):
        pair = {}
        for kind in ("bare", "supervised")[:: 1 if number % 2 else -1]:
            before, started = committed(checkpoints), time.monotonic()
            if kind == "bare":
                spark.streams.awaitAnyTermination(WINDOW)
            else:
                supervise(spark, streams, settings)
            done = committed(checkpoints) - before
            pair[kind] = done * ROWS / (time.monotonic() - started)
        pairs.append([pair["supervised"], pair["bare"]])
    print(json.dumps(pairs))
    spark.stop()


def make_files(folder: Path) -> str:
    """Write a file of numbers under many names."""
    folder.mkdir(parents=True)
    first = folder / "0.csv"
    first.write_text("\n".join(map(str, range(ROWS))))
    for number in range(1, FILES):
        os.link(first, folder / f"{number}.csv")
    return str(folder)


def supervise(spark, streams: list[Stream], settings: RunSettings) -> None:
    """Watch the streams for a while, as a run does, and leave them running."""
    stop = StopRequest()
    supervisor = Supervisor(spark, streams, settings, stop)
    for stream in streams:
        stream.lock()
    spark.streams.addListener(supervisor._reports)
    Timer(WINDOW, lambda: setattr(stop, "count", 1)).start()
    supervisor._watch()
    spark.streams.removeListener(supervisor._reports)
    for stream in streams:
        stream.unlock()


def committed(checkpoints: list[Path]) -> int:
    """Count the batches that all streams have committed so far."""
    return sum(map(batches, checkpoints))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
