"""The streams of one ``kedro run``, from the first check to the last stop."""

import logging
from typing import Any

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
        datasets = checks.datasets_of(pipeline, catalog)
        sinks, inputs = pipeline.all_outputs(), pipeline.all_inputs()
        for name, dataset in datasets.items():
            if isinstance(dataset, StreamSink):
                dataset.name = name
        self.streams: dict[str, StreamSink] = {
            name: dataset
            for name, dataset in datasets.items()
            if name in sinks and isinstance(dataset, StreamSink)
        }
        self._sources: dict[str, SparkStreamingDataset] = {
            name: dataset
            for name, dataset in datasets.items()
            if name in inputs and isinstance(dataset, SparkStreamingDataset)
        }
        self._new_folders: list[str] = []
        self._stop = StopRequest()

    def prepare(self, parameters: dict[str, Any]) -> None:
        """Check all that can be checked before the nodes run, and hold sinks back."""
        self._settings = RunSettings.from_parameters(parameters)
        checks.refuse(checks.shared_places(self.streams))
        self._stop.listen()
        try:
            self._spark = session.get_spark(*self._formats())
            self._stop.listen()  # Spark has taken Ctrl-C for itself
            self._make_folders_between_streams()
            checks.refuse(
                [
                    *checks.unreadable(self._sources),
                    *checks.unknown_formats(self._spark, self.streams),
                    *checks.unpaired(self._spark, self.streams),
                ]
            )
        except BaseException:
            self.close()
            raise
        for stream in self.streams.values():
            stream.held = True

    def supervise(self) -> None:
        """Check the plans, start the streams, and stay until they end."""
        try:
            checks.refuse(
                [
                    *checks.impossible(self._spark, self.streams),
                    *checks.changed(self._spark, self.streams),
                ]
            )
            self._announce()
            supervise(self._spark, self.streams, self._settings, self._stop)
        finally:
            self.close()

    def close(self) -> None:
        """Leave nothing behind: no session, no signal handler, no empty folder."""
        for folder in self._new_folders:
            hadoop.remove_if_empty(self._spark, folder)
        if self.streams:
            session.stop_spark()
        self._stop.restore()
        for stream in self.streams.values():
            stream.held = False

    def _formats(self) -> set[str]:
        datasets = [*self.streams.values(), *self._sources.values()]
        return {d.file_format for d in datasets if isinstance(d, SparkStreamingDataset)}

    def _make_folders_between_streams(self) -> None:
        """A stream can watch a folder that is empty, but not one that is absent."""
        written = {
            getattr(stream, "filepath", None) for stream in self.streams.values()
        }
        for folder in {source.filepath for source in self._sources.values()} & written:
            if folder and not hadoop.exists(self._spark, folder):
                self._new_folders += hadoop.make_folder(self._spark, folder)

    def _announce(self) -> None:
        end = "Ctrl-C stops them"
        if self._settings.until == "caught_up":
            end = "they end when all there is has been read"
        logger.info("Starting %d streams; %s.", len(self.streams), end)
