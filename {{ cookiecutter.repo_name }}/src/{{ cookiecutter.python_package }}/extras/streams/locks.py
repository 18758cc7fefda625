"""One run a checkpoint: who holds it, and whether they are still alive."""

import json
import os
import socket
import time
from typing import Any

from . import checkpoints
from .errors import StreamsError
from .files import Hadoop, at

LOCK = "_lock.json"
BEAT = 10.0  # seconds between two signs of life
STALE = 180.0  # seconds without a sign of life after which a holder counts as dead


def holder(checkpoint: str) -> dict[str, Any] | None:
    """Return the process that runs on a checkpoint; None if there is none any more."""
    found = checkpoints.read_json(checkpoint, LOCK)
    if not found or found == _ourselves():
        return None
    if time.time() - at(f"{checkpoint}/{LOCK}").changed_at() > STALE:
        return None
    if found["host"] == socket.gethostname() and not _is_alive(found["pid"]):
        return None
    return found


def refusal(checkpoint: str, by: dict[str, Any]) -> str:
    """Say who runs on a checkpoint, and how to end that."""
    return (
        f"checkpoint {checkpoint} is in use by process {by['pid']} on host "
        f"{by['host']}, and two runs on it would destroy each other's work; stop that "
        f"one first (Ctrl-C in its terminal, or kill {by['pid']})"
    )


def take(checkpoint: str) -> None:
    """Claim a checkpoint, over what a crash has left."""
    if by := holder(checkpoint):
        raise StreamsError(refusal(checkpoint, by))
    place = at(f"{checkpoint}/{LOCK}")
    assert isinstance(place, Hadoop), "only a run locks"
    place.delete()
    if not place.write_new(json.dumps(_ourselves())):
        raise StreamsError(refusal(checkpoint, holder(checkpoint) or _ourselves()))


def renew(checkpoint: str) -> None:
    """Give a sign of life; refuse to go on if somebody else has taken over."""
    if by := holder(checkpoint):
        raise StreamsError(refusal(checkpoint, by))
    checkpoints.write_json(checkpoint, LOCK, _ourselves())


def release(checkpoint: str) -> None:
    """Let the next run begin at once."""
    if not holder(checkpoint):
        at(f"{checkpoint}/{LOCK}").delete()


def _ourselves() -> dict[str, Any]:
    return {"pid": os.getpid(), "host": socket.gethostname()}


def _is_alive(pid: int) -> bool:
    if os.name == "nt":
        return True  # cannot be asked there; its signs of life decide
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True  # somebody else's process
    except OSError:
        return False
    return True
