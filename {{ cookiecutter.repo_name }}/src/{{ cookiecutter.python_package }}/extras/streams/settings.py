"""The ``streams`` of ``parameters.yml``."""

import re
from dataclasses import dataclass, field
from typing import Any

from .errors import StreamsError

UNITS = {"second": 1, "minute": 60, "hour": 3600}


@dataclass
class Restart:
    """How often, and after how long, a failed stream is started again."""

    attempts: int = 3
    backoff: str = "5 seconds"

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 0:
            raise StreamsError(
                f"streams.restart.attempts is '{self.attempts}' in the parameters; write "
                "a whole number, 0 to give up at the first failure"
            )
        self.backoff_seconds = _seconds("restart.backoff", self.backoff)


@dataclass
class RunSettings:
    """How long a run lasts, how it stops, and what it does about failures."""

    until: str = "stopped"
    drain: str = "30 seconds"
    progress: str = "10 seconds"
    restart: Restart = field(default_factory=Restart)

    def __post_init__(self) -> None:
        if self.until not in ("stopped", "caught_up"):
            raise StreamsError(
                f"streams.until is '{self.until}' in the parameters; write stopped "
                "(run until Ctrl-C) or caught_up (end when all there is has been read)"
            )
        self.drain_seconds = _seconds("drain", self.drain)
        self.progress_seconds = _seconds("progress", self.progress)

    @classmethod
    def from_parameters(cls, parameters: dict[str, Any]) -> "RunSettings":
        """Read the settings, refusing unknown ones."""
        _refuse_unknown(cls, "streams", parameters)
        restart = parameters.get("restart") or {}
        _refuse_unknown(Restart, "streams.restart", restart)
        return cls(**{**parameters, "restart": Restart(**restart)})

    @property
    def bounded(self) -> bool:
        """Whether the run ends by itself."""
        return self.until == "caught_up"


def _refuse_unknown(cls: Any, prefix: str, parameters: Any) -> None:
    known = cls.__dataclass_fields__
    names = ", ".join(f"{prefix}.{name}" for name in known)
    if not isinstance(parameters, dict):
        raise StreamsError(
            f"{prefix} in the parameters is '{parameters}', not a mapping; there are {names}"
        )
    if unknown := sorted(parameters.keys() - known.keys()):
        raise StreamsError(
            f"{prefix}.{unknown[0]} in the parameters is not known; there are {names}"
        )


def _seconds(name: str, text: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?) (second|minute|hour)s?", str(text))
    if not match:
        raise StreamsError(
            f"streams.{name} is '{text}' in the parameters; write a number and a unit, "
            "e.g. 30 seconds"
        )
    return float(match[1]) * UNITS[match[2]]
