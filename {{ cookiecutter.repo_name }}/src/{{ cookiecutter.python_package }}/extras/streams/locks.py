"""One run a checkpoint.

On this machine the operating system keeps the lock, and gives it up when its holder
dies, however it dies. Elsewhere a file with signs of life has to do.
"""

import json
import logging
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from .errors import TROUBLE, StreamsError
from .files import Hadoop, Local, at

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

logger = logging.getLogger(__name__)

LOCK = "_lock.json"
BEAT = 10.0  # seconds between two looks at what to tell other processes
SIGN = 60.0  # seconds between two signs of life in a place elsewhere
STALE = 180.0  # seconds without one after which its holder counts as dead
LOOK = 5.0  # seconds between two looks whether it is
PATIENCE = 1.0  # seconds; somebody who only looks holds the lock for an instant

_ours: set[str] = set()  # ids of the locks that this process holds


def holder(checkpoint: str) -> dict[str, Any] | None:
    """Return the process that runs on a checkpoint; None if there is none any more."""
    place = at(f"{checkpoint}/{LOCK}")
    if not place.exists():
        return None
    found = _read(place)
    if isinstance(place, Local) and fcntl:
        return None if _is_free(place.path) else found
    signed_at = place.changed_at()  # none if it was released while we looked
    is_old = signed_at is None or time.time() - signed_at > STALE
    return None if is_old or _has_died_here(found) else found


def refusal(checkpoint: str, by: dict[str, Any]) -> str:
    """Say who runs on a checkpoint, and how to end that."""
    wait = f"; if it is dead, wait {STALE / 60:.0f} minutes"
    return (
        f"checkpoint {checkpoint} is in use by process {by['pid']} on host "
        f"{by['host']}, and two runs on it would destroy each other's work; stop that "
        f"one first (Ctrl-C in its terminal, or kill {by['pid']})"
        f"{wait if _is_signed(checkpoint) else ''}"
    )


def await_death(checkpoint: str, is_stopped: Callable[[], object]) -> bool:
    """Wait until the holder of a lock counts as dead, or has shown that it is not."""
    if not _is_signed(checkpoint) or not (by := holder(checkpoint)):
        return True
    logger.info(
        "Checkpoint %s was in use by process %s on host %s; waiting, for %.0f minutes at "
        "most, whether that is alive ...",
        *(checkpoint, by["pid"], by["host"], STALE / 60),
    )
    place = at(f"{checkpoint}/{LOCK}")
    with suppress(*TROUBLE):  # of a store, which the next check names
        sign = place.changed_at()
        while holder(checkpoint) and not is_stopped():
            if place.changed_at() not in (sign, None):
                return False
            time.sleep(LOOK)
    return True


def _is_signed(checkpoint: str) -> bool:
    """Whether a holder shows that it lives by signs, where no file can be locked."""
    return not (isinstance(at(checkpoint), Local) and fcntl)


class Lock:
    """A claim to a checkpoint; from the moment it is made until ``release``."""

    def __init__(self, checkpoint: str) -> None:
        self._checkpoint = checkpoint
        self._place = at(f"{checkpoint}/{LOCK}")
        self._ourselves: dict[str, Any] = {"pid": os.getpid(), **_here()}
        self._ourselves["id"] = str(uuid4())
        _ours.add(self._ourselves["id"])
        self._file: int | None = None
        self._signed_at = time.monotonic()
        if isinstance(self._place, Local) and fcntl:
            self._file = self._hold(self._place.path)
        else:
            if by := holder(checkpoint):
                raise StreamsError(refusal(checkpoint, by))
            self._place.write(json.dumps(self._ourselves))
            self._refuse_others()

    def _hold(self, path: Path) -> int:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = os.open(path, os.O_RDWR | os.O_CREAT)
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > deadline:
                    os.close(file)
                    by = _read(self._place)
                    raise StreamsError(refusal(self._checkpoint, by)) from None
                time.sleep(PATIENCE / 20)
        with suppress(OSError):  # a full disk: then nobody learns who it is
            os.ftruncate(file, 0)
            os.pwrite(file, json.dumps(self._ourselves).encode(), 0)
        return file

    def renew(self) -> None:
        """Give a sign of life, where it is needed; end if somebody has taken over."""
        if self._file is None and time.monotonic() - self._signed_at > SIGN:
            self._refuse_others()
            self._place.write(json.dumps(self._ourselves))
            self._signed_at = time.monotonic()

    def _refuse_others(self) -> None:
        if (by := _read(self._place)) != self._ourselves:
            raise StreamsError(refusal(self._checkpoint, by))

    def release(self) -> None:
        """Let the next run begin at once."""
        if self._file is not None:
            os.close(self._file)
        elif _read(self._place) == self._ourselves:
            self._place.delete()


def _is_free(path: Path) -> bool:
    """Whether nobody holds the operating system's lock on a file."""
    file = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(file)
    return True


def _here() -> dict[str, str]:
    """Say where process ids mean what they mean to us: two containers may share a host."""
    namespace = Path("/proc/self/ns/pid")
    space = os.readlink(namespace) if namespace.is_symlink() else ""
    return {"host": socket.gethostname(), "namespace": space}


def _has_died_here(found: dict[str, Any]) -> bool:
    """Whether a holder was a process of this machine, and is no more."""
    if os.name == "nt" or any(found.get(k) != v for k, v in _here().items()):
        return False
    try:
        os.kill(found["pid"], 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    # Our number may have been somebody else's before, as in a container.
    return found["pid"] == os.getpid() and found.get("id") not in _ours


def _read(place: Local | Hadoop) -> dict[str, Any]:
    """Return who wrote a lock; a holder who could not write is somebody, too."""
    try:
        return json.loads(place.read() or "")
    except ValueError:
        return {"pid": "unknown", "host": "unknown"}
