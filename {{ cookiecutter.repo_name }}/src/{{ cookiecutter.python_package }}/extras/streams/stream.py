"""One stream of a run: what it is doing, how often it failed, how it is stopped."""

import logging
import time
from contextlib import suppress
from typing import Any

from kedro.io import DatasetError
from py4j.protocol import Py4JJavaError
from pyspark.sql.streaming import StreamingQuery

from ..datasets import HeldBack, SparkStreamingDataset, StreamSink
from . import checkpoints, locks
from .errors import (
    MALFORMED,
    RESET,
    TROUBLE,
    first_sentence,
    is_final,
    is_sparks,
    why_it_ended,
)
from .files import at, is_remote
from .reports import Batch, Reports
from .session import our_command, shown
from .settings import RunSettings

logger = logging.getLogger(__name__)

LONGEST_WAIT = 300.0  # seconds between two restarts
LAG_EVERY = 5.0  # seconds between two counts of the files that wait


class Stream:
    """A sink, the query that feeds it, and what became of earlier queries."""

    def __init__(
        self,
        sink: StreamSink,
        upstream: set[str],
        folders: list[str],
        settings: RunSettings,
        sources: list[SparkStreamingDataset],
    ) -> None:
        self.name = str(sink.name)
        self.upstream = upstream  # the streams that write what this one reads
        self.batch: Batch | None = None  # the newest one
        self.reason: str | None = None  # of the last failure
        self.has_ended = False
        self.has_failed = False
        self.prints = sink.prints
        self._sink = sink
        self._checkpoint = sink.checkpoint
        self._settings = settings
        self._sources = sources
        self._query: StreamingQuery | None = None
        self.run_id = ""  # of the query; another one after each restart
        self._failures = 0
        self._start_at = 0.0
        self._awaited: int | None = None  # the batch that a stop waits for
        self._lock: locks.Lock | None = None
        self._folders = folders if sink.checkpoint else []
        self._backlog = checkpoints.Backlog(str(sink.checkpoint), self._folders)
        self._files_behind: int | None = None
        self._next_count = 0.0
        places = [*self._folders, str(sink.checkpoint)]
        self._pays_for_calls = any(map(is_remote, places))
        self._next_progress = 0.0
        self._misses_folder = False
        self._progress: dict[str, Any] = {}

    # --- starting ------------------------------------------------------------

    @property
    def is_due(self) -> bool:
        """Whether it should be started: for the first time, or once more."""
        idle = self._query is None and not self.has_ended and not self.has_failed
        return idle and time.monotonic() >= self._start_at

    def start(self) -> None:
        """Start the query; it goes on where the checkpoint says."""
        try:
            if self._checkpoint:
                checkpoints.remember(self._sink)
                if any(source.is_iceberg for source in self._sources):
                    checkpoints.forget_beginning(self._checkpoint)
            self._query = self._sink.start(available_now=self._settings.bounded)
            self.run_id = str(self._query.runId)
        except Exception as error:
            self._fail(error)

    # --- watching ------------------------------------------------------------

    @property
    def is_active(self) -> bool:
        """Whether there is a query that runs."""
        return self._query is not None and self._query.isActive

    @property
    def state(self) -> str:
        """A word for people, or two."""
        if self.has_failed:
            return "failed"
        if self.has_ended:
            return "stopped"
        if self._query is None:
            attempts = self._settings.restart.attempts
            return (
                f"restarting {self._failures}/{attempts}"
                if self._failures
                else "waiting"
            )
        if self.batch is None:
            return "starting"
        return "running" if self._query.status["isTriggerActive"] else "waiting"

    @property
    def behind(self) -> int | None:
        """How much waits to be read: files, or messages of Kafka; None if unknown."""
        if not self._folders:
            return self.batch.messages_behind if self.batch else None
        if time.monotonic() > self._next_count:
            pause = float("inf") if self._pays_for_calls else LAG_EVERY
            self._next_count = time.monotonic() + pause  # a batch ends it
            with suppress(*TROUBLE):
                count = self._backlog.count()
                self._files_behind = count[1] if count else None
        return self._files_behind

    def hear(self, reports: Reports) -> None:
        """Take notice of a new batch; a committed one forgives earlier failures."""
        batch = reports.batches.get(str(self._sink.query_name))
        if batch and batch is not self.batch:
            self.batch = batch
            self._failures = 0
            self._next_count = 0.0

    def look(self, retry: bool = True) -> None:
        """Find out whether the query has ended, and why."""
        if self._query is None or self._query.isActive:
            return
        error = why_it_ended(self._query)
        self._query = None
        if error is None or isinstance(self._sink.failure, HeldBack):
            self.has_ended = True
        else:
            self._fail(error, retry)

    def _fail(self, error: Exception, retry: bool = True) -> None:
        """Try once more later, unless that cannot help or was tried enough."""
        failure = self._sink.failure
        # Of Python code that calls Spark or a dataset: what they say, not who called.
        said = is_sparks(failure) or isinstance(failure, DatasetError)
        reason = first_sentence(failure if failure and said else error)
        self.reason = shown(reason).replace(RESET, our_command("reset", self.name))
        if MALFORMED.search(self.reason):
            self.reason = self._first_malformed() or self.reason
        restart = self._settings.restart
        self.has_failed = not self._lacks_a_folder() and (
            is_final(error) or is_final(self._sink.failure)
        )
        if self.has_failed:
            return
        if not retry:
            logger.warning(
                f"{self.name} failed in its last batch, which the next run begins "
                f"again: {self.reason}"
            )
            return
        if self._failures == restart.attempts:
            self.has_failed = True
            self.reason += f" (restarted {restart.attempts} times in vain)"
            return
        wait = min(
            restart.backoff_seconds * 2.0 ** min(self._failures, 20), LONGEST_WAIT
        )
        self._failures += 1
        self._start_at = time.monotonic() + wait
        logger.warning(
            f"{self.name} failed, restart {self._failures} of {restart.attempts} in "
            f"{wait:g} seconds: {self.reason}"
        )

    def _first_malformed(self) -> str:
        """Find the message that Spark could not read; it does not say which it was."""
        with suppress(Exception):  # Kafka may be gone; then Spark's words must do
            for begin, end in checkpoints.unfinished(str(self._checkpoint)):
                for source in self._sources:
                    named = set(source.topics)
                    if source.is_kafka and (not named or set(end) <= named):
                        if sentence := source.first_malformed(begin, end):
                            return sentence
        return ""

    def _lacks_a_folder(self) -> bool:
        """Whether a source is gone, of which Spark speaks in riddles, and may come back."""
        if self._pays_for_calls:
            return False
        with suppress(*TROUBLE):
            return not all(at(folder).exists() for folder in self._folders)
        return False

    # --- stopping ------------------------------------------------------------

    def hold_back(self) -> None:
        """Let no batch begin that was not planned yet, and note the one that was."""
        self._sink.last_batch = -1  # none at all while we look
        planned = committed = None
        if self._checkpoint:
            with suppress(*TROUBLE):
                planned = checkpoints.latest(f"{self._checkpoint}/offsets")
                committed = checkpoints.latest(f"{self._checkpoint}/commits")
        if planned is not None:
            self._sink.last_batch = planned
        self._awaited = planned if planned != committed else None

    def stop_between_batches(self) -> bool:
        """Stop the query if it is between two batches; say whether it has ended."""
        assert self._query is not None
        if self._query.isActive:
            is_idle = not self._query.status["isTriggerActive"]
            if not is_idle and not self._may_be_cut():
                return False
            self.cut()
        return True

    def _may_be_cut(self) -> bool:
        """Whether the awaited batch is committed, and the next one does no harm."""
        number = self.batch.number if self.batch else -1
        is_committed = self._awaited is None or number >= self._awaited
        return is_committed and self._sink.bears_a_cut

    def cut(self) -> None:
        """Stop the query, in the middle of a batch if need be."""
        assert self._query is not None
        for _ in range(2):  # the first may come just before a batch, and miss it
            with suppress(Py4JJavaError):  # after spark.sql.streaming.stopTimeout
                self._query.stop()
                return

    def farewell(self) -> str:
        """Say how the stream ended, and how far it came."""
        end = "failed" if self.has_failed else "cut" if self.is_active else "ended"
        if not self._checkpoint:
            return f"{end}, keeps no checkpoint"
        try:
            batch = checkpoints.latest(f"{self._checkpoint}/commits")
            begun = checkpoints.latest(f"{self._checkpoint}/offsets")
        except TROUBLE as error:
            return f"{end}, last committed batch: unknown ({first_sentence(error)})"
        text = f"{end}, last committed batch: {'none' if batch is None else batch}"
        if begun != batch and not self.has_failed:
            text += f"; batch {begun}, which had begun, is left to the next run"
        return text

    # --- for other processes -------------------------------------------------

    def lock(self) -> None:
        """Refuse to share the checkpoint with another run."""
        if self._checkpoint:
            self._lock = locks.Lock(self._checkpoint)
            self.beat()

    def beat(self) -> None:
        """Show that the run lives, and how far it came."""
        self._notice_missing_folder()
        if self._lock:
            with suppress(*TROUBLE):  # a full disk is for the query to fail by
                self._lock.renew()
                if time.monotonic() > self._next_progress:
                    self._write_progress()

    def _notice_missing_folder(self) -> None:
        """Say that a source is gone, and that it is back; Spark takes it for empty."""
        is_missing = self._lacks_a_folder()
        if is_missing != self._misses_folder:
            self._misses_folder = is_missing
            folders = " and ".join(map(shown, self._folders))
            if is_missing:
                logger.warning(
                    f"{self.name}: {folders} is gone; waiting for its return"
                )
            else:
                logger.info(f"{self.name}: {folders} is back")

    def unlock(self) -> None:
        """Let the next run begin at once."""
        if self._lock:
            self._next_progress = 0.0
            self.beat()
            with suppress(*TROUBLE):
                self._lock.release()

    def _write_progress(self) -> None:
        progress = {
            "state": self.state,
            "error": self.reason,
            "batch": vars(self.batch) if self.batch else None,
        }
        if progress != self._progress:
            checkpoints.write_json(
                str(self._checkpoint), checkpoints.PROGRESS, progress
            )
            self._progress = progress
            if self._pays_for_calls:
                self._next_progress = time.monotonic() + locks.SIGN
