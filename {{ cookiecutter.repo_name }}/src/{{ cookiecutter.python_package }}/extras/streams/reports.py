"""What Spark reports about streams, as it happens."""

import json
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from ..datasets.payload import LEFT_OUT

BEFORE_DATA = "1970-01-01T00:00:00.000Z"  # a watermark that has seen no row yet


class Batch:
    """A committed batch, in the words of Spark's report on it.

    ``malformed`` counts from the start of the run, so that none goes by unseen.
    """

    def __init__(self, report: dict[str, Any]) -> None:
        self.number: int = report["batchId"]
        self.rows: int = report["numInputRows"]
        self.seconds: float = report["batchDuration"] / 1000
        self.rows_in: float | None = report.get("inputRowsPerSecond")
        self.rows_done: float | None = report.get("processedRowsPerSecond")
        watermark = report.get("eventTime", {}).get("watermark", BEFORE_DATA)
        self.watermark: str | None = None if watermark == BEFORE_DATA else watermark
        observed = report.get("observedMetrics", {})
        self.observed = {k: v for k, v in observed.items() if LEFT_OUT not in v}
        left_out = [v[LEFT_OUT] for v in observed.values() if LEFT_OUT in v]
        self.malformed: int | None = sum(left_out) if left_out else None
        kept = [operator["numRowsTotal"] for operator in report["stateOperators"]]
        self.state_rows: int | None = sum(kept) if kept else None
        behind = [_behind(source) for source in report["sources"]]
        known = [count for count in behind if count is not None]
        self.messages_behind: int | None = sum(known) if known else None


class Reports(StreamingQueryListener):
    """Keeps the newest batch of every query, by the query's name."""

    def __init__(self) -> None:
        self.batches: dict[str, Batch] = {}
        self.ended: set[str] = set()  # ids of the runs of queries that have
        self._in_java: Any = None

    @property
    def _jlistener(self) -> Any:
        """What PySpark hands to Java."""
        if self._in_java is None:
            jvm: Any = SparkContext._jvm
            self._in_java = jvm.PythonStreamingQueryListenerWrapper(_AtOnce(self))
        return self._in_java

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        """Nothing yet: there is no batch."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        """Nothing: the report was noted before it was converted."""

    def note(self, report: dict[str, Any]) -> None:
        """Remember a batch; Spark also reports that it has looked for data in vain."""
        if "addBatch" in report["durationMs"]:
            batch, before = Batch(report), self.batches.get(report["name"])
            if batch.malformed is not None and before:
                batch.malformed += before.malformed or 0
            self.batches[report["name"]] = batch

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        """Nothing: the last batch stays the last."""

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        """Remember it for whoever wants to know why."""
        self.ended.add(str(event.runId))


class _AtOnce(JStreamingQueryListener):
    """Takes a report as one text.

    PySpark's way, a call to Java for each field, takes a busy machine half a second
    a batch, and the reports then come minutes late.
    """

    pylistener: Reports

    def onQueryProgress(self, jevent: Any) -> None:
        self.pylistener.note(json.loads(jevent.json())["progress"])


def _behind(source: dict[str, Any]) -> int | None:
    """Count the messages between what was read and what Kafka has, if it is Kafka."""
    end, latest = source.get("endOffset"), source.get("latestOffset")
    if "Kafka" not in source["description"] or not end or not latest:
        return None
    return sum(
        offset - end.get(topic, {}).get(partition, 0)
        for topic, partitions in latest.items()
        for partition, offset in partitions.items()
    )
