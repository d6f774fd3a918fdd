"""Long plays that survive a kill: what has been played is on disk, and is read instead of played again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from star.records import parse, to_json
from star.rollout import Group, Rollout
from star.types import Trajectory

SYNC = 1.0
"""Seconds between two times at which the disk is waited for."""


class Journal:
    """Rows in a file that only grows. A row that was being written when the process died is dropped."""

    def __init__(self, path: Path, file: BinaryIO) -> None:
        file.seek(0)
        held = file.read()
        whole = held.rfind(b"\n") + 1
        file.truncate(whole)
        self._file, self._synced = file, time.monotonic()
        found = (parse(Trajectory, json.loads(line), str(path)) for line in held[:whole].split(b"\n") if line)
        self._known = {row.id: row for row in found}

    def of(self, group: Group) -> list[Trajectory]:
        """The rows of a group that are here, in order."""
        held = (self._known.get(f"{group.key}/{index}") for index in range(group.size))
        return [row for row in held if row is not None]

    def add(self, rows: Sequence[Trajectory]) -> None:
        self._file.write("".join(to_json(row) + "\n" for row in rows).encode("utf-8"))
        self._file.flush()
        if time.monotonic() - self._synced >= SYNC:
            os.fsync(self._file.fileno())
            self._synced = time.monotonic()


@contextmanager
def _opened(path: Path) -> Iterator[Journal]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        yield Journal(path, file)
        os.fsync(file.fileno())


def play(
    rollout: Rollout, groups: Sequence[Group], journal: Path, chunk: int, report: Callable[[int, int], None]
) -> list[Trajectory]:
    """All trajectories of `groups`, in order, played in chunks. A chunk that the journal does not hold whole is played whole.

    The chunks depend on `groups` and `chunk` alone, so an interrupted play ends with the same rows as an uninterrupted one
    even where what a policy says depends, by rounding, on what else is in flight. `report` is called with (groups done, groups
    in all).
    """
    played: list[Trajectory] = []
    with _opened(journal) as held:
        for start in range(0, len(groups), chunk):
            part = groups[start : start + chunk]
            rows = [row for group in part for row in held.of(group)]
            if len(rows) < sum(group.size for group in part):
                ended = iter(range(start + 1, start + 1 + len(part)))
                rollout.ended = lambda _, ended=ended: report(next(ended), len(groups))  # type: ignore[misc]
                rows = [row for group in rollout.run(part) for row in group]
                held.add(rows)
            played += rows
            report(min(start + chunk, len(groups)), len(groups))
    return played


def play_singly(
    rollout: Rollout, groups: Sequence[Group], journal: Path, ended: Callable[[list[Trajectory]], None]
) -> list[list[Trajectory]]:
    """The trajectories of each group, in order; every group is on disk as soon as it has ended.

    For a policy that plays a group the same whatever else is in flight, or that nothing can make repeat itself. `ended` is
    called with the rows of each group, those of the journal first.
    """
    with _opened(journal) as held:
        known = {group.key: rows for group in groups if len(rows := held.of(group)) == group.size}
        for rows in known.values():
            ended(rows)

        def keep(rows: list[Trajectory]) -> None:
            held.add(rows)
            ended(rows)

        rollout.ended = keep
        missing = [group for group in groups if group.key not in known]
        known.update(zip((group.key for group in missing), rollout.run(missing), strict=True))
    return [known[group.key] for group in groups]
