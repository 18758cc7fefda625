"""What ``kedro streams check`` does: everything of a run but the run."""

from copy import copy
from dataclasses import dataclass, field
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

from kedro.io import CatalogProtocol, DatasetError
from kedro.pipeline import Pipeline
from kedro.pipeline.node import Node
from pyspark.sql import SparkSession

from ..datasets import StreamSink
from . import checks, plans, session, workers
from .errors import StreamsError, first_sentence
from .settings import RunSettings
from .topology import Topology
from .warnings import warnings


@dataclass
class Findings:
    """What a check has found."""

    lines: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def dry_run(
    pipeline: Pipeline, catalog: CatalogProtocol, parameters: dict[str, Any]
) -> Findings:
    """Build every stream's plan and check it; start nothing, write nothing."""
    found = Findings()
    topology = Topology(pipeline, catalog)
    found.problems += checks.wrong_entries(topology)
    found.problems += checks.shared_places(topology.streams)
    found.problems += checks.nested_places(topology.streams)
    try:
        if RunSettings.from_parameters(parameters).bounded:
            found.problems += checks.circular(topology)
    except StreamsError as error:
        found.problems.append(error.message)
    spark = session.get_spark(*topology.formats)
    try:
        with TemporaryDirectory() as empty:
            _check_plans(spark, topology, found, empty)
    finally:
        session.stop_spark()
    return found


def _check_plans(
    spark: SparkSession, topology: Topology, found: Findings, empty: str
) -> None:
    if silent := list(checks.silent_stores(topology)):
        found.problems += silent
        return  # nothing else can be seen
    # Not of folders: for that a file would have to be left there, if only for a moment.
    problems = list(workers.problems(spark, set(), lambda: False))
    problems += checks.before_nodes(spark, topology)
    described = _Description(topology, empty)
    streams = described.streams
    problems += described.problems
    problems += checks.after_nodes(spark, streams, described.stand_ins)
    found.problems += [text for text in problems if text not in found.problems]
    found.lines = [_line(name, topology, stream) for name, stream in streams.items()]
    found.warnings = warnings(spark, topology, streams)


class _Description:
    """The streams that nodes describe; what cannot be described is left out."""

    def __init__(self, topology: Topology, empty: str) -> None:
        self.problems: list[str] = []
        self.streams: dict[str, StreamSink] = {}
        self._topology = topology
        self._empty = empty  # a folder of folders, for those that streams will make
        self.stand_ins: dict[str, str] = {}  # which of those is there for which
        self._made: dict[str, Any] = {}
        self._broken = {*topology.wrong, *topology.without_folder}
        for stream in topology.streams.values():
            stream.held = True
        for node in topology.pipeline.nodes:
            self._run(node)

    def _run(self, node: Node) -> None:
        """Run a node that streams, or that a stream needs; write nothing."""
        if self._broken & set(node.inputs) or not self._is_needed(node):
            self._broken |= set(node.outputs)
            return
        try:
            made = node.run({name: self._load(name) for name in node.inputs})
            for name, data in made.items():
                self._save(name, data)
        except Exception as error:
            self._broken |= set(node.outputs)
            self.problems.append(f"{node.name}: {first_sentence(error)}")

    def _is_needed(self, node: Node) -> bool:
        below = self._topology.pipeline.from_nodes(node.name).all_outputs()
        if below & self._topology.streams.keys():
            return True
        return any(map(self._streams, node.inputs))

    def _streams(self, name: str) -> bool:
        source = self._topology.sources.get(name)
        made = self._made.get(name)
        return source.is_stream if source else getattr(made, "isStreaming", False)

    def _load(self, name: str) -> Any:
        if name in self._made:
            return self._made[name]
        source = self._topology.sources.get(name)
        if source and source.lacks_its_folder():
            stand_in = mkdtemp(dir=self._empty)
            self.stand_ins[stand_in] = str(source.filepath)
            source = copy(source)
            source.filepath = stand_in
            return source.load()
        if source and source.lacks_its_table() and name in self.streams:
            spark = session.get_spark()
            return spark.readStream.schema(source.data.schema).parquet(self._empty)
        return self._topology.catalog.load(name)

    def _save(self, name: str, data: Any) -> None:
        """Describe a stream, and keep everything else in memory."""
        topology, sink = self._topology, self._topology.datasets[name]
        if name in topology.wrong:
            return  # which has been said
        if isinstance(sink, StreamSink):
            try:
                sink.save(data)
                self.streams[name] = sink
            except DatasetError as error:
                self.problems.append(f"{name}: {error}")
            return
        checks.refuse_misdirected(name, data, topology.pipeline, topology.catalog)
        self._made[name] = data


def _line(name: str, topology: Topology, stream: StreamSink) -> str:
    """Say in a line what a stream does."""
    sources = [source.place for source in topology.streaming_sources_of(name)]
    kept = "stateful" if plans.is_stateful(stream.data) else "stateless"
    watermark = plans.watermarks(stream.data)
    facts = [
        stream.output_mode,
        stream.trigger,
        f"checkpoint {stream.checkpoint}" if stream.checkpoint else "no checkpoint",
        kept,
        f"watermark {', '.join(watermark)}" if watermark else "no watermark",
    ]
    way = f"{' and '.join(sources)} -> {stream.place}"
    return session.shown(f"{name}: {way}; {', '.join(facts)}")
