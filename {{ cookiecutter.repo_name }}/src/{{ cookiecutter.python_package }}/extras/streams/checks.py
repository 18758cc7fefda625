"""All that must hold before a stream starts; each check is one small function."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from typing import Any

from kedro.io import (
    AbstractDataset,
    CatalogProtocol,
    DatasetError,
    MemoryDataset,
    SharedMemoryDataCatalog,
)
from kedro.pipeline import Pipeline
from pyspark.sql import SparkSession
from pyspark.sql.types import ArrayType, MapType, StructType

from ..datasets import SparkStreamingDataset, StreamSink
from . import checkpoints, plans
from .errors import StreamsError, first_sentence, listed

Streams = dict[str, StreamSink]


def refuse(problems: Iterable[str]) -> None:
    """Raise all problems at once, if there are any."""
    if found := list(problems):
        raise StreamsError(listed(found))


def datasets_of(pipeline: Pipeline, catalog: CatalogProtocol) -> dict[str, Any]:
    """Build every dataset a run needs; refuse wrong entries and missing folders."""
    datasets: dict[str, AbstractDataset | None] = {}
    problems = []
    for name in sorted(pipeline.datasets()):
        try:
            datasets[name] = catalog.get(name)
        except DatasetError as error:
            reason = error.__cause__ if _is_ours(error.__cause__) else error
            problems.append(f"{name}: {str(reason).strip()}")
    refuse([*problems, *_missing_folders(pipeline, datasets)])
    return datasets


def _is_ours(error: BaseException | None) -> bool:
    """Whether Kedro has wrapped a sentence of ours into one of its own."""
    return isinstance(error, DatasetError)


def _missing_folders(pipeline: Pipeline, datasets: dict[str, Any]) -> Iterator[str]:
    """Find local folders that are not there, and that no stream of the run makes."""
    ours = {n: d for n, d in datasets.items() if isinstance(d, SparkStreamingDataset)}
    outputs = pipeline.all_outputs()
    written = {d.filepath for n, d in ours.items() if n in outputs}
    for name in sorted(ours.keys() & pipeline.inputs()):
        if ours[name].filepath not in written and ours[name].lacks_its_folder():
            yield f"{name}: {ours[name].missing_folder()}"


def refuse_wrong_runner(run_params: dict[str, Any], catalog: CatalogProtocol) -> None:
    """Refuse ways of running in which streams would break or never start."""
    if isinstance(catalog, SharedMemoryDataCatalog):
        raise StreamsError(
            "ParallelRunner cannot run streams, because Spark's session cannot be "
            "shared between processes; use SequentialRunner (the default) or "
            "--runner=ThreadRunner: Spark itself uses all cores"
        )
    if run_params.get("only_missing_outputs"):
        raise StreamsError(
            "--only-missing-outputs cannot be used with streams, because a stream that "
            "has written something would count as done and not be started; leave it "
            "out: a stream goes on where it stopped"
        )


def refuse_stream_to_nowhere(
    name: str, pipeline: Pipeline, catalog: CatalogProtocol
) -> None:
    """Refuse a stream that nothing reads and no entry of the catalog stores."""
    if name in pipeline.outputs() and isinstance(catalog.get(name), MemoryDataset):
        stored = set(catalog.keys()) - pipeline.datasets()
        near = get_close_matches(name, stored, n=1)
        hint = f"did you mean {near[0]}?" if near else "add an entry for it"
        raise StreamsError(
            f"{name} is a stream that nobody reads and that is not in the catalog, so it "
            f"would never run; {hint}"
        )


def refuse_stream_into_batch(dataset: Any) -> None:
    """Refuse to give a dataset that saves once a stream that never ends."""
    if not isinstance(dataset, StreamSink | MemoryDataset):
        kind = type(dataset).__name__
        raise DatasetError(
            f"{kind} saves a whole result once, and was given a stream, which has no "
            "end; use extras.datasets.SparkStreamingDataset, or put the dataset inside "
            "extras.datasets.MicroBatchDataset to save each batch with it"
        )


def shared_places(streams: Streams) -> Iterator[str]:
    """Find streams that would share a name, a checkpoint or an output."""
    for what, value, why in [
        ("query name", lambda s: s.query_name, "Spark tells streams apart by it"),
        ("checkpoint", lambda s: s.checkpoint, "one would stop the other"),
        ("filepath", lambda s: getattr(s, "filepath", None), "neither could be read"),
        ("table", lambda s: getattr(s, "table", None), "neither could be read"),
    ]:
        shared = Counter(filter(None, map(value, streams.values())))
        for place in [place for place, count in shared.items() if count > 1]:
            names = [name for name, stream in streams.items() if value(stream) == place]
            yield (
                f"{' and '.join(names)} have one {what}, {place}, and {why}; give "
                "each its own"
            )


def unreadable(sources: dict[str, SparkStreamingDataset]) -> Iterator[str]:
    """Find sources that are not there, or whose schema is not understood."""
    for name, dataset in sources.items():
        try:
            dataset.load()
        except DatasetError as error:
            yield f"{name}: {error}"


def unknown_formats(spark: SparkSession, streams: Streams) -> Iterator[str]:
    """Find sinks whose format Spark does not know."""
    for name, stream in streams.items():
        if isinstance(stream, SparkStreamingDataset):
            if not plans.knows_format(spark, stream.file_format):
                yield f"{name}: {stream.missing_format()}"


def unpaired(
    spark: SparkSession, streams: Streams, upstream: dict[str, set[str]]
) -> Iterator[str]:
    """Find checkpoints and outputs that do not belong together."""
    for name, stream in streams.items():
        if isinstance(stream, SparkStreamingDataset) and stream.is_files:
            problem = stream.checkpoint and checkpoints.mismatch(
                spark, stream.checkpoint, str(stream.filepath)
            )
            if problem:
                downstream = [n for n, above in upstream.items() if name in above]
                again = [streams[n] for n in [name, *downstream]]
                yield f"{name}: {problem}; {_start_over(again, downstream)}"


def _start_over(streams: list[StreamSink], downstream: list[str]) -> str:
    """Say what to delete; who reads a stream's output would read it all once more."""
    places = [p for s in streams for p in (s.checkpoint, getattr(s, "filepath", None))]
    also = f" (with {' and '.join(downstream)}, which read it)" if downstream else ""
    return (
        f"put back what is missing, or start over{also} by deleting "
        f"{' '.join(shlex.quote(place) for place in places if place)}"
    )


