"""What a checkpoint says, and whether it belongs to the stream that uses it."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypedDict
from urllib.parse import unquote

from ..datasets import StreamSink
from . import plans
from .errors import TROUBLE
from .files import at

RECORD = "_stream.json"
PROGRESS = "_progress.json"
PARTITIONS = "spark.sql.shuffle.partitions"


class Record(TypedDict):
    """What must stay as it is for a checkpoint to be of use."""

    sources: list[str]
    keys: list[str]
    sink: str
    name: str | None  # of which, and of place, one may change
    place: str


@dataclass
class Position:
    """How far a stream came."""

    planned: int | None  # the newest batch that was begun
    committed: int | None  # the newest batch that was finished
    committed_at: float | None = None  # seconds since 1970
    offsets: list[Any] = field(default_factory=list)  # where each source is
    settings: dict[str, str] = field(default_factory=dict)  # fixed by the first batch


def position(checkpoint: str) -> Position:
    """Read off a checkpoint how far its stream came; it may be moving meanwhile."""
    found = Position(latest(f"{checkpoint}/offsets"), latest(f"{checkpoint}/commits"))
    with suppress(ValueError, *TROUBLE):
        found.settings, found.offsets = _offsets(checkpoint, found.planned)
    with suppress(*TROUBLE):
        commit = at(f"{checkpoint}/commits/{found.committed}")
        found.committed_at = commit.changed_at()
    return found


def _offsets(checkpoint: str, batch: int | None) -> tuple[dict[str, str], list[Any]]:
    """Return the settings of a batch, and where each source is at its end."""
    text = at(f"{checkpoint}/offsets/{batch}").read() or ""
    _, head, *offsets = text.split("\n")
    there = [json.loads(offset) for offset in offsets if offset not in ("", "-")]
    return json.loads(head).get("conf", {}), there


def unfinished(checkpoint: str) -> Iterator[tuple[Any, Any]]:
    """Return, for each source, where the batch that was not finished begins and ends."""
    found = position(checkpoint)
    for number, end in enumerate(found.offsets):
        if found.committed is None:  # where Kafka's messages were when it first started
            text = at(f"{checkpoint}/sources/{number}/0").read() or ""
            begin = json.loads(text.partition("\n")[2])
        else:
            begin = _offsets(checkpoint, found.committed)[1][number]
        yield begin, end


def forget_beginning(checkpoint: str) -> None:
    """Let Iceberg note anew where a stream began, once no batch begins there any more.

    What ends when all is read asks for that snapshot, which may have expired long after
    the stream has read it: apache/iceberg#18000.
    """
    if latest(f"{checkpoint}/commits") is not None:
        for source in at(f"{checkpoint}/sources").names():
            at(f"{checkpoint}/sources/{source}offsets").delete()


def state_bytes(checkpoint: str) -> int:
    """Add up what a stream remembers; every file of it is looked at."""
    state = at(f"{checkpoint}/state")
    with suppress(*TROUBLE):  # it may be moving meanwhile
        return state.size() if state.exists() else 0
    return 0


class FileLog:
    """One of Spark's lists of files, read on from call to call.

    A stream keeps one of those it has read, and a sink one of those it has written.
    """

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._upto = -1
        self._last = ""  # the newest line; in a compacted list, what is new follows it

    def news(self) -> set[str]:
        """Return the files that were added since the last call."""
        entries = _entries(at(self._folder).names())
        compact = max((n for n in entries if "." in entries[n]), default=-1)
        begin = max(compact, self._upto + 1)
        found: set[str] = set()
        for number in sorted(n for n in entries if n >= begin):
            text = at(f"{self._folder}/{entries[number]}").read() or ""
            news = text.rpartition(self._last)[2] if self._last else text
            lines = [line for line in news.split("\n") if line.startswith("{")]
            found |= {_bare(unquote(json.loads(line)["path"])) for line in lines}
            self._last = lines[-1] if lines else self._last
            self._upto = number
        return found


class Backlog:
    """The files that lie in folders, and which of them a stream has read."""

    def __init__(self, checkpoint: str, folders: list[str]) -> None:
        self._sources = f"{checkpoint}/sources"
        self._logs: dict[str, FileLog] = {}
        self._folders = folders
        self._outputs = {f: FileLog(f"{f}/_spark_metadata") for f in folders}
        self._written: set[str] = set()  # by other streams, and not read yet
        self._read: set[str] = set()
        self._done = 0  # files of other streams that were read

    def count(self) -> tuple[int, int] | None:
        """Count the files there that were read, and those that wait; None if unknown."""
        for source in at(self._sources).names():
            log = self._logs.setdefault(source, FileLog(f"{self._sources}/{source}"))
            self._read |= log.news()
        # Only now: a file that is read between two looks would count as one that waits.
        names = {folder: at(folder).names() for folder in self._folders}
        if any(map(_holds_folders, names.values())):
            return None  # partitions
        there: set[str] = set()
        for folder, found in names.items():
            if "_spark_metadata/" in found:
                self._written |= self._outputs[folder].news()
            else:
                there |= {f"{_bare(folder)}/{n}" for n in found if n[0] not in "._"}
        done = self._written & self._read
        self._written -= done  # a stream of months reads and writes millions
        self._done += len(done)
        self._read &= there  # files that were deleted are of no interest any more
        waiting = len(there - self._read) + len(self._written)
        return len(self._read) + self._done, waiting


def _holds_folders(names: list[str]) -> bool:
    return any(name[0] not in "._" and name[-1] == "/" for name in names)


def _bare(path: str) -> str:
    """Drop the name of the file system, which Spark writes and users do not."""
    return re.sub(r"^file:/+", "/", path)


def remember(stream: StreamSink) -> None:
    """Write down, beside what Spark keeps, which stream a checkpoint belongs to."""
    checkpoint, record = str(stream.checkpoint), _record_of(stream)
    if record != read_json(checkpoint, RECORD):
        write_json(checkpoint, RECORD, record)


def changes(stream: StreamSink, stand_ins: Mapping[str, str]) -> list[str]:
    """Say how a stream differs from the one that its checkpoint belongs to.

    ``stand_ins`` are folders that a check reads in place of others.
    """
    checkpoint = str(stream.checkpoint)
    before = read_json(checkpoint, RECORD)
    if before is None or latest(f"{checkpoint}/offsets") is None:
        return []
    now, differences = _record_of(stream), []
    for stand_in, folder in stand_ins.items():
        now["sources"] = [s.replace(stand_in, folder) for s in now["sources"]]
    if before["sources"] != now["sources"]:
        differences.append(_difference("read", before["sources"], now["sources"]))
    if before["keys"] != now["keys"]:
        differences.append(_difference("kept", before["keys"], now["keys"]))
    if before["sink"] != now["sink"]:
        differences.append(_difference("wrote", [before["sink"]], [now["sink"]]))
    if _is_of_another(before, stream) and before["place"] != now["place"]:
        wrote = f"it is that of {before['name']}, which writes {before['place']}"
        differences.append(wrote)
    return differences


def is_of_another(stream: StreamSink) -> bool:
    """Whether a checkpoint was made by an entry of another name."""
    return _is_of_another(read_json(str(stream.checkpoint), RECORD) or {}, stream)


def _is_of_another(record: Mapping[str, Any], stream: StreamSink) -> bool:
    names = record.get("name"), stream.name
    return all(names) and names[0] != names[1]


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
        "name": stream.name,
        "place": stream.place,
    }


def read_json(checkpoint: str, name: str) -> Any:
    """Return a file of ours; None if there is none, or a crash left half of one."""
    try:
        return json.loads(at(f"{checkpoint}/{name}").read() or "")
    except ValueError:
        return None


def write_json(checkpoint: str, name: str, content: Any) -> None:
    """Write a file of ours beside what Spark keeps."""
    at(f"{checkpoint}/{name}").write(json.dumps(content, indent=2))


def _difference(verb: str, before: list[str], now: list[str]) -> str:
    return f"it {verb} {_list(before)}, not {_list(now)}"


def _list(items: list[str]) -> str:
    return " and ".join(items) or "nothing"
