"""The words of a catalog entry: understood, or refused with the right spelling."""

import inspect
import os
import re
from difflib import get_close_matches
from typing import Any

from kedro.io import DatasetError
from pyspark import __version__
from pyspark.sql.streaming import DataStreamWriter

from ..streams.files import is_remote
from ..streams.session import project_path

OUTPUT_MODES = ("append", "update", "complete")
SINK_KEYS = ("output_mode", "checkpoint", "trigger", "query_name", "partition_by")

# Spark's own spelling, which as an option it would silently ignore.
OTHER_SPELLINGS = {
    "checkpointlocation": "checkpoint",
    "outputmode": "output_mode",
    "mode": "output_mode",
    "queryname": "query_name",
    "partitionby": "partition_by",
    "processingtime": "trigger: 10 seconds",
    "availablenow": "trigger: available_now",
}
READER_KEYS = ("schema", "maxFilesPerTrigger", "maxBytesPerTrigger", "cleanSource")
READER_OPTIONS = (  # those that decide what is read, and when
    *READER_KEYS,
    "assign",
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "failOnDataLoss",
    "fileNameOnly",
    "includeHeaders",
    "latestFirst",
    "maxFileAge",
    "maxOffsetsPerTrigger",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
    "minPartitions",
    "pathGlobFilter",
    "recursiveFileLookup",
    "rowsPerSecond",
    "sourceArchiveDir",
    "startTimestamp",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingTimestamp",
    "startingVersion",
    "subscribe",
    "subscribePattern",
)

INTERVAL = re.compile(
    r"(interval\s+)?(\d+\s+(microsecond|millisecond|second|minute|hour|day|week)s?\s*)+",
    re.IGNORECASE,
)
INTERVAL_ADVICE = "write an interval as a number and a unit, e.g. 10 seconds"
TRIGGERS = "an interval (10 seconds), available_now, once, continuous 1 second"


def refuse_unknown(cls: Any, config: dict[str, Any]) -> None:
    """Refuse keys of a catalog entry that the dataset does not know."""
    known = [k for k in inspect.signature(cls.__init__).parameters if k != "self"]
    for key in config:
        if key in SINK_KEYS and key not in known:
            raise DatasetError(f"key '{key}' is not known here; put it under save_args")
        if key not in known:
            nearest = _nearest(key, known)
            hint = (
                f"did you mean {nearest}?" if nearest else f"known: {', '.join(known)}"
            )
            raise DatasetError(f"key '{key}' is not known here; {hint}")


def refuse_unknown_keys(config: Any, known: tuple[str, ...], where: str) -> None:
    """Refuse keys of a mapping inside a catalog entry that mean nothing there."""
    if not isinstance(config, dict):
        raise DatasetError(f"{where} is {config!r}; write {known[0]}: ... under it")
    for key in config:
        if key not in known:
            nearest = _nearest(key, known)
            hint = f"write {nearest}" if nearest else f"known: {', '.join(known)}"
            raise DatasetError(f"'{key}' means nothing in {where}; {hint}")


def refuse_misspelt_reading(load_args: dict[str, Any]) -> None:
    """Refuse what Spark's reader would take for an option and silently ignore."""
    spellings = {k: v for k, v in OTHER_SPELLINGS.items() if k != "mode"}
    for key in load_args:
        right = key if key in SINK_KEYS else spellings.get(key.lower())
        if right:
            raise DatasetError(
                f"'{key}' does nothing in load_args, because it is about writing; "
                f"write {right} under save_args"
            )
        if near := _nearest(key, READER_OPTIONS, cutoff=0.9):
            if near.lower() != key.lower():
                raise DatasetError(
                    f"'{key}' in load_args would be ignored by Spark; write {near}"
                )


def refuse_misspelt_writing(save_args: dict[str, Any]) -> None:
    """Refuse what Spark's writer would take for an option and silently ignore."""
    for key in save_args:
        if key in SINK_KEYS:
            continue
        if key in READER_KEYS:
            raise DatasetError(
                f"'{key}' does nothing in save_args, because it is about reading; "
                "write it under load_args"
            )
        right = OTHER_SPELLINGS.get(key.lower()) or _nearest(key, SINK_KEYS)
        if right:
            raise DatasetError(
                f"'{key}' in save_args would be ignored by Spark; write {right}"
            )


def output_mode(save_args: dict[str, Any]) -> str:
    """Return the output mode, ``append`` unless said otherwise."""
    mode = save_args.get("output_mode", "append")
    if mode not in OUTPUT_MODES:
        raise DatasetError(
            f"output_mode '{mode}' does not exist; write {', '.join(OUTPUT_MODES[:-1])} "
            f"or {OUTPUT_MODES[-1]}"
        )
    return mode


def trigger(save_args: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``DataStreamWriter.trigger`` that a text stands for."""
    text = save_args.get("trigger")
    if text is None:
        return {}
    if not isinstance(text, str):
        raise DatasetError(f"trigger {text!r} is not a text; write {TRIGGERS}")
    if text == "available_now":
        return {"availableNow": True}
    if text == "once":
        return {"once": True}
    kind, _, interval = text.partition(" ")
    if kind == "continuous" and interval:
        return {"continuous": _interval(interval)}
    if kind == "real_time" and interval:
        _refuse_missing_real_time()
        return {"realTime": _interval(interval)}
    if re.fullmatch(r"[a-zA-Z]\w*", kind) and kind != "interval":
        raise DatasetError(f"trigger '{text}' does not exist; write {TRIGGERS}")
    return {"processingTime": _interval(text)}


def columns(save_args: dict[str, Any], key: str) -> list[str]:
    """Return the columns under a key; a single one needs no list."""
    given = save_args.get(key) or []
    return [given] if isinstance(given, str) else list(given)


def absolute(path: str) -> str:
    """Anchor a relative path at the project, whatever the current folder."""
    if is_remote(path):
        return path.rstrip("/")
    return os.path.abspath(project_path() / path)


def stores(*paths: str) -> set[str]:
    """Return the stores that paths are in, e.g. ``s3a``."""
    return {path.partition(":")[0] for path in paths if is_remote(path)}


def _interval(text: str) -> str:
    if re.match(r"(interval\s+)?-", text):
        raise DatasetError(
            f"trigger '{text}' is negative, and time does not run backwards; "
            f"{INTERVAL_ADVICE}"
        )
    if not INTERVAL.fullmatch(text):
        raise DatasetError(f"trigger '{text}' is no interval; {INTERVAL_ADVICE}")
    return text


def _refuse_missing_real_time() -> None:
    if "realTime" not in inspect.signature(DataStreamWriter.trigger).parameters:
        raise DatasetError(
            f"trigger real_time does not exist in Spark {__version__}; write a short "
            "interval such as 1 second, or raise pyspark in pyproject.toml"
        )


def _nearest(key: str, known: Any, cutoff: float = 0.8) -> str | None:
    squeezed = {name.lower().replace("_", ""): name for name in known}
    matches = get_close_matches(key.lower().replace("_", ""), squeezed, cutoff=cutoff)
    return squeezed[matches[0]] if matches else None
