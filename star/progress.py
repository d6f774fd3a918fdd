"""How a room tells how far it is, without knowing who listens."""

from __future__ import annotations

import time
from typing import Protocol


class Progress(Protocol):
    def __call__(self, label: str, done: int, total: int, note: str = "") -> None:
        """`done` of `total` units of the work called `label`; `note` is a short remark such as the current loss."""


def silent(label: str, done: int, total: int, note: str = "") -> None:
    """Nobody listens."""


class Patient:
    """Passes on how far work is that has gone on for a while; of quick work nothing is heard."""

    def __init__(self, listener: Progress, seconds: float = 2.0) -> None:
        self._listener, self._seconds = listener, seconds
        self._begun: dict[str, float] = {}

    def __call__(self, label: str, done: int, total: int, note: str = "") -> None:
        now = time.monotonic()
        if now - self._begun.setdefault(label, now) >= self._seconds:
            self._listener(label, done, total, note)
