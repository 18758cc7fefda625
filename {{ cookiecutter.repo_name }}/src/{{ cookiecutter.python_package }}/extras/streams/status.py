"""What ``kedro streams status`` does: read off checkpoints how far streams came."""

from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

from . import checkpoints, locks
from .files import at
from .progress import observed
from .session import shown
from .topology import Topology

STEP = 1000  # from one unit to the next


def status(topology: Topology) -> list[dict[str, Any]]:
    """Return, for each stream, what its checkpoint says."""
    wrong = topology.pipeline.all_outputs() & topology.wrong.keys()
    return [
        *[_status(name, topology) for name in topology.streams],
        *[{"stream": n, "state": f"wrong: {topology.wrong[n]}"} for n in sorted(wrong)],
    ]


def _status(name: str, topology: Topology) -> dict[str, Any]:
    stream = topology.streams[name]
    checkpoint = stream.checkpoint
    if not checkpoint:
        return {"stream": name, "state": "keeps no checkpoint"}
    known = {"stream": name, "checkpoint": checkpoint}
    by = locks.holder(checkpoint)
    position = checkpoints.position(checkpoint)
    if position.planned is None and not by:
        return {**known, "state": "never started"}
    progress = checkpoints.read_json(checkpoint, checkpoints.PROGRESS) or {}
    folders = topology.watched_by(name)
    files = checkpoints.Backlog(checkpoint, folders).count() if folders else None
    pending = position.planned if position.planned != position.committed else None
    return {
        **known,
        "state": progress.get("state", "starting") if by else "stopped",
        "process": by,
        "committed_batch": position.committed,
        "committed_at": _iso(position.committed_at),
        "uncommitted_batch": pending,
        "sources": [source.place for source in topology.streaming_sources_of(name)],
        "offsets": position.offsets,
        "missing_folders": [f for f in folders if not at(f).exists()],
        "files_read": files[0] if files else None,
        "files_behind": files[1] if files else None,
        "state_bytes": checkpoints.state_bytes(checkpoint),
        "last_batch": progress.get("batch"),
        "last_error": progress.get("error"),
    }


def _iso(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")


def told(found: dict[str, Any]) -> Iterator[str]:
    """Write what is known about a stream for people, a line a fact."""
    by = found.get("process")
    where = f" in process {by['pid']} on host {by['host']}" if by else ""
    yield f"{found['stream']}: {found['state']}{where}"
    facts = _facts(found) if "offsets" in found else {}
    if "checkpoint" in found:
        facts["checkpoint"] = shown(found["checkpoint"])
    for name, text in facts.items():
        if text:
            yield f"  {name:<12} {text}"


def _facts(found: dict[str, Any]) -> dict[str, str]:
    batch = found["last_batch"] or {}
    committed, pending = found["committed_batch"], found["uncommitted_batch"]
    return {
        "committed": "none"
        if committed is None
        else f"batch {committed} at {found['committed_at']}",
        "uncommitted": "" if pending is None else f"batch {pending}",
        "source": _source(found),
        "state": f"{size(found['state_bytes'])}" if found["state_bytes"] else "",
        "watermark": batch.get("watermark") or "",
        "malformed": f"{batch['malformed']} messages left out since its run began"
        if batch.get("malformed")
        else "",
        "observed": observed(batch.get("observed") or {}),
        "last error": found["last_error"] or "",
    }


def _source(found: dict[str, Any]) -> str:
    """Say where the sources are: files by their number, others by their offsets."""
    names = shown(" and ".join(found["sources"]))
    if found["missing_folders"]:
        return f"{names}, which is gone"
    if found["files_read"] is None:
        behind = (found["last_batch"] or {}).get("messages_behind")
        lag = "" if behind is None else f", {behind} behind after the last batch"
        return f"{names} at {', '.join(map(_offset, found['offsets']))}{lag}"
    return f"{names}, {found['files_read']} files read, {found['files_behind']} behind"


def _offset(offset: Any) -> str:
    """Write how far a source was read; of Kafka, how far each partition was."""
    if not isinstance(offset, dict):
        return str(offset)
    return ", ".join(
        f"{key} {_offset(value)}" if isinstance(value, dict) else f"{key}:{value}"
        for key, value in offset.items()
    )


def size(count: float) -> str:
    """Write a number of bytes in few digits."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < STEP:
            return f"{count:.0f} {unit}"
        count /= STEP
    return f"{count:.1f} TB"
