"""Starts streams, watches them, and stops them."""

import logging
import re
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JJavaError, Py4JNetworkError
from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery

from ..datasets import StreamSink
from . import checkpoints
from .errors import StreamsError, first_sentence, listed
from .progress import Progress, last_batch
from .session import where_the_trace_is
from .signals import StopRequest

logger = logging.getLogger(__name__)

POLL = 0.2  # seconds between two looks at the streams
UNITS = {"second": 1, "minute": 60, "hour": 3600}


@dataclass
class RunSettings:
    """The ``streams`` of ``parameters.yml``."""

    until: str = "stopped"
    drain: str = "30 seconds"
    progress: str = "10 seconds"

    def __post_init__(self) -> None:
        if self.until not in ("stopped", "caught_up"):
            raise StreamsError(
                f"streams.until is '{self.until}' in the parameters; write stopped "
                "(run until Ctrl-C) or caught_up (end when all there is has been read)"
            )
        self.drain_seconds = _seconds("drain", self.drain)
        self.progress_seconds = _seconds("progress", self.progress)

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> "RunSettings":
        """Read the settings, refusing unknown ones."""
        known = cls.__dataclass_fields__
        if unknown := sorted(parameters.keys() - known.keys()):
            raise StreamsError(
                f"streams.{unknown[0]} in the parameters is not known; there are "
                f"{', '.join(f'streams.{name}' for name in known)}"
            )
        return cls(**parameters)


def supervise(
    spark: SparkSession,
    streams: dict[str, StreamSink],
    upstream: dict[str, set[str]],
    settings: RunSettings,
    stop: StopRequest,
) -> None:
    """Run streams until they end, one fails, or a stop is asked for.

    Live streams start together. A bounded one starts when those ``upstream`` of it,
    which write what it reads, have ended.
    """
    bounded = settings.until == "caught_up"
    run = _Run(spark, streams, upstream if bounded else {}, bounded)
    try:
        try:
            _watch(run, settings, stop)
        finally:
            run.stop(stop, settings.drain_seconds)
        run.raise_failures()
    except (Py4JNetworkError, ConnectionError) as error:
        raise StreamsError(
            "Spark's Java process has ended: it was killed, or ran out of memory "
            f"(spark.driver.memory in spark.yml); see {where_the_trace_is()}"
        ) from error


def _watch(run: "_Run", settings: RunSettings, stop: StopRequest) -> None:
    with Progress(settings.progress_seconds) as progress:
        while not stop.count and run.goes_on():
            progress.show(run.queries, run.waiting)
            time.sleep(POLL)
        progress.show(run.queries, run.waiting, now=True)


class _Run:
    """The streams of one run: those that wait, and those that were started."""

    def __init__(
        self,
        spark: SparkSession,
        streams: dict[str, StreamSink],
        upstream: dict[str, set[str]],
        bounded: bool,
    ) -> None:
        self._spark = spark
        self._streams = streams
        self._upstream = upstream
        self._bounded = bounded
        self.queries: dict[str, StreamingQuery] = {}

    @property
    def waiting(self) -> list[str]:
        return [name for name in self._streams if name not in self.queries]

    def goes_on(self) -> bool:
        """Start what can start; say whether any stream runs and none has failed."""
        active = {name for name, query in self.queries.items() if query.isActive}
        if any(self.queries[name].exception() for name in self.queries.keys() - active):
            return False
        unfinished = active | set(self.waiting)
        ready = [
            n for n in self.waiting if not self._upstream.get(n, set()) & unfinished
        ]
        for name in ready:
            self._start(name)
        return bool(active or ready)

    def _start(self, name: str) -> None:
        stream = self._streams[name]
        try:
            if stream.checkpoint:
                checkpoints.remember(self._spark, stream)
            self.queries[name] = stream.start(available_now=self._bounded)
        except Exception as error:
            raise StreamsError(
                f"stream {name} did not start: {first_sentence(error)}"
            ) from error

    def raise_failures(self) -> None:
        """Raise the reasons of all streams that failed, whenever they did."""
        failed = [
            f"stream {name} failed: {first_sentence(error)}"
            for name, query in self.queries.items()
            if (error := query.exception())
        ]
        if failed:
            raise StreamsError(
                f"{listed(failed)}\n"
                f"The full trace is in {where_the_trace_is()}; once the cause is mended, "
                "run again: a stream goes on from its last committed batch."
            )

    def stop(self, stop: StopRequest, drain_seconds: float) -> None:
        """Let each stream finish the batch it is in, for a while; then end it."""
        running = {n: q for n, q in self.queries.items() if q.isActive}
        if running:
            logger.info("Stopping %s after the batch they are in", ", ".join(running))
        asked = stop.count
        deadline = time.monotonic() + drain_seconds
        batches = {name: _batch(query) for name, query in running.items()}
        while running and stop.count == asked and time.monotonic() < deadline:
            for name, query in list(running.items()):
                if _is_between_batches(query) or _batch(query) != batches[name]:
                    _stop(running.pop(name))
            time.sleep(POLL / 4)
        for query in running.values():
            _stop(query)
        for name, query in self.queries.items():
            logger.info("%s: %s, %s", name, _end(query), self._committed(name))

    def _committed(self, name: str) -> str:
        checkpoint = self._streams[name].checkpoint
        if not checkpoint:
            return "keeps no checkpoint"
        batch = checkpoints.latest(self._spark, f"{checkpoint}/commits")
        return f"last committed batch: {'none' if batch is None else batch}"


def _stop(query: StreamingQuery) -> None:
    """Stop a query; a second time if the first came just before a batch and missed it."""
    for _ in range(2):
        with suppress(Py4JJavaError):  # after spark.sql.streaming.stopTimeout
            query.stop()
            return


def _is_between_batches(query: StreamingQuery) -> bool:
    return not query.isActive or not query.status["isTriggerActive"]


def _batch(query: StreamingQuery) -> int | None:
    progress = last_batch(query)
    return progress["batchId"] if progress else None


def _end(query: StreamingQuery) -> str:
    return "failed" if query.exception() else "ended"


def _seconds(name: str, text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) (second|minute|hour)s?", str(text))
    if not match:
        raise StreamsError(
            f"streams.{name} is '{text}' in the parameters; write a number and a unit, "
            "e.g. 30 seconds"
        )
    return float(match[1]) * UNITS[match[2]]