def impossible(spark: SparkSession, streams: Streams) -> Iterator[str]:
    """Find plans that Spark could never run in their output mode."""
    for name, stream in streams.items():
        try:
            plans.refuse_impossible(
                spark, stream.data, stream.output_mode, stream.continuous
            )
        except Exception as error:
            yield f"{name}: {_explained(error, stream.output_mode)}"


def unstorable(streams: Streams) -> Iterator[str]:
    """Find columns that a format has no place for."""
    for name, stream in streams.items():
        if getattr(stream, "file_format", "").lower() == "csv":
            for field in stream.data.schema:
                if isinstance(field.dataType, ArrayType | MapType | StructType):
                    kind = field.dataType.typeName()
                    yield (
                        f"{name}: column {field.name} is of type {kind}, and csv has no "
                        f"place for that; select its parts (e.g. {field.name}.start AS "
                        "start), or set file_format: parquet"
                    )


def changed(spark: SparkSession, streams: Streams) -> Iterator[str]:
    """Find streams that are no longer what their checkpoint was made by."""
    for name, stream in streams.items():
        if stream.checkpoint:
            for change in checkpoints.changes(spark, stream):
                yield (
                    f"{name}: checkpoint {stream.checkpoint} belongs to another stream: "
                    f"{change}; undo the change, or give the new stream a checkpoint "
                    "and an output of its own"
                )


def _explained(error: Exception, output_mode: str) -> str:
    text = first_sentence(error)
    if "no streaming aggregations" in text:
        return (
            "output_mode 'complete' writes the whole result each time, and only an "
            "aggregation (groupBy) has one; set output_mode: append"
        )
    if "without watermark" in text:
        return (
            "output_mode 'append' writes a group once it can no longer change, and "
            "without a watermark no group ever can; add .withWatermark(column, "
            "'10 minutes') before groupBy, or set output_mode: update or complete"
        )
    return f"Spark cannot run this in output_mode '{output_mode}': {text}"
