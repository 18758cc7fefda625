"""Where the streams are: a table in a terminal, log lines elsewhere."""

import logging
import time
from contextlib import suppress
from typing import Any

import rich
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from .reports import Batch
from .stream import Stream

logger = logging.getLogger(__name__)

LOG_WIDTH = 140  # of a file or pipe; Kedro's handler would break lines at 80
SLOW = 10  # rows/s; below it, the first decimal tells
THOUSAND, MILLION = 1_000, 1_000_000
REFRESH = 1.0  # seconds between two looks of the table
HEADINGS = (
    "batch",
    "in/s",
    "done/s",
    "took",
    "behind",
    "kept",
    "watermark",
)


class Progress:
    """Shows streams while they run; use it in a ``with`` statement."""

    def __init__(self, log_every: float, prints: bool) -> None:
        console = rich.get_console()
        is_plain = console.is_dumb_terminal or console.no_color or prints
        is_screen = console.is_terminal and not is_plain
        self._screen = Live(console=console, auto_refresh=False) if is_screen else None
        self._every = REFRESH if is_screen else log_every
        self._next = 0.0
        self._logged: dict[str, Batch] = {}
        if not console.is_terminal:
            console.width = LOG_WIDTH

    def __enter__(self) -> "Progress":
        if self._screen:
            self._screen.start()
        return self

    def __exit__(self, *_: Any) -> None:
        if self._screen:
            with suppress(OSError):  # the terminal has been closed
                self._screen.stop()

    def show(self, streams: list[Stream], now: bool = False) -> None:
        """Bring the table up to date, or log what is new, when it is time to."""
        if not now and time.monotonic() < self._next:
            return
        self._next = time.monotonic() + self._every
        if self._screen:
            with suppress(OSError):  # the terminal has been closed
                self._screen.update(table(streams), refresh=True)
            return
        for stream in streams:
            if stream.batch and stream.batch is not self._logged.get(stream.name):
                self._logged[stream.name] = stream.batch
                logger.info(
                    "%s: %s", stream.name, sentence(stream.batch, stream.behind)
                )


def table(streams: list[Stream]) -> Group:
    """Draw the streams, with the columns that say something, and the last errors."""
    rows = [_figures(stream.batch, stream.behind) for stream in streams]
    shown = [h for h in HEADINGS if any(row[h] for row in rows)] or ["batch"]
    drawn = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    drawn.add_column("stream", overflow="ellipsis")  # the one that may shrink
    drawn.add_column("state", no_wrap=True)
    for heading in shown:
        drawn.add_column(heading, justify="right", no_wrap=True)
    for stream, row in zip(streams, rows, strict=True):
        drawn.add_row(stream.name, stream.state, *[row[h] for h in shown])
    left_out = [
        Text(f"{s.name}: {_left_out(s.batch)}", style="yellow", overflow="fold")
        for s in streams
        if s.batch and s.batch.malformed
    ]
    errors = [
        Text(f"{s.name}: last error: {s.reason}", style="red", overflow="fold")
        for s in streams
        if s.reason
    ]
    return Group(drawn, *left_out, *errors)


def sentence(batch: Batch, behind: int | None) -> str:
    """Say in a line what a batch did."""
    rows = "1 row" if batch.rows == 1 else f"{batch.rows} rows"
    text = f"batch {batch.number}, {rows} in {batch.seconds:.1f} s"
    if speed := _short(batch.rows_done):
        text += f" ({speed} rows/s)"
    if behind:
        text += f", {behind} behind"
    if batch.state_rows is not None:
        text += f", {batch.state_rows} rows of state"
    if batch.watermark:
        text += f", watermark {batch.watermark}"
    if batch.malformed:
        text += f", {_left_out(batch)}"
    if batch.observed:
        text += f", {observed(batch.observed)}"
    return text


def _left_out(batch: Batch) -> str:
    return f"{batch.malformed} malformed messages left out so far"


def observed(metrics: dict[str, dict[str, Any]]) -> str:
    """Write what nodes have measured with ``observe``."""
    return ", ".join(
        f"{name}: {' '.join(f'{key}={value}' for key, value in values.items())}"
        for name, values in metrics.items()
    )


def _figures(batch: Batch | None, behind: int | None) -> dict[str, str]:
    """Return a row of the table; what is not known is empty."""
    if batch is None:
        return dict.fromkeys(HEADINGS, "")
    return {
        "batch": str(batch.number),
        "in/s": _short(batch.rows_in),
        "done/s": _short(batch.rows_done),
        "took": f"{batch.seconds:.1f} s",
        "behind": _short(behind),
        "kept": _short(batch.state_rows),
        "watermark": (batch.watermark or "")[5:16].replace("T", " "),
    }


def _short(number: float | None) -> str:
    """Write a number in few digits: 3.4, 250, 12.3k, 4.5M."""
    if number is None:
        return ""
    if number >= MILLION:
        return f"{number / MILLION:.1f}M"
    if number >= 10 * THOUSAND:
        return f"{number / THOUSAND:.1f}k"
    return (
        f"{number:.0f}" if number >= SLOW or number == int(number) else f"{number:.1f}"
    )
