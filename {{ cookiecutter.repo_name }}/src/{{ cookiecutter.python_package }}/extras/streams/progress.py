"""Where the streams are: a table in a terminal, log lines elsewhere."""

import logging
import math
import time
from typing import Any

import rich
from pyspark.sql.streaming import StreamingQuery
from rich.live import Live
from rich.table import Table

logger = logging.getLogger(__name__)

LOG_WIDTH = 140  # of a file or pipe; Kedro's handler would break lines at 80
SLOW = 10  # rows/s; below it, the first decimal tells
REFRESH = 1.0  # seconds between two looks of the table


class Progress:
    """Shows streams while they run; use it in a ``with`` statement."""

    def __init__(self, log_every: float) -> None:
        console = rich.get_console()
        is_screen = console.is_terminal and not console.is_dumb_terminal
        self._screen = Live(console=console, auto_refresh=False) if is_screen else None
        self._every = REFRESH if is_screen else log_every
        self._next = 0.0
        self._batches: dict[str, Any] = {}
        if not console.is_terminal:
            console.width = LOG_WIDTH

    def __enter__(self) -> "Progress":
        if self._screen:
            self._screen.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._screen:
            self._screen.stop()

    def show(
        self,
        queries: dict[str, StreamingQuery],
        waiting: list[str],
        now: bool = False,
    ) -> None:
        """Bring the table up to date, or log what is new, when it is time to."""
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        news = self._look_at(queries)
        if self._screen:
            self._screen.update(self._table(queries, waiting), refresh=True)
            return
        for name in news:
            logger.info("%s: %s", name, _sentence(self._batches[name]))

    def _look_at(self, queries: dict[str, StreamingQuery]) -> list[str]:
        """Remember each stream's newest batch; return the streams that had one."""
        found = {name: last_batch(query) for name, query in queries.items()}
        news = {
            name: batch
            for name, batch in found.items()
            if batch and batch != self._batches.get(name)
        }
        self._batches |= news
        return list(news)

    def _table(self, queries: dict[str, StreamingQuery], waiting: list[str]) -> Table:
        table = Table("stream", "state", box=None, header_style="bold")
        for heading in ("batch", "rows", "rows/s", "took"):
            table.add_column(heading, justify="right")
        for name, query in queries.items():
            table.add_row(name, _state(query), *_figures(self._batches.get(name)))
        for name in waiting:
            table.add_row(name, "waits for its source")
        return table


def last_batch(query: StreamingQuery) -> Any:
    """Return Spark's report on the newest batch, or None if its last look found none."""
    progress = query.lastProgress
    return progress if progress and "addBatch" in progress["durationMs"] else None


def _state(query: StreamingQuery) -> str:
    if not query.isActive:
        return "failed" if query.exception() else "done"
    return "running" if query.status["isTriggerActive"] else "waiting for data"


def _figures(batch: Any) -> list[str]:
    if not batch:
        return ["", "", "", ""]
    speed = batch["processedRowsPerSecond"]
    return [
        str(batch["batchId"]),
        str(batch["numInputRows"]),
        ""
        if math.isnan(speed)
        else f"{speed:.0f}"
        if speed >= SLOW
        else f"{speed:.1f}",
        f"{batch['batchDuration'] / 1000:.1f} s",
    ]


def _sentence(batch: Any) -> str:
    number, rows, speed, took = _figures(batch)
    return f"batch {number}, {rows} rows in {took}" + (speed and f" ({speed} rows/s)")
