"""The processes of a training: which one this is, and what all of them have."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


def size() -> int:
    """How many processes train together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def rank() -> int:
    """The number of this process, 0 for the one that writes."""
    return int(os.environ.get("RANK", "0"))


def local() -> int:
    """The number of this process on its machine, and so that of its device."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def dealt(values: Sequence[T]) -> Sequence[T]:
    """This process's share of what all have: a run of `values`, as equal as can be."""
    begin, end = (len(values) * number // size() for number in (rank(), rank() + 1))
    return values[begin:end]
