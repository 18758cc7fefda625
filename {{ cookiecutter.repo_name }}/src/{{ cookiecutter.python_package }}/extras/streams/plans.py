"""What a described stream would do, read off Spark's plan of it."""

import re
from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

# The options that say what a source reads; a checkpoint is worth nothing elsewhere.
PLACES = ("path", "subscribe", "subscribePattern", "assign")

# What Spark makes of F.window and F.session_window, with the widths as literals.
WINDOW = "precisetimestampconversion"
WIDTH = re.compile(r"\b(\d{4,})L|'(\d[^']*)'")
WATERMARKED = "spark.watermarkDelayMs"  # how Spark marks the column of a watermark
DRIVERS = {"postgresql": "org.postgresql.Driver"}  # of databases, by their names
STATEFUL = re.compile("Aggregate|Deduplicate|Distinct|FlatMapGroups|TransformWithState")


def sources(data: DataFrame) -> list[str]:
    """Describe each source a stream reads, e.g. ``json from /data/in``."""
    return [_describe_source(node) for node in _streaming_nodes(data) if _reads(node)]


def keys(data: DataFrame) -> list[str]:
    """Describe what a stream keeps state by, e.g. ``Aggregate by sku STRING``."""
    described = []
    for node in _streaming_nodes(data):
        if node.nodeName() == "Aggregate":
            described.append(_by(node, node.groupingExpressions()))
        elif node.nodeName() == "Deduplicate":
            described.append(_by(node, node.keys()))
        else:
            described += _windows(node)
    return described


def is_stateful(data: DataFrame) -> bool:
    """Whether a stream remembers rows from batch to batch."""
    return any(_keeps_state(node) for node in _streaming_nodes(data))


def forgets_nothing(data: DataFrame) -> bool:
    """Whether a stream keeps something that no watermark ever lets it drop."""
    nodes = [node for node in _streaming_nodes(data) if _keeps_state(node)]
    return any(not _is_limited(node, bool(watermarks(data))) for node in nodes)


def _is_limited(node: Any, has_watermark: bool) -> bool:
    """Groups and duplicates are dropped by a time among their keys."""
    if node.nodeName() == "Aggregate":
        keys = _items(node.groupingExpressions())
        if not keys:
            return True  # one row, for everything
    elif node.nodeName() == "Deduplicate":
        keys = _items(node.keys())
    else:
        return has_watermark
    used = [a for key in keys for a in _items(key.references().toSeq())]
    return any(attribute.metadata().contains(WATERMARKED) for attribute in used)


def watermarks(data: DataFrame) -> list[str]:
    """Describe how long a stream waits for late rows, e.g. ``read_at 10 minutes``."""
    return [
        f"{node.eventTime().name()} {node.delay().toString()}"
        for node in _streaming_nodes(data)
        if node.nodeName() == "EventTimeWatermark"
    ]


def refuse_impossible(
    spark: SparkSession, data: DataFrame, output_mode: str, continuous: bool
) -> None:
    """Let Spark refuse, without starting it, a plan that it could never run."""
    jvm: Any = spark._jvm
    mode = getattr(jvm.org.apache.spark.sql.streaming.OutputMode, output_mode.title())()
    plan = data._jdf.queryExecution().analyzed()
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    checker.checkForStreaming(plan, mode)
    if continuous:
        checker.checkForContinuous(plan, mode)


def knows_format(spark: SparkSession, file_format: str) -> bool:
    """Whether Spark, with the packages it was started with, knows a format."""
    java: Any = spark._jvm
    if file_format in DRIVERS:
        return java.org.apache.spark.util.Utils.classIsLoadable(DRIVERS[file_format])
    lookup = java.org.apache.spark.sql.execution.datasources.DataSource
    try:
        lookup.lookupDataSource(file_format, spark._jsparkSession.sessionState().conf())
    except Exception:
        return False
    return True


def _streaming_nodes(data: DataFrame) -> Iterator[Any]:
    """Walk through what streams of a plan, from the sink to the sources."""
    waiting = [data._jdf.queryExecution().analyzed()]
    while waiting:
        node = waiting.pop()
        if node.isStreaming():
            yield node
            waiting.extend(_items(node.children()))


def _keeps_state(node: Any) -> bool:
    if node.nodeName() == "Join":
        return all(child.isStreaming() for child in _items(node.children()))
    return STATEFUL.match(node.nodeName()) is not None


def _items(scala_seq: Any) -> list[Any]:
    return [scala_seq.apply(i) for i in range(scala_seq.size())]


def _reads(node: Any) -> bool:
    return node.nodeName().startswith("StreamingRelation")


def _describe_source(node: Any) -> str:
    is_files = node.nodeName() == "StreamingRelation"
    name = node.dataSource().className() if is_files else node.sourceName()
    places = [place for option in PLACES if (place := _option(node, option))]
    return " from ".join([name, *places])


def _option(node: Any, name: str) -> str | None:
    if node.nodeName() == "StreamingRelation":
        found = node.dataSource().options().get(name)
        return found.get() if found.isDefined() else None
    return node.extraOptions().get(name)


def _by(node: Any, expressions: Any) -> str:
    columns = [f"{e.sql()} {e.dataType().sql()}" for e in _items(expressions)]
    return f"{node.nodeName()} by {', '.join(columns)}"


def _windows(node: Any) -> list[str]:
    """Describe the time windows a node computes, by their widths in microseconds."""
    texts = [e.sql() for e in _items(node.expressions())]
    found = [WIDTH.findall(text) for text in texts if WINDOW in text]
    widths = {number or text for pairs in found for number, text in pairs}
    return [f"time window of {', '.join(sorted(widths))}"] if widths else []
