"""Long plays that survive a kill: groups are played in fixed chunks, each on disk before the next begins."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from star.records import parse, to_json
from star.rollout import Group, Rollout
from star.types import Trajectory


def play(
    rollout: Rollout, groups: Sequence[Group], journal: Path, chunk: int, report: Callable[[int, int], None]
) -> list[Trajectory]:
    """All trajectories of `groups`, in order. Chunks that the journal holds whole are read instead of played.

    The chunks depend on `groups` and `chunk` alone, so an interrupted play ends with the same rows as an uninterrupted one.
    `report` is called with (groups done, groups in all).
    """
    known = _read(journal)
    played: list[Trajectory] = []
    for start in range(0, len(groups), chunk):
        part = groups[start : start + chunk]
        held = [known.get(f"{group.key}/{index}") for group in part for index in range(group.size)]
        rows = [row for row in held if row is not None]
        if len(rows) < len(held):
            rollout.progress = lambda ended, start=start: report(start + ended, len(groups))  # type: ignore[misc]
            rows = [row for group in rollout.run(part) for row in group]
            _append(journal, rows)
        played += rows
        report(min(start + chunk, len(groups)), len(groups))
    return played


def _read(journal: Path) -> dict[str, Trajectory]:
    """Rows by id; what follows the last whole line was being written when the process died."""
    if not journal.exists():
        return {}
    whole = journal.read_bytes().rpartition(b"\n")[0]
    rows = (json.loads(line) for line in whole.split(b"\n") if line)
    found = (parse(Trajectory, row, str(journal)) for row in rows)
    return {row.id: row for row in found}


def _append(journal: Path, rows: Sequence[Trajectory]) -> None:
    """Add rows behind the last whole line."""
    journal.parent.mkdir(parents=True, exist_ok=True)
    with journal.open("a+b") as file:
        file.seek(0)
        whole = file.read().rfind(b"\n") + 1
        file.truncate(whole)
        file.write("".join(to_json(row) + "\n" for row in rows).encode("utf-8"))
        file.flush()
        os.fsync(file.fileno())
