"""Sample rows that arrive while you watch."""

import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import TimestampType

from ..datasets import SparkStreamingDataset
from . import checks
from .files import is_remote
from .session import get_spark
from .topology import Topology

FED = "fed_"  # begins the name of a file that was dropped, and is no sample
FILE_OPTIONS = ("header", "sep", "timestampFormat")  # as the reader expects it


class Feed:
    """Sends the rows of sample files to where a stream reads."""

    def __init__(
        self,
        samples: SparkStreamingDataset,
        target: SparkStreamingDataset,
        topic: str | None,
        now: bool,
    ) -> None:
        self._target = target
        self._topic = topic
        rows = _samples(samples)
        self._rows = (_moved_to_now(rows) if now else rows).collect()
        self._schema = rows.schema
        self.total = len(self._rows)

    @property
    def has_more(self) -> bool:
        """Whether there are rows that were not sent yet."""
        return bool(self._rows)

    def send(self, count: int) -> int:
        """Send the next rows, at most so many; return how many there were."""
        chunk, self._rows = self._rows[:count], self._rows[count:]
        if chunk:
            rows = get_spark().createDataFrame(chunk, self._schema).coalesce(1)
            _send(rows, self._target, self._topic)
        return len(chunk)


def _samples(entry: SparkStreamingDataset) -> DataFrame:
    """Read sample files in order; an entry of broken lines gives them as they are."""
    if entry.malformed_only:
        return entry.as_table()
    rows = entry.as_table(mode="DROPMALFORMED").where(
        ~F.col("_metadata.file_name").startswith(FED)
    )
    return rows.orderBy("_metadata.file_path", F.monotonically_increasing_id())


def _moved_to_now(rows: DataFrame) -> DataFrame:
    """Move all times by as much as it takes for the newest to be now."""
    times = [f.name for f in rows.schema if isinstance(f.dataType, TimestampType)]
    if not times:
        return rows
    newest = rows.select(*[F.max(time) for time in times]).first()
    moved = F.current_timestamp() - F.lit(max(newest or ()))
    return rows.withColumns({time: F.col(time) + moved for time in times})


def _send(rows: DataFrame, target: SparkStreamingDataset, topic: str | None) -> None:
    if topic is None:
        _drop_file(rows, target)
        return
    is_broken = target.malformed_only
    messages = rows.select("value") if is_broken else target.outgoing(rows)
    writer = messages.write.format("kafka").options(**target.client_options)
    writer.option("topic", topic).save()


def _drop_file(rows: DataFrame, target: SparkStreamingDataset) -> None:
    """Write a file elsewhere and move it, so that no stream sees half of it."""
    options = {k: v for k in FILE_OPTIONS if (v := target.reader_option(k))}
    if is_remote(str(target.filepath)):
        writer = rows.write.format(target.file_format).options(**options)
        writer.mode("append").save(target.filepath)  # Spark moves it there by itself
        return
    folder = Path(str(target.filepath))
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        rows.write.format(target.file_format).options(**options).save(f"{scratch}/rows")
        part = next(Path(scratch).glob("rows/part-*"))
        shutil.move(part, folder / f"{FED}{time.time_ns()}.{target.file_format}")


def _topics_to_feed(samples: Topology, targets: Topology) -> dict[str, str]:
    """Return the one topic of each source that nothing in the project writes."""
    entries = targets.kafka_entries
    written = {t for n, e in entries.items() if n in targets.streams for t in e.topics}
    read = {n: e for n, e in entries.items() if n in samples.sources}
    free = {n: [t for t in e.topics if t not in written] for n, e in read.items()}
    checks.refuse(
        f"{name}: feed cannot tell which topic of {entry.place} to send to; name one, "
        "with subscribe"
        for name, entry in read.items()
        if len(free[name]) > 1 or not entry.topics
    )
    return {name: topics[0] for name, topics in free.items() if topics}


def send_samples(
    samples: Topology, targets: Topology, rate: int, now: bool
) -> Iterator[str]:
    """Send rows to all sources that nothing in the project writes; say what was sent."""
    checks.refuse(checks.wrong_entries(targets))
    topics = _topics_to_feed(samples, targets)
    get_spark(*samples.formats, *targets.formats)
    checks.refuse(checks.unreachable(targets))
    feeds = {
        name: Feed(samples.sources[name], target, topics.get(name), now)
        for name, target in targets.sources.items()
        if name in samples.sources
        and name not in targets.streams
        and target.is_stream
        and (name in topics if target.is_kafka else not target.malformed_only)
    }
    sent: Counter[str] = Counter()
    while any(feeds[name].has_more for name in feeds):
        began = time.monotonic()
        for name, one in feeds.items():
            if count := one.send(rate):
                sent[name] += count
                yield f"{name}: {sent[name]} of {one.total} rows sent"
        time.sleep(max(0.0, began + 1 - time.monotonic()))
