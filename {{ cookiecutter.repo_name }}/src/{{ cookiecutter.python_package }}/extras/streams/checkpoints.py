"""What a checkpoint says, and whether it belongs to the stream that uses it."""

import json
from typing import TypedDict

from pyspark.sql import SparkSession

from ..datasets import StreamSink
from . import hadoop, plans

RECORD = "_stream.json"


class Record(TypedDict):
    """What must stay as it is for a checkpoint to be of use."""

    sources: list[str]
    keys: list[str]
    sink: str


def remember(spark: SparkSession, stream: StreamSink) -> None:
    """Write down, beside what Spark keeps, which stream a checkpoint belongs to."""
    checkpoint, record = str(stream.checkpoint), _record_of(stream)
    if record != _read(spark, checkpoint):
        text = json.dumps(record, indent=2)
        hadoop.write_text(spark, f"{checkpoint}/{RECORD}", text)


def changes(spark: SparkSession, stream: StreamSink) -> list[str]:
    """Say how a stream differs from the one that its checkpoint belongs to."""
    checkpoint = str(stream.checkpoint)
    before, now = _read(spark, checkpoint), _record_of(stream)
    if before is None or latest(spark, f"{checkpoint}/offsets") is None:
        return []
    differences = []
    if before["sources"] != now["sources"]:
        differences.append(_difference("read", before["sources"], now["sources"]))
    if before["keys"] != now["keys"]:
        differences.append(_difference("kept", before["keys"], now["keys"]))
    if before["sink"] != now["sink"]:
        differences.append(_difference("wrote", [before["sink"]], [now["sink"]]))
    return differences


def mismatch(spark: SparkSession, checkpoint: str, output: str) -> str | None:
    """Say why a checkpoint and a folder of files do not belong together.

    Spark numbers batches in both, and writes first the output's number, then the
    checkpoint's. So the output is as far as the checkpoint, or one batch ahead.
    """
    planned = latest(spark, f"{checkpoint}/offsets")
    committed = latest(spark, f"{checkpoint}/commits")
    written = latest(spark, f"{output}/_spark_metadata")
    if planned is None:
        if written is None:
            return None
        return (
            f"output {output} holds {written + 1} batches, and their checkpoint "
            f"{checkpoint} is gone, so Spark would silently skip as many new batches"
        )
    done = -1 if committed is None else committed
    ahead = (-1 if written is None else written) - done
    if ahead in (0, 1):
        return None
    if written is None:
        return (
            f"checkpoint {checkpoint} says that {done + 1} batches were written, and "
            f"output {output} has none of them"
        )
    return (
        f"checkpoint {checkpoint} is at batch {done}, and output {output} at batch "
        f"{written}: they are not of the same age"
    )


def latest(spark: SparkSession, log: str) -> int | None:
    """Return the number of the newest batch in one of Spark's logs."""
    numbers = (name.removesuffix(".compact") for name in hadoop.names(spark, log))
    return max((int(n) for n in numbers if n.isdigit()), default=None)


def _record_of(stream: StreamSink) -> Record:
    return {
        "sources": plans.sources(stream.data),
        "keys": plans.keys(stream.data),
        "sink": stream.kind,
    }


def _read(spark: SparkSession, checkpoint: str) -> Record | None:
    """Return the record; None if there is none, or a crash left half of one."""
    try:
        return json.loads(hadoop.read_text(spark, f"{checkpoint}/{RECORD}") or "")
    except Exception:
        return None


def _difference(verb: str, before: list[str], now: list[str]) -> str:
    return f"it {verb} {_list(before)}, not {_list(now)}"


def _list(items: list[str]) -> str:
    return " and ".join(items) or "nothing"
