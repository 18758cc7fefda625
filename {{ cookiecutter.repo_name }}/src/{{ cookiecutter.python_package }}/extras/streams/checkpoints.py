"""What a checkpoint says, and whether it belongs to the stream that uses it."""

import json
from typing import TypedDict

from pyspark.sql import DataFrame, SparkSession

from . import hadoop, plans

RECORD = "_stream.json"


class Record(TypedDict):
    """What a stream was when its checkpoint was made."""

    sources: list[str]
    keys: list[str]


def record_of(data: DataFrame) -> Record:
    """Return what must stay as it is for a checkpoint to be of use."""
    return {"sources": plans.sources(data), "keys": plans.keys(data)}


def remember(spark: SparkSession, checkpoint: str, data: DataFrame) -> None:
    """Write down, beside what Spark keeps, which stream a checkpoint belongs to."""
    text = json.dumps(record_of(data), indent=2)
    hadoop.write_text(spark, f"{checkpoint}/{RECORD}", text)


def changes(spark: SparkSession, checkpoint: str, data: DataFrame) -> list[str]:
    """Say how a stream differs from the one that its checkpoint belongs to."""
    text = hadoop.read_text(spark, f"{checkpoint}/{RECORD}")
    if text is None or latest(spark, f"{checkpoint}/offsets") is None:
        return []
    before, now = json.loads(text), record_of(data)
    differences = []
    if before["sources"] != now["sources"]:
        differences.append(_difference("read", before["sources"], now["sources"]))
    if before["keys"] != now["keys"]:
        differences.append(_difference("kept", before["keys"], now["keys"]))
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


def _difference(verb: str, before: list[str], now: list[str]) -> str:
    return f"it {verb} {' and '.join(before) or 'nothing'}, not " + (
        " and ".join(now) or "nothing"
    )
