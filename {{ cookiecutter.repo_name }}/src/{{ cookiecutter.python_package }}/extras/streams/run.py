"""The streams of one ``kedro run``, from the first check to the last stop."""

import logging
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import click
from kedro.io import CatalogProtocol
from kedro.pipeline import Pipeline

from ..datasets import SparkStreamingDataset, StreamSink
from . import checks, hadoop, session
from .signals import StopRequest
from .supervisor import RunSettings, supervise

logger = logging.getLogger(__name__)


class StreamsRun:
    """Knows which datasets of a pipeline are streams, and leads them through a run."""

    def __init__(self, pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        self._pipeline = pipeline
        datasets = checks.datasets_of(pipeline, catalog)
        ours = {n: d for n, d in datasets.items() if isinstance(d, StreamSink)}
        for name, dataset in ours.items():
            dataset.name = name
        outputs, inputs = pipeline.all_outputs(), pipeline.all_inputs()
        self.streams = {n: d for n, d in ours.items() if n in outputs}
        self._sources = {
            name: dataset
            for name, dataset in ours.items()
            if name in inputs and isinstance(dataset, SparkStreamingDataset)
        }
        self._upstream = {name: self._writers_of(name) for name in self.streams}
        self._new_folders: list[str] = []
        self._stop = StopRequest()
        self._starts_spark = False

    @property
    def formats(self) -> set[str]:
        """The formats that Spark must know, some of which come in packages."""
        datasets = [*self.streams.values(), *self._sources.values()]
        return {d.file_format for d in datasets if isinstance(d, SparkStreamingDataset)}

    def prepare(self, parameters: dict[str, Any]) -> None:
        """Check all that can be checked before the nodes run, and hold sinks back."""
        self._settings = RunSettings.from_parameters(parameters)
        checks.refuse(checks.shared_places(self.streams))
        self._stop.listen()
        self._starts_spark = not session.is_running()
        try:
            # In a thread, because in the main one Spark takes Ctrl-C for itself.
            with ThreadPoolExecutor(1) as thread:
                self._spark = thread.submit(session.get_spark, *self.formats).result()
            self._make_folders_between_streams()
            free = {n: d for n, d in self._sources.items() if n not in self.streams}
            checks.refuse(
                [
                    *checks.unreadable(free),
                    *checks.unknown_formats(self._spark, self.streams),
                    *checks.unpaired(self._spark, self.streams, self._upstream),
                ]
            )
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
            checks.refuse(
                [
                    *checks.impossible(self._spark, self.streams),
                    *checks.unstorable(self.streams),
                    *checks.changed(self._spark, self.streams),
                ]
            )
            self._announce()
            self._new_folders = []
            supervise(
                self._spark, self.streams, self._upstream, self._settings, self._stop
            )
        finally:
            self.close()

    def close(self) -> None:
        """Leave nothing behind: no signal handler, no empty folder, no session."""
        self._stop.restore()
        for stream in self.streams.values():
            stream.held = False
        for folder in self._new_folders:
            hadoop.remove_if_empty(self._spark, folder)
        if self._starts_spark:
            session.stop_spark()

    def _writers_of(self, name: str) -> set[str]:
        """Return the streams that write what a stream reads, by entry or by folder."""
        read = self._pipeline.to_outputs(name).all_inputs()
        folders = {_folder(self._sources[n]) for n in read if n in self._sources}
        return {
            other
            for other, stream in self.streams.items()
            if other != name and (other in read or _folder(stream) in folders - {None})
        }

    def _make_folders_between_streams(self) -> None:
        """A stream can watch a folder that is empty, but not one that is absent."""
        read = {_folder(source) for source in self._sources.values()}
        for folder in read & {_folder(stream) for stream in self.streams.values()}:
            if folder and not hadoop.exists(self._spark, folder):
                self._new_folders += hadoop.make_folder(self._spark, folder)

    def _announce(self) -> None:
        end = "Ctrl-C stops them"
        if self._settings.until == "caught_up":
            end = "a stream ends when all there is has been read"
        logger.info("Starting %s; %s.", ", ".join(self.streams), end)


def _folder(dataset: StreamSink) -> str | None:
    """Return where a dataset keeps its files, if it keeps any."""
    return getattr(dataset, "filepath", None)
