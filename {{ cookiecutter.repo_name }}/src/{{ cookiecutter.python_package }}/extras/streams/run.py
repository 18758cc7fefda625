"""The streams of one ``kedro run``, from the first check to the last stop."""

import logging
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import click
from kedro.io import CatalogProtocol
from kedro.pipeline import Pipeline

from . import checks, locks, session, workers
from .cluster import was_submitted
from .errors import TROUBLE
from .files import at
from .settings import RunSettings
from .signals import StopRequest
from .stream import Stream
from .supervisor import Supervisor
from .topology import Topology

logger = logging.getLogger(__name__)


class StreamsRun:
    """Leads the streams of a pipeline through a run."""

    def __init__(self, pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        self._topology = Topology(pipeline, catalog)
        self.streams = self._topology.streams
        self.has_streams = bool(self._topology.streams or self._topology.wrong)
        self._new_folders: list[str] = []
        self._stop = StopRequest()
        self._starts_spark = False

    def prepare(self, parameters: dict[str, Any]) -> None:
        """Check all that can be checked before the nodes run, and hold sinks back."""
        self._settings = RunSettings.from_parameters(parameters)
        checks.refuse(checks.wrong_entries(self._topology))
        checks.refuse(
            [
                *checks.shared_places(self.streams),
                *checks.nested_places(self.streams),
                *(checks.circular(self._topology) if self._settings.bounded else []),
            ]
        )
        self._stop.listen()
        self._starts_spark = not session.is_running()
        try:
            self._start_spark()
            is_submitted = was_submitted()
            if is_submitted:
                self._stop.listen_to_java(self._settings.drain_seconds)
            checks.refuse(checks.silent_stores(self._topology))
            if is_submitted:  # by a cluster, which starts a driver anew before that
                self._await_dead_drivers()
            checks.refuse(checks.locked(self.streams))
            places = self._topology.paths
            checks.refuse(
                workers.problems(self._spark, places, lambda: self._stop.count)
            )
            self.end_if_asked()
            self._make_folders_between_streams()
            checks.refuse(checks.before_nodes(self._spark, self._topology))
        except BaseException:
            self.close()
            raise
        for stream in self.streams.values():
            stream.held = True

    def end_if_asked(self) -> None:
        """End the run before its next node, if a stop was asked for meanwhile."""
        if self._stop.count:
            logger.info("Stopped before any stream was started")
            raise click.exceptions.Exit(0)

    def supervise(self) -> None:
        """Check the plans, start the streams, and stay until they end."""
        try:
            self.end_if_asked()
            checks.refuse(checks.after_nodes(self._spark, self.streams))
            self._announce()
            self._new_folders = []
            streams = [
                Stream(
                    sink,
                    self._topology.upstream[name],
                    self._topology.watched_by(name),
                    self._settings,
                    self._topology.streaming_sources_of(name),
                )
                for name, sink in self.streams.items()
            ]
            Supervisor(self._spark, streams, self._settings, self._stop).supervise()
        finally:
            self.close()

    def close(self) -> None:
        """Leave nothing behind: no signal handler, no empty folder, no session."""
        for stream in self.streams.values():
            stream.held = False
        for folder in self._new_folders:
            with suppress(*TROUBLE):  # the store may be what the run ends by
                at(folder).remove_if_empty()
        if self._starts_spark:
            session.stop_spark()
        error = sys.exc_info()[1]
        self._stop.let_java_end(
            int(not isinstance(error, click.exceptions.Exit | None))
        )
        self._stop.restore()  # last: what is above takes a while

    def _start_spark(self) -> None:
        """Start it in a thread, because in the main one Spark takes Ctrl-C for itself."""
        with ThreadPoolExecutor(1) as thread:
            start = thread.submit(session.get_spark, *self._topology.formats)
            self._spark = start.result()

    def _await_dead_drivers(self) -> None:
        """Wait for what a driver that was killed holds: nobody is there to try again."""
        checkpoints = [s.checkpoint for s in self.streams.values() if s.checkpoint]
        all(locks.await_death(c, lambda: self._stop.count) for c in checkpoints)
        self.end_if_asked()

    def _make_folders_between_streams(self) -> None:
        """A stream can watch a folder that is empty, but not one that is absent."""
        for folder in self._topology.folders_between:
            self._new_folders += at(folder).make_folder()

    def _announce(self) -> None:
        end = "Ctrl-C stops them"
        if self._settings.bounded:
            end = "a stream ends when all there is has been read"
        logger.info("Starting %s; %s.", ", ".join(self.streams), end)
