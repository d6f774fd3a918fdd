"""Work in threads, each piece with a limit of seconds: what is stuck is left behind and holds nobody up."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")

WORKERS = 16
"""Pieces of work under way at a time."""


@dataclass(slots=True, eq=False)
class _Task(Generic[T]):
    work: Callable[[], T]
    begun: float | None = None
    result: T | None = None
    error: Exception | None = None
    done: bool = False
    late: bool = False

    @property
    def open(self) -> bool:
        return not self.done and not self.late

    def outcome(self) -> T | Late:
        if self.late:
            return Late()
        if self.error is not None:
            raise self.error
        return self.result  # type: ignore[return-value]


class Late:
    """Stands for the result of a piece of work that took longer than it may."""


class Stepping:
    """Does pieces of work side by side, within a `with` block.

    Threads die with the process, so one that is stuck delays no exit.
    """

    def __init__(self, seconds: float, workers: int = WORKERS) -> None:
        self._seconds, self._workers = seconds, workers
        self._waiting: queue.SimpleQueue[_Task[object] | None] = queue.SimpleQueue()
        self._changing = threading.Condition()
        self._threads = 0
        self._open = 0

    def __enter__(self) -> Stepping:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for _ in range(self._threads):
            self._waiting.put(None)

    def run(self, works: Sequence[Callable[[], T]]) -> list[T | Late]:
        """The result of each piece in order, `Late` where it took longer than the limit. Raises what a piece raised."""
        tasks = [_Task(work) for work in works]
        self._open = len(tasks)
        for task in tasks:
            self._waiting.put(task)  # type: ignore[arg-type]
        while self._threads < min(self._workers, len(tasks)):
            self._hire()
        with self._changing:
            while self._open:
                if not self._changing.wait(self._patience(tasks)):
                    self._give_up(tasks)
        return [task.outcome() for task in tasks]

    def _patience(self, tasks: Sequence[_Task[T]]) -> float:
        """Seconds until the piece that began first is late."""
        begun = min((task.begun for task in tasks if task.open and task.begun is not None), default=None)
        return self._seconds if begun is None else max(0.001, begun + self._seconds - time.monotonic())

    def _give_up(self, tasks: Sequence[_Task[T]]) -> None:
        """Leave late pieces to their threads, and hire others."""
        now = time.monotonic()
        for task in tasks:
            if task.open and task.begun is not None and now - task.begun >= self._seconds:
                task.late = True
                self._open -= 1
                self._threads -= 1
                self._hire()

    def _hire(self) -> None:
        self._threads += 1
        threading.Thread(target=self._labour, daemon=True, name="star-step").start()

    def _labour(self) -> None:
        while (task := self._waiting.get()) is not None:
            task.begun = time.monotonic()
            try:
                task.result = task.work()
            except Exception as error:  # noqa: BLE001  # it is handed to whoever asked for the work
                task.error = error
            with self._changing:
                if task.late:
                    return
                task.done = True
                self._open -= 1
                if not self._open:
                    self._changing.notify()
