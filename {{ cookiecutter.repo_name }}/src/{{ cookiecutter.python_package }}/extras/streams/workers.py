"""What the workers of a cluster must have before a stream starts there."""

import logging
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Silence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from pyspark import __version__
from pyspark.sql import SparkSession

from .errors import first_sentence
from .files import on_disk
from .session import shown

PATIENCE = 90.0  # seconds in which a standalone cluster must have given us an executor
PULLING = 600.0  # seconds for others, who may pull an image or start a machine first
LISTENS = 0.2  # seconds between two looks whether somebody wants to stop
SILENT = 10.0  # seconds after which somebody who waits is told why
LOOKS = 4  # tasks at least, so that more than one executor answers
PACKAGE = __name__.partition(".")[0]
GROUP = "workers"
logger = logging.getLogger(__name__)


def problems(
    spark: SparkSession, paths: set[str], is_stopped: Callable[[], object]
) -> Iterator[str]:
    """Find out whether executors have our code and see the folders that we see."""
    master = str(spark.sparkContext.master)
    if master.startswith("local"):
        return
    with _marks(sorted(filter(None, map(on_disk, paths)))) as marks:
        try:
            answers = _ask(spark, marks, is_stopped)
        except Silence:
            yield (
                f"the cluster at {master} has given this run no executor within "
                f"{_patience(master):.0f} seconds; look at {_who_knows(master)}, and for "
                f"free cores and memory: an executor of this run wants {_wants(spark)}"
            )
            return
        except Exception as error:
            yield (
                f"Python does not run on the executors: {first_sentence(error)}; give "
                "them this project's environment, see docs/deploy.md"
            )
            return
    yield from sorted({p for answer in answers for p in _lacks(answer, marks)})


def _wants(spark: SparkSession) -> str:
    """Say what an executor must be given, and by which settings."""
    settings = spark.sparkContext.getConf()
    is_standalone = str(spark.sparkContext.master).startswith("spark://")
    wanted = {"memory": "1g", "cores": "all of a worker's" if is_standalone else "1"}
    found = {
        f"spark.executor.{what}": settings.get(f"spark.executor.{what}", usual)
        for what, usual in wanted.items()
    }
    return " and ".join(f"{value} ({key})" for key, value in found.items())


def _patience(master: str) -> float:
    return PATIENCE if master.startswith("spark://") else PULLING


def _who_knows(master: str) -> str:
    """Say where a cluster tells why there are no executors."""
    if master.startswith("k8s://"):
        return "its pods (kubectl describe pods) for an image that cannot be pulled"
    return "the run on YARN's page" if master == "yarn" else "the master's page"


def _lacks(answer: dict[str, Any], marks: dict[str, str]) -> Iterator[str]:
    host = answer["host"]
    for path, mark in marks.items():
        if mark not in answer["seen"]:
            yield (
                f"{shown(path)} is not the same folder on {host}, where executors run; "
                "put it on a disk that all machines share, or an object store (data in "
                "conf/cluster/globals.yml)"
            )
    if answer["pyspark"] != __version__:
        yield (
            f"executors on {host} run pyspark {answer['pyspark']}, and the driver "
            f"{__version__}; give them the same"
        )
    if answer["missing"]:
        yield (
            f"executors on {host} cannot import {PACKAGE} ({answer['missing']}); give "
            "them this project's environment, see docs/deploy.md"
        )


def _ask(
    spark: SparkSession, marks: dict[str, str], is_stopped: Callable[[], object]
) -> list[dict[str, Any]]:
    """Run a few small tasks; they tell what they see, unless somebody stops us."""
    context = spark.sparkContext
    tasks = max(LOOKS, context.defaultParallelism)
    package, names = PACKAGE, list(marks.values())

    def look(
        _: Any,
    ) -> Iterator[dict[str, Any]]:  # travels by value, as workers lack us
        import importlib  # noqa: PLC0415
        import os  # noqa: PLC0415
        import socket  # noqa: PLC0415

        import pyspark  # noqa: PLC0415

        missing = ""
        try:
            importlib.import_module(f"{package}.extras.datasets")
        except ImportError as error:
            missing = str(error)
        yield {
            "host": socket.gethostname(),
            "pyspark": pyspark.__version__,
            "missing": missing,
            "seen": [name for name in names if os.path.exists(name)],
        }

    def ask() -> list[dict[str, Any]]:
        context.setJobGroup(GROUP, "what executors have and see", True)
        return context.parallelize(range(tasks), tasks).mapPartitions(look).collect()

    thread = ThreadPoolExecutor(1)
    answers = thread.submit(ask)
    patience = _patience(str(context.master))
    begin, has_told = time.monotonic(), False
    try:
        while not is_stopped():
            try:
                return answers.result(LISTENS)
            except Silence:
                waited = time.monotonic() - begin
                if waited > patience:
                    raise
                if waited > SILENT and not has_told:
                    logger.info("Waiting for executors, for %.0f seconds ...", patience)
                    has_told = True
        return []
    finally:
        if not answers.done():
            context.cancelJobGroup(GROUP)
        thread.shutdown(wait=False)


@contextmanager
def _marks(paths: list[str]) -> Iterator[dict[str, str]]:
    """Leave a file near each path for a moment, for others to see."""
    folders = {path: _nearest_folder(Path(path)) for path in paths}
    name = f".seen-{uuid4()}"
    marks = {path: str(folder / name) for path, folder in folders.items()}
    try:
        for path, mark in list(marks.items()):
            try:
                Path(mark).touch()
            except OSError:  # a source that is read only: see whether it is there
                marks[path] = path if Path(path).exists() else str(folders[path])
        yield marks
    finally:
        for mark in set(marks.values()):
            if mark.endswith(name):
                Path(mark).unlink(missing_ok=True)


def _nearest_folder(path: Path) -> Path:
    return next(p for p in (path, *path.parents) if p.is_dir())
