"""What is legal, but hurts sooner or later; each warning is one small function."""

from collections.abc import Iterator

from pyspark.sql import SparkSession

from ..datasets import StreamSink
from . import checkpoints, plans
from .files import is_remote
from .session import our_command, shown
from .topology import Topology

Streams = dict[str, StreamSink]
OBJECT_STORES = (
    "s3",
    "s3a",
    "s3n",
    "gs",
    "abfs",
    "abfss",
    "wasb",
    "wasbs",
    "oss",
    "cosn",
)


def warnings(spark: SparkSession, topology: Topology, streams: Streams) -> list[str]:
    """Find all of it; ``streams`` are those whose plan could be built."""
    return [
        *growing_state(streams),
        *costly_trigger(streams),
        *checkpoint_out_of_reach(spark, streams),
        *messages_skipped(topology, streams),
        *rows_expired(topology, streams),
        *rows_that_may_change(topology),
        *keys_that_come_twice(streams),
        *fixed_partitions(spark, streams),
        *hurt_by_a_replay(streams),
    ]


def growing_state(streams: Streams) -> Iterator[str]:
    """State that nothing ever removes."""
    for name, stream in streams.items():
        if plans.forgets_nothing(stream.data) and stream.output_mode != "complete":
            yield (
                f"{name}: keeps state that no watermark ends, so it grows for ever; add "
                ".withWatermark(column, '10 minutes'), and group by that column or a "
                "window of it"
            )


def costly_trigger(streams: Streams) -> Iterator[str]:
    """Batches without a pause, each of which costs calls to a store."""
    for name, stream in streams.items():
        stores = [p for p in stream.paths if p.partition(":")[0] in OBJECT_STORES]
        if stores and stream.has_default_trigger:
            yield (
                f"{name}: without a trigger, batches follow each other without a pause, "
                f"and every one costs dozens of paid calls to {stores[0]}; set trigger: "
                "1 minute"
            )


def checkpoint_out_of_reach(spark: SparkSession, streams: Streams) -> Iterator[str]:
    """A checkpoint on one machine, and workers on others."""
    if str(spark.sparkContext.master).startswith("local"):
        return
    for name, stream in streams.items():
        if stream.checkpoint and not is_remote(stream.checkpoint):
            yield (
                f"{name}: checkpoint {shown(stream.checkpoint)} is on a local disk, and "
                "a cluster's workers do not see it unless it is shared; put it on HDFS "
                "or an object store"
            )


def messages_skipped(topology: Topology, streams: Streams) -> Iterator[str]:
    """Messages of Kafka that would never be read, without an error."""
    for name, stream in streams.items():
        for source, dataset in topology.sources_of(name).items():
            if not dataset.is_kafka or not dataset.is_stream:
                continue
            if str(dataset.reader_option("failOnDataLoss")).lower() == "false":
                yield (
                    f"{name}: failOnDataLoss is false in {source}, so messages that "
                    "Kafka deleted before they were read are skipped in silence; remove "
                    "it once the stream has passed the gap"
                )
            if dataset.begins_with_the_latest and not _has_begun(stream):
                yield (
                    f"{name}: begins with the messages that arrive after its first "
                    f"start; set startingOffsets: earliest in {source} to read those "
                    "that are there, too"
                )
                if dataset.keeps_malformed:
                    yield (
                        f"{name}: leaves malformed messages to another stream, which "
                        "begins at a start of its own, so that those between the two "
                        "starts are kept by neither; set startingOffsets: earliest, or "
                        f"startingTimestamp, in {source} and in its malformed_only copy"
                    )


def rows_expired(topology: Topology, streams: Streams) -> Iterator[str]:
    """Rows of Iceberg that a new stream would never read, without an error."""
    for name, stream in streams.items():
        for source, dataset in topology.sources_of(name).items():
            is_new = dataset.is_stream and not _has_begun(stream)
            if is_new and dataset.has_lost_its_beginning:
                yield (
                    f"{name}: begins with the oldest snapshot that {source} still has; "
                    "rows of those that have expired are in the table, and are not read: "
                    "bring them in once, by an entry with streaming: false"
                )


def rows_that_may_change(topology: Topology) -> Iterator[str]:
    """Tables that a stream follows while another one merges into them."""
    for name, writer in topology.followers(lambda stream: stream.merges_into):
        yield (
            f"{name}: {writer} merges into this table, and a stream can only follow one "
            "to which rows are added: it ends with the first batch that changes a row; "
            "read the table as it is, by an entry of its own with streaming: false, or "
            "read what that stream reads"
        )


def keys_that_come_twice(streams: Streams) -> Iterator[str]:
    """Tables that one stream merges into by key, and another one appends to."""
    for name, stream in streams.items():
        for other, appending in streams.items():
            if stream.merges_into & appending.exchanges:
                yield (
                    f"{name} and {other} write one table, {name} one row a key and {other} "
                    "every row, so that keys are there twice; let both merge, or give "
                    "each a table of its own"
                )


def fixed_partitions(spark: SparkSession, streams: Streams) -> Iterator[str]:
    """Partitions of state that were fixed when the stream first ran."""
    now = int(str(spark.conf.get(checkpoints.PARTITIONS)))
    for name, stream in streams.items():
        if stream.checkpoint and plans.is_stateful(stream.data):
            settings = checkpoints.position(stream.checkpoint).settings
            fixed = int(settings.get(checkpoints.PARTITIONS, now))
            if fixed > now:
                yield (
                    f"{name}: its state has {fixed} partitions since its first run, and "
                    f"spark.sql.shuffle.partitions: {now} does not change that, so its "
                    f"batches stay slow; to have {now}: {our_command('reset', name)}"
                )


def hurt_by_a_replay(streams: Streams) -> Iterator[str]:
    """Batches that would be there twice after a crash, or not be there at all."""
    for name, stream in streams.items():
        yield from (f"{name}: {hazard}" for hazard in stream.hazards())


def _has_begun(stream: StreamSink) -> bool:
    if not stream.checkpoint:
        return False
    return checkpoints.latest(f"{stream.checkpoint}/offsets") is not None
