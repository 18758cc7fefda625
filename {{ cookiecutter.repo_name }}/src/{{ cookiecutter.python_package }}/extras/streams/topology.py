"""Which datasets of a pipeline are streams, and which of them feed which."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from kedro.framework.project import pipelines
from kedro.io import AbstractDataset, CatalogProtocol, DatasetError
from kedro.pipeline import Pipeline

from ..datasets import SparkStreamingDataset, StreamSink, UpsertDataset
from .session import table_folders

MALFORMED = "malformed_only"  # the key of an entry that reads what others leave out


class Topology:
    """The streams of a pipeline; entries that are wrong are listed, not raised."""

    def __init__(self, pipeline: Pipeline, catalog: CatalogProtocol) -> None:
        self.pipeline = pipeline
        self.catalog = catalog
        self.wrong: dict[str, str] = {}
        self.datasets = {
            name: self._built(name, catalog) for name in sorted(pipeline.datasets())
        }
        ours = {n: d for n, d in self.datasets.items() if isinstance(d, StreamSink)}
        for name, dataset in ours.items():
            dataset.name = name
        self._inputs = {out: n.inputs for n in pipeline.nodes for out in n.outputs}
        outputs, inputs = pipeline.all_outputs(), pipeline.all_inputs()
        self.streams = {n: d for n, d in ours.items() if n in outputs}
        self.sources = {
            name: dataset
            for name, dataset in ours.items()
            if name in inputs and isinstance(dataset, SparkStreamingDataset)
        }
        self.upstream = {name: self._writers_of(name) for name in self.streams}

    def _built(self, name: str, catalog: CatalogProtocol) -> AbstractDataset | None:
        try:
            return catalog.get(name)
        except DatasetError as error:
            # Kedro wraps a sentence of ours into one of its own.
            ours = isinstance(error.__cause__, DatasetError)
            self.wrong[name] = str(error.__cause__ if ours else error).strip()
            return None

    @property
    def formats(self) -> set[str]:
        """The formats that Spark must know, some of which come in packages."""
        return formats(self.datasets.values())

    @property
    def tables(self) -> dict[str, UpsertDataset]:
        """The tables that are read or written as a whole, beside the streams."""
        found = self.datasets.items()
        return {name: d for name, d in found if isinstance(d, UpsertDataset)}

    @property
    def kafka_entries(self) -> dict[str, SparkStreamingDataset]:
        """The entries that read or write messages of Kafka."""
        return {
            name: entry
            for name, entry in {**self.sources, **self.streams}.items()
            if isinstance(entry, SparkStreamingDataset) and entry.is_kafka
        }

    @property
    def paths(self) -> set[str]:
        """Every file or folder that Spark reads or writes, wherever executors run."""
        groups = (self.sources, self.streams, self.tables)
        paths = [entry.paths for group in groups for entry in group.values()]
        return table_folders(self.formats).union(*paths)

    @property
    def folders_between(self) -> set[str]:
        """The folders that one stream writes and another one reads."""
        read = {_folder(source) for source in self.sources.values()}
        return {f for s in self.streams.values() if (f := _folder(s)) and f in read}

    @property
    def without_folder(self) -> set[str]:
        """The sources whose folder is missing, and that no stream will make."""
        made = self.folders_between
        missing = {n: s for n, s in self.sources.items() if s.lacks_its_folder()}
        return {name for name, source in missing.items() if source.filepath not in made}

    def downstream(self, name: str) -> list[str]:
        """Return the streams that read what a stream writes, and those that read theirs."""
        found: list[str] = []
        waiting = [name]
        while waiting:
            read = waiting.pop()
            below = [n for n, above in self.upstream.items() if read in above]
            waiting += [n for n in below if n not in found]
            found += [n for n in below if n not in found]
        return found

    def sources_of(self, name: str) -> dict[str, SparkStreamingDataset]:
        """Return what is read, not computed, to make a dataset."""
        found: dict[str, SparkStreamingDataset] = {}
        for read in self._inputs.get(name, ()):
            if read in self.sources:
                found[read] = self.sources[read]
            else:
                found |= self.sources_of(read)
        return found

    def streaming_sources_of(self, name: str) -> list[SparkStreamingDataset]:
        """Return what a stream reads as a stream."""
        return [d for d in self.sources_of(name).values() if d.is_stream]

    def watched_by(self, name: str) -> list[str]:
        """Return the folders a stream reads, if files are all that it reads."""
        folders = [d.watched_folder for d in self.streaming_sources_of(name)]
        return [f for f in folders if f] if all(folders) else []

    def followers(
        self, touches: Callable[[StreamSink], set[str]]
    ) -> Iterator[tuple[str, str]]:
        """Pair each source that follows a table with each stream that touches it so."""
        for name, source in self.sources.items():
            for writer, stream in self.streams.items():
                if touches(stream) & source.follows:
                    yield name, writer

    def _writers_of(self, name: str) -> set[str]:
        """Return the streams that write what a stream reads, by entry or by place."""
        sources = self.sources_of(name)
        read = set().union(*[source.exchanges for source in sources.values()])
        followed = set().union(*[source.follows for source in sources.values()])
        return {
            other
            for other, stream in self.streams.items()
            if other != name
            and (
                other in sources
                or stream.exchanges & read
                or stream.merges_into & followed
            )
        }

    def entries_of_malformed(self) -> Iterator[SparkStreamingDataset]:
        """Find what others leave out and a node of the project reads, now or later."""
        resolver = getattr(self.catalog, "config_resolver", None)
        pipelines.set_requested(None)  # also those that this run leaves out
        known = [self.pipeline, *pipelines.values()]
        read = set().union(*[pipeline.all_inputs() for pipeline in known])
        for name, entry in (resolver.config if resolver else {}).items():
            wanted = MALFORMED in entry and name in read
            built = self._built(name, self.catalog) if wanted else None
            if isinstance(built, SparkStreamingDataset):
                yield built


def formats(datasets: Iterable[Any]) -> set[str]:
    """Return the formats of this project's datasets among others."""
    ours = [d for d in datasets if isinstance(d, StreamSink | UpsertDataset)]
    return set().union(*[dataset.formats for dataset in ours])


def _folder(dataset: StreamSink) -> str | None:
    """Return where a dataset keeps its files, if it keeps any."""
    return getattr(dataset, "filepath", None)
