"""What a described stream would do, read off Spark's plan of it."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

# The options that say what a source reads; a checkpoint is worth nothing elsewhere.
PLACES = ("path", "subscribe", "subscribePattern", "assign")


def sources(data: DataFrame) -> list[str]:
    """Describe each source a stream reads, e.g. ``json from /data/in``."""
    return [_describe_source(node) for node in _nodes(data) if _is_source(node)]


def source_paths(data: DataFrame) -> set[str]:
    """Return the folders a stream reads."""
    found = (_option(node, "path") for node in _nodes(data) if _is_source(node))
    return {path.rstrip("/") for path in found if path}


def keys(data: DataFrame) -> list[str]:
    """Describe what a stream keeps state by, e.g. ``Aggregate by sku STRING``."""
    return [
        f"{node.nodeName()} by {', '.join(_columns(node))}"
        for node in _nodes(data)
        if node.isStreaming() and node.nodeName() in ("Aggregate", "Deduplicate")
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
    lookup = spark._jvm.org.apache.spark.sql.execution.datasources.DataSource  # type: ignore[union-attr]
    try:
        lookup.lookupDataSource(file_format, spark._jsparkSession.sessionState().conf())
    except Exception:
        return False
    return True


def _nodes(data: DataFrame) -> Iterator[Any]:
    """Walk through the plan, from the sink to the sources."""
    waiting = [data._jdf.queryExecution().analyzed()]
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(_items(node.children()))


def _items(scala_seq: Any) -> list[Any]:
    return [scala_seq.apply(i) for i in range(scala_seq.size())]


def _is_source(node: Any) -> bool:
    return node.isStreaming() and node.nodeName().startswith("StreamingRelation")


def _describe_source(node: Any) -> str:
    places = [place for name in PLACES if (place := _option(node, name))]
    return " from ".join([_format(node), *places])


def _format(node: Any) -> str:
    is_files = node.nodeName() == "StreamingRelation"
    return node.dataSource().className() if is_files else node.sourceName()


def _option(node: Any, name: str) -> str | None:
    if node.nodeName() == "StreamingRelation":
        found = node.dataSource().options().get(name)
        return found.get() if found.isDefined() else None
    return node.extraOptions().get(name)


def _columns(node: Any) -> list[str]:
    is_aggregate = node.nodeName() == "Aggregate"
    expressions = node.groupingExpressions() if is_aggregate else node.keys()
    return [f"{e.sql()} {e.dataType().sql()}" for e in _items(expressions)]
