"""All that must hold before a stream starts; each check is one small function."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import chain
from typing import Any

from kedro.io import (
    CatalogProtocol,
    DatasetError,
    MemoryDataset,
    SharedMemoryDataCatalog,
)
from kedro.pipeline import Pipeline
from pyspark.sql import SparkSession

from ..datasets import SparkStreamingDataset, StreamSink, arguments, kafka
from . import checkpoints, locks, plans
from .errors import TROUBLE, StreamsError, first_sentence, listed
from .files import ask, needs_spark, store_of
from .session import missing_format, our_command, package_for
from .topology import Topology

Streams = dict[str, StreamSink]
EXAMPLE = "s3a://my-bucket/"  # in conf/s3 and conf/cluster

# What stores say, in Java's words and in S3's.
NO_CONNECTOR = re.compile("ClassNotFoundException|No FileSystem for scheme")
WRONG_KEY = re.compile(
    r"AccessDenied|Status Code: 403|Forbidden|SignatureDoesNotMatch|InvalidAccess"
)
NO_KEY = re.compile("NoAuthWithAWS|No AWS Credentials|Unable to load credentials")
NO_BUCKET = re.compile("NoSuchBucket|UnknownStore|(?i:bucket does not exist)")


def refuse(problems: Iterable[str]) -> None:
    """Raise all problems at once, if there are any."""
    if found := list(problems):
        raise StreamsError(listed(found))


def wrong_entries(topology: Topology) -> Iterator[str]:
    """Find entries that cannot be built, and folders that nobody makes."""
    lost = list(unkept(topology))  # builds entries, of which some may be wrong
    yield from unbuilt(topology)
    yield from unsettled(topology)
    for name in sorted(topology.without_folder & topology.pipeline.inputs()):
        yield f"{name}: {topology.sources[name].missing_folder()}"
    yield from absent(topology)
    yield from lost


def unsettled(topology: Topology) -> Iterator[str]:
    """Find out whether the bucket is still the one that the project came with."""
    if any(path.startswith(EXAMPLE) for path in topology.paths):
        yield (
            f"globals.yml of this environment still names {EXAMPLE.rstrip('/')}, which is "
            "an example and somebody else's; write your own bucket there"
        )


def unbuilt(topology: Topology, names: Iterable[str] = ()) -> Iterator[str]:
    """Find entries that are wrong by themselves, among those named or among all."""
    for name, reason in topology.wrong.items():
        if not names or name in names:
            yield f"{name}: {reason}"


def absent(topology: Topology) -> Iterator[str]:
    """Find inputs that no node makes and no entry stores."""
    for name in sorted(topology.pipeline.inputs()):
        if name not in topology.catalog and name not in topology.wrong:
            yield (
                f"{name}: no node makes it and it is not in the catalog of this "
                "environment; add an entry, or choose pipelines with --pipelines"
            )


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


def refuse_misdirected(
    name: str, data: Any, pipeline: Pipeline, catalog: CatalogProtocol
) -> None:
    """Refuse a stream where a batch is expected, or where it would be lost."""
    if getattr(data, "isStreaming", False):
        _refuse_stream_to_nowhere(name, pipeline, catalog)
        _refuse_stream_into_batch(catalog.get(name))


def _refuse_stream_to_nowhere(
    name: str, pipeline: Pipeline, catalog: CatalogProtocol
) -> None:
    """Refuse a stream that nothing reads and no entry of the catalog stores."""
    if name in pipeline.outputs() and isinstance(
        catalog.get(name), MemoryDataset | None
    ):
        stored = set(catalog.keys()) - pipeline.datasets()
        near = get_close_matches(name, stored, n=1)
        hint = f"did you mean {near[0]}?" if near else "add an entry for it"
        raise StreamsError(
            f"{name} is a stream that nobody reads and that is not in the catalog, so it "
            f"would never run; {hint}"
        )


def _refuse_stream_into_batch(dataset: Any) -> None:
    """Refuse to give a dataset that saves once a stream that never ends."""
    if not isinstance(dataset, StreamSink | MemoryDataset | None):
        kind = type(dataset).__name__
        ours = SparkStreamingDataset.__module__.rpartition(".")[0]
        raise DatasetError(
            f"{kind} saves a whole result once, and was given a stream, which has no "
            f"end; use {ours}.SparkStreamingDataset, or put the dataset inside "
            f"{ours}.MicroBatchDataset to save each batch with it"
        )


def silent_stores(topology: Topology) -> Iterator[str]:
    """Find buckets and file systems that do not answer, or that refuse us."""
    remote = sorted(filter(needs_spark, topology.paths))
    for store, path in {store_of(path): path for path in remote}.items():
        try:
            ask(path)  # not for the whole bucket, which may not be ours
        except TROUBLE as error:
            where = store or "the default file system"
            yield f"{where}: {_refused(first_sentence(error), store)}"


def _refused(text: str, store: str) -> str:
    if NO_CONNECTOR.search(text):
        return (
            f"Spark cannot speak to it ({text}); name the package of its connector in "
            "conf/base/spark.yml, as s3a does, or start Spark with its jars"
        )
    if NO_KEY.search(text):
        return (
            "there are no keys for it; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
            "give the machine or the pod a role, or write fs.s3a.access.key and "
            "fs.s3a.secret.key into the environment's credentials.yml, and credentials: "
            f"NAME into its spark.yml ({text})"
        )
    if WRONG_KEY.search(text):
        return (
            "the store refuses the keys; correct fs.s3a.access.key and "
            "fs.s3a.secret.key in the environment's credentials.yml, or "
            f"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY ({text})"
        )
    if NO_BUCKET.search(text):
        return (
            f"there is no bucket {store.rpartition('/')[2]}; make it, or correct it in "
            "the environment's globals.yml"
        )
    address = "its address"
    if store.startswith("s3a:"):
        address = "fs.s3a.endpoint in the environment's credentials.yml or spark.yml"
    return f"the store does not answer ({text}); correct {address}, or try later"


def before_nodes(spark: SparkSession, topology: Topology) -> list[str]:
    """Find what is wrong with sources, formats and checkpoints."""
    streams = topology.streams
    made = {n for n, d in topology.sources.items() if d.lacks_its_folder()}
    free = {n: d for n, d in topology.sources.items() if n not in {*streams, *made}}
    ours = {**topology.sources, **streams, **topology.tables}
    if problems := list(unknown_formats(spark, ours)):
        return problems  # without them, Spark would only say so in other words
    if problems := list(unreachable(topology)):
        return problems
    return [
        *unreadable(free),
        *replaced(topology),
        *unpaired(topology),
    ]


def after_nodes(
    spark: SparkSession, streams: Streams, stand_ins: Mapping[str, str] | None = None
) -> list[str]:
    """Find what is wrong with the streams that the nodes have described."""
    return [
        *impossible(spark, streams),
        *unstorable(streams),
        *changed(streams, stand_ins or {}),
    ]


def shared_places(streams: Streams) -> Iterator[str]:
    """Find streams that would share a name, a checkpoint or an output."""
    for what, values, why in [
        ("query name", lambda s: [s.query_name], "Spark tells streams apart by it"),
        ("checkpoint", lambda s: [s.checkpoint], "one would stop the other"),
        ("filepath", _written_folders, "rows of both would get lost"),
        ("table", lambda s: [getattr(s, "table", None)], "neither could be read"),
    ]:
        shared = Counter(filter(None, chain(*map(values, streams.values()))))
        for place in [place for place, count in shared.items() if count > 1]:
            names = [name for name, s in streams.items() if place in values(s)]
            yield (
                f"{' and '.join(names)} have one {what}, {place}, and {why}; give "
                "each its own"
            )


def _written_folders(stream: StreamSink) -> list[str | None]:
    """Return where a stream writes as if nobody else did."""
    return [getattr(stream, "filepath", None), *stream.overwritten]


def nested_places(streams: Streams) -> Iterator[str]:
    """Find folders of a stream inside others, which a reset or a batch would delete."""
    places = [
        (name, place)
        for name, stream in streams.items()
        for place in (stream.checkpoint, stream.output, *stream.overwritten)
        if place
    ]
    for name, place in places:
        for other, around in places:
            if name != other and place.startswith(f"{around}/"):
                yield (
                    f"{name} keeps {place} inside {around}, which is {other}'s alone; "
                    "give each a folder beside the other"
                )


def unreadable(sources: dict[str, SparkStreamingDataset]) -> Iterator[str]:
    """Find sources that are not there, or whose schema is not understood."""
    for name, dataset in sources.items():
        try:
            dataset.load()
        except DatasetError as error:
            yield f"{name}: {error}"


def replaced(topology: Topology) -> Iterator[str]:
    """Find tables that a stream follows while another one writes them anew."""
    for name, writer in topology.followers(lambda stream: stream.replaces):
        yield (
            f"{name}: every batch of {writer} replaces this table, and a stream can only "
            "follow a table to which rows are added; read it as it is, by an entry of its "
            "own with streaming: false, or read what that stream reads"
        )


def unknown_formats(spark: SparkSession, datasets: dict[str, Any]) -> Iterator[str]:
    """Find entries of which Spark does not know a format, or has not the driver."""
    for name, dataset in datasets.items():
        stores = arguments.stores(*getattr(dataset, "paths", ()))
        others = {*stores, *getattr(dataset, "databases", ())} - plans.DRIVERS.keys()
        # A store or a driver that somebody names is no format of Spark's.
        named: set[str] = getattr(dataset, "named_formats", set())
        others |= {name for name in named if package_for(name)}
        for file_format in sorted(dataset.formats - others):
            if not plans.knows_format(spark, file_format):
                yield f"{name}: {missing_format(file_format)}"


def unpaired(topology: Topology) -> Iterator[str]:
    """Find checkpoints and outputs that do not belong together."""
    for name, stream in topology.streams.items():
        if stream.checkpoint and stream.output:
            problem = checkpoints.mismatch(stream.checkpoint, stream.output)
            if problem:
                below = topology.downstream(name)
                also = f" (with {' and '.join(below)}, which read it)" if below else ""
                yield (
                    f"{name}: {problem}; put back what is missing, or start over{also}: "
                    f"{our_command('reset', name, *below)}"
                )


def locked(streams: Streams) -> Iterator[str]:
    """Find streams that another run is running."""
    for name, stream in streams.items():
        if stream.checkpoint and (by := locks.holder(stream.checkpoint)):
            yield f"{name}: {locks.refusal(stream.checkpoint, by)}"


def circular(topology: Topology) -> Iterator[str]:
    """Find streams that would wait for each other, and so never start."""
    circle = [n for n in topology.streams if n in topology.downstream(n)]
    if circle:
        yield (
            f"{' and '.join(circle)} read each other's output, so none of them can be "
            "the first to catch up; run them with streams.until=stopped, or break the "
            "circle"
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
        try:
            for problem in stream.unstorable(stream.data.schema):
                yield f"{name}: {problem}"
        except DatasetError as error:  # a registry that refuses
            yield f"{name}: {error}"


def unreachable(topology: Topology) -> Iterator[str]:
    """Find brokers that do not answer, or have no such topic."""
    entries = topology.kafka_entries
    yield from kafka.problems({name: e.connection for name, e in entries.items()})


def unkept(topology: Topology) -> Iterator[str]:
    """Find entries that leave malformed messages to another one, which nobody reads."""
    keeping = {n: s for n, s in topology.sources.items() if s.keeps_malformed}
    entries = list(topology.entries_of_malformed()) if keeping else []
    for name, source in keeping.items():
        if not any(map(source.leaves_to, entries)):
            yield (
                f"{name}: payload.malformed is keep, and no node reads what is "
                f"malformed of {source.place}; add a copy of {name} with "
                "malformed_only: true, the same load_args and payload, and a node that "
                "stores it, or write malformed: fail, or drop"
            )


def changed(streams: Streams, stand_ins: Mapping[str, str]) -> Iterator[str]:
    """Find streams that are no longer what their checkpoint was made by."""
    for name, stream in streams.items():
        if stream.checkpoint:
            for change in checkpoints.changes(stream, stand_ins):
                advice = (
                    "undo the change, give the new stream a checkpoint and an output of "
                    f"its own, or start over: {our_command('reset', name)}"
                )
                if checkpoints.is_of_another(stream):  # who may still need it
                    advice = f"give {name} a checkpoint and an output of its own"
                yield (
                    f"{name}: checkpoint {stream.checkpoint} belongs to another stream: "
                    f"{change}; {advice}"
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
