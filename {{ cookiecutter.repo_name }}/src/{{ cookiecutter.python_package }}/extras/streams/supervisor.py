"""Starts streams, watches them, starts them again, and stops them."""

import gc
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

from py4j.protocol import Py4JNetworkError
from pyspark.sql import SparkSession

from . import locks
from .errors import TROUBLE, StreamsError, first_sentence, listed
from .progress import Progress
from .reports import Reports
from .session import where_the_trace_is
from .settings import RunSettings
from .signals import StopRequest
from .stream import Stream

logger = logging.getLogger(__name__)

POLL = 0.1  # seconds between two looks at what was reported
LOOK = 5.0  # seconds between two looks at streams whose end was not reported


class Supervisor:
    """Keeps the streams of one run going until they end, or should.

    Live streams start together. A bounded one starts when those upstream of it,
    which write what it reads, have ended.
    """

    def __init__(
        self,
        spark: SparkSession,
        streams: list[Stream],
        settings: RunSettings,
        stop: StopRequest,
    ) -> None:
        self._spark = spark
        self._streams = streams
        self._settings = settings
        self._stop = stop
        self._reports = Reports()
        self._next_look = 0.0
        self._next_beat = time.monotonic() + locks.BEAT

    def supervise(self) -> None:
        """Run the streams until they end, one fails for good, or a stop is asked for."""
        try:
            with ExitStack() as cleaning:
                gc.freeze()  # what lasts as long as the run need not be looked at
                cleaning.callback(gc.unfreeze)
                for stream in self._streams:
                    stream.lock()
                    cleaning.callback(stream.unlock)
                self._spark.streams.addListener(self._reports)
                cleaning.callback(self._spark.streams.removeListener, self._reports)
                cleaning.callback(self._drain)
                self._watch()
            self._raise_failures()
        except (Py4JNetworkError, ConnectionError) as error:
            raise StreamsError(
                "Spark's Java process has ended: it was killed, or ran out of memory "
                f"(spark.driver.memory in spark.yml); see {where_the_trace_is()}"
            ) from error
        except TROUBLE as error:
            raise StreamsError(
                f"the run cannot go on: {first_sentence(error)}; see "
                f"{where_the_trace_is()}"
            ) from error

    def _watch(self) -> None:
        prints = any(stream.prints for stream in self._streams)
        with Progress(self._settings.progress_seconds, prints) as progress:
            while not self._stop.count and self._goes_on():
                progress.show(self._streams)
                self._beat()
                time.sleep(POLL)
            progress.show(self._streams, now=True)

    def _goes_on(self) -> bool:
        """Start what can start; say whether any stream lives and none has failed."""
        is_time = time.monotonic() > self._next_look
        if is_time:
            self._next_look = time.monotonic() + LOOK
        for stream in self._streams:
            stream.hear(self._reports)
            if is_time or stream.run_id in self._reports.ended:
                self._reports.ended.discard(stream.run_id)
                stream.look()
            if stream.is_due and not self._stop.count and self._may_start(stream):
                stream.start()
        if any(stream.has_failed for stream in self._streams):
            return False
        return not all(stream.has_ended for stream in self._streams)

    def _may_start(self, stream: Stream) -> bool:
        if not self._settings.bounded:
            return True
        return all(s.has_ended for s in self._streams if s.name in stream.upstream)

    def _drain(self) -> None:
        """Let each stream finish the batch it is in, for a while; then end it."""
        running = [stream for stream in self._streams if stream.is_active]
        if running:
            names = ", ".join(stream.name for stream in running)
            logger.info("Stopping %s after the batch they are in", names)
        asked = min(self._stop.count, 1)  # a second Ctrl-C may have come by now
        deadline = time.monotonic() + self._settings.drain_seconds
        for stream in running:
            stream.hold_back()
        while running and self._stop.count == asked and time.monotonic() < deadline:
            for stream in running:
                stream.hear(self._reports)
            running = [s for s in running if not s.stop_between_batches()]
            self._beat()
            time.sleep(POLL / 4)
        if running:
            self._cut(running)
        for stream in self._streams:
            stream.look(retry=False)
            logger.info("%s: %s", stream.name, stream.farewell())

    def _cut(self, streams: list[Stream]) -> None:
        """End streams in the middle of a batch, all at once, and do not wait long."""
        self._spark.conf.set("spark.sql.streaming.stopTimeout", "2s")
        with ThreadPoolExecutor(len(streams)) as threads:
            list(threads.map(Stream.cut, streams))

    def _raise_failures(self) -> None:
        """Raise the reasons of all streams that failed for good."""
        failed = [s for s in self._streams if s.has_failed]
        if failed:
            reasons = [f"stream {s.name} failed: {s.reason}" for s in failed]
            raise StreamsError(
                f"{listed(reasons)}\n"
                f"The full trace is in {where_the_trace_is()}; once the cause is mended, "
                "run again: a stream goes on from its last committed batch."
            )

    def _beat(self) -> None:
        """Show other processes that this one lives, and how far it came."""
        if time.monotonic() > self._next_beat:
            self._next_beat = time.monotonic() + locks.BEAT
            for stream in self._streams:
                stream.beat()
            gc.collect()  # Java keeps plans and broadcasts while Python might want them
