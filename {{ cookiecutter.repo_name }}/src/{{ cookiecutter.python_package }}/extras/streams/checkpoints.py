"""What a checkpoint says, and whether it belongs to the stream that uses it."""

import json
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, TypedDict
from urllib.parse import unquote

from ..datasets import StreamSink
from . import plans
from .files import Hadoop, at, near

RECORD = "_stream.json"
PROGRESS = "_progress.json"
PARTITIONS = "spark.sql.shuffle.partitions"


class Record(TypedDict):
    """What must stay as it is for a checkpoint to be of use."""

    sources: list[str]
    keys: list[str]
    sink: str


@dataclass
class Position:
    """How far a stream came."""

    planned: int | None  # the newest batch that was begun
    committed: int | None  # the newest batch that was finished
    committed_at: float | None = None  # seconds since 1970
    offsets: list[Any] = field(default_factory=list)  # where each source is
    settings: dict[str, str] = field(default_factory=dict)  # fixed by the first batch
    state_bytes: int = 0


def position(checkpoint: str) -> Position:
    """Read off a checkpoint how far its stream came."""
    planned = latest(f"{checkpoint}/offsets")
    committed = latest(f"{checkpoint}/commits")
    found = Position(planned, committed)
    if planned is not None:
        _, head, *offsets = str(at(f"{checkpoint}/offsets/{planned}").read()).split(
            "\n"
        )
        found.settings = json.loads(head).get("conf", {})
        found.offsets = [json.loads(o) for o in offsets if o not in ("", "-")]
    if committed is not None:
        found.committed_at = at(f"{checkpoint}/commits/{committed}").changed_at()
    if at(f"{checkpoint}/state").exists():
        found.state_bytes = at(f"{checkpoint}/state").size()
    return found


class FilesRead:
    """Which files a stream has read: Spark's own list of them, read on from call to call."""

    def __init__(self, checkpoint: str) -> None:
        self._sources = f"{checkpoint}/sources"
        self._names: set[str] = set()
        self._upto: dict[str, int] = {}

    def names(self) -> set[str]:
        """Return the names of all files that were taken into a batch."""
        for source in near(self._sources).names():
            entries = _entries(near(f"{self._sources}/{source}").names())
            compact = max((n for n in entries if "." in entries[n]), default=-1)
            begin = max(compact, self._upto.get(source, -1) + 1)
            for number in sorted(n for n in entries if n >= begin):
                self._read(f"{self._sources}/{source}/{entries[number]}")
                self._upto[source] = number
        return self._names

    def _read(self, entry: str) -> None:
        for line in (near(entry).read() or "").split("\n"):
            if line.startswith("{"):
                path = unquote(json.loads(line)["path"])
                self._names.add(PurePosixPath(path).name)


def files_behind(read: FilesRead, folders: list[str]) -> int:
    """Count the files that lie in folders and were not read yet."""
    there = {n for folder in folders for n in near(folder).names() if n[0] not in "._"}
    return len(there - read.names())


def remember(stream: StreamSink) -> None:
    """Write down, beside what Spark keeps, which stream a checkpoint belongs to."""
    checkpoint, record = str(stream.checkpoint), _record_of(stream)
    if record != read_json(checkpoint, RECORD):
        write_json(checkpoint, RECORD, record)


def changes(stream: StreamSink) -> list[str]:
    """Say how a stream differs from the one that its checkpoint belongs to."""
    checkpoint = str(stream.checkpoint)
    before, now = read_json(checkpoint, RECORD), _record_of(stream)
    if before is None or latest(f"{checkpoint}/offsets") is None:
        return []
    differences = []
    if before["sources"] != now["sources"]:
        differences.append(_difference("read", before["sources"], now["sources"]))
    if before["keys"] != now["keys"]:
        differences.append(_difference("kept", before["keys"], now["keys"]))
    if before["sink"] != now["sink"]:
        differences.append(_difference("wrote", [before["sink"]], [now["sink"]]))
    return differences


def mismatch(checkpoint: str, output: str) -> str | None:
    """Say why a checkpoint and a folder of files do not belong together.

    Spark numbers batches in both, and writes first the output's number, then the
    checkpoint's. So the output is as far as the checkpoint, or one batch ahead.
    """
    planned = latest(f"{checkpoint}/offsets")
    committed = latest(f"{checkpoint}/commits")
    written = latest(f"{output}/_spark_metadata")
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


def latest(log: str) -> int | None:
    """Return the number of the newest batch in one of Spark's logs."""
    return max(_entries(at(log).names()), default=None)


def _entries(names: list[str]) -> dict[int, str]:
    """Return the entries of one of Spark's logs by number; every tenth is compacted."""
    numbers = {name: name.removesuffix(".compact") for name in names}
    return {int(n): name for name, n in numbers.items() if n.isdigit()}


def _record_of(stream: StreamSink) -> Record:
    return {
        "sources": plans.sources(stream.data),
        "keys": plans.keys(stream.data),
        "sink": stream.kind,
    }


def read_json(checkpoint: str, name: str) -> Any:
    """Return a file of ours; None if there is none, or a crash left half of one."""
    try:
        return json.loads(at(f"{checkpoint}/{name}").read() or "")
    except Exception:
        return None


def write_json(checkpoint: str, name: str, content: Any) -> None:
    """Write a file of ours beside what Spark keeps."""
    place = at(f"{checkpoint}/{name}")
    assert isinstance(place, Hadoop), "only a run writes"
    place.write(json.dumps(content, indent=2))


def _difference(verb: str, before: list[str], now: list[str]) -> str:
    return f"it {verb} {_list(before)}, not {_list(now)}"


def _list(items: list[str]) -> str:
    return " and ".join(items) or "nothing"
