"""How a room tells how far it is, without knowing who listens."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    def __call__(self, label: str, done: int, total: int, note: str = "") -> None:
        """`done` of `total` units of the work called `label`; `note` is a short remark such as the current loss."""


def silent(label: str, done: int, total: int, note: str = "") -> None:
    """Nobody listens."""
