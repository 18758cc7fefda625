"""Ctrl-C and SIGTERM, remembered until somebody has time for them."""

import signal
from types import FrameType
from typing import Any


class StopRequest:
    """Counts requests to stop.

    The handler does no more: it may run in the middle of a call to Spark, and a
    second call from there would break the first.
    """

    def __init__(self) -> None:
        self.count = 0
        self._previous: dict[signal.Signals, Any] = {}

    def listen(self) -> None:
        """Take over the signals."""
        for number in (signal.SIGINT, signal.SIGTERM):
            try:
                self._previous[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread: its owner decides when to stop
                return

    def restore(self) -> None:
        """Give the signals back to whoever had them."""
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
        if self.count > 1:  # a third one ends the process, whatever it is doing
            self.restore()
