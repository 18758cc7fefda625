"""Requests to stop, remembered until somebody has time for them."""

import signal
from contextlib import suppress
from threading import Event
from types import FrameType
from typing import Any

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

# Ctrl-C, what process managers send, and a terminal that is closed.
CLOSED = getattr(signal, "SIGHUP", None)  # Windows has no such signal
SIGNALS = [signal.SIGINT, signal.SIGTERM, *([CLOSED] if CLOSED else [])]
FIRST = 1000  # before Spark, which ends everything when Java is told to end
SLACK = 60  # seconds beyond the drain, for all that is not a batch


class StopRequest:
    """Counts requests to stop.

    The handler does no more: it may run in the middle of a call to Spark, and a
    second call from there would break the first.
    """

    def __init__(self) -> None:
        self.count = 0
        self._previous: dict[signal.Signals, Any] = {}
        self._java: _JavasEnd | None = None

    def listen(self) -> None:
        """Take over the signals."""
        for number in SIGNALS:
            if number == CLOSED and signal.getsignal(number) is signal.SIG_IGN:
                continue  # nohup, which wants to outlive the terminal
            try:
                self._previous[number] = signal.signal(number, self._note)
            except ValueError:  # not the main thread: its owner decides when to stop
                return

    def listen_to_java(self, drain_seconds: float) -> None:
        """Hear signals that reach Java, whose child we are under spark-submit."""
        gateway: Any = SparkContext._gateway
        ensure_callback_server_started(gateway)
        self._java = _JavasEnd(self, gateway.jvm, int(drain_seconds) + SLACK)

    def let_java_end(self, code: int) -> None:
        """Let Java end, with an exit code that says how our run ended."""
        if self._java:
            self._java.permit(code)

    def restore(self) -> None:
        """Give the signals back to whoever had them."""
        for number, previous in self._previous.items():
            signal.signal(number, previous)
        self._previous = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if number == CLOSED and self.count:
            return  # a terminal may say it twice, and nobody is there to be impatient
        self.count += 1
        if self.count > 1:  # a third one ends the process, whatever it is doing
            self.restore()


class _JavasEnd:
    """What Java does, and waits for, when it is told to end."""

    def __init__(self, stop: StopRequest, jvm: Any, patience: int) -> None:
        self._stop = stop
        self._jvm = jvm
        self._is_ending = False
        self._may_go_on = Event()
        self._hooks = jvm.org.apache.hadoop.util.ShutdownHookManager.get()
        self._hook = jvm.java.lang.Thread(self)
        unit = jvm.java.util.concurrent.TimeUnit.SECONDS
        self._hooks.addShutdownHook(self._hook, FIRST, patience, unit)

    def run(self) -> None:
        """Ask for a stop; Ctrl-C may have reached us, too, and is not a second one."""
        self._is_ending = True
        self._stop.count = max(self._stop.count, 1)
        self._may_go_on.wait()

    def permit(self, code: int) -> None:
        """Let Java end as it likes, or with this exit code if it waits for us."""
        with suppress(Py4JError, OSError):  # it dies while we speak, or has died
            if self._is_ending:  # its own answer to a signal would be a failure's
                self._jvm.java.lang.Runtime.getRuntime().halt(code)
            else:
                self._hooks.removeShutdownHook(self._hook)
        self._may_go_on.set()

    class Java:
        """What py4j wants to know."""

        implements = ["java.lang.Runnable"]  # noqa: RUF012
