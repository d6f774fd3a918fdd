"""Progress and tables for people: bars on a terminal, sparse plain lines elsewhere. Loaded by command bodies only."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table

from star.progress import Progress

INTERVAL = 5.0
"""Seconds between two plain lines about the same work."""
UNLIMITED = 10_000
"""Characters of a line that no terminal cuts."""


class Lines:
    """A line now and then, with the time that is left, and always one at the end of a piece of work."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last: dict[str, float] = {}
        self._first: dict[str, tuple[float, int]] = {}

    def __call__(self, label: str, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        begun, before = self._first.setdefault(label, (now, done))
        if done < total and now - self._last.get(label, -INTERVAL) < INTERVAL:
            return
        self._last[label] = now
        left = (now - begun) * (total - done) / max(1, done - before)
        ahead = f"  {_clock(left)} left" if before < done < total else ""
        self._stream.write(f"{label}: {done}/{total}{'  ' if note else ''}{note}{ahead}\n")
        self._stream.flush()


def _clock(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Bars:
    """One bar a label."""

    def __init__(self, progress: RichProgress) -> None:
        self._progress = progress
        self._tasks: dict[str, TaskID] = {}

    def __call__(self, label: str, done: int, total: int, note: str = "") -> None:
        if label not in self._tasks:
            self._tasks[label] = self._progress.add_task(label, total=total, note="")
        self._progress.update(self._tasks[label], completed=done, total=total, note=note)


@contextmanager
def listening(stream: TextIO) -> Iterator[Progress]:
    """Show progress on `stream` while the block runs."""
    if not stream.isatty():
        yield Lines(stream)
        return
    columns = (
        TextColumn("{task.description:<24}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with RichProgress(*columns, console=Console(file=stream)) as progress:
        yield Bars(progress)


def table(stream: TextIO, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Write a table."""
    grid = Table(*head, box=None, pad_edge=False, header_style="bold")
    for row in rows:
        grid.add_row(*row)
    width = None if stream.isatty() else UNLIMITED
    Console(file=stream, markup=False, width=width, soft_wrap=not stream.isatty()).print(grid)
