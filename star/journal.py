"""Long plays that survive a kill: what has been played is on disk, and is read instead of played again."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from star.protocols import Conversation, Policy
from star.records import parse, to_json
from star.rollout import Group, Rollout
from star.types import Completion, Trajectory

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
        self.known = {row.id: row for row in found}
        """By id; of several rows with one id the last."""

    def of(self, group: Group) -> list[Trajectory]:
        """The rows of a group that are here, in order."""
        held = (self.known.get(f"{group.key}/{index}") for index in range(group.size))
        return [row for row in held if row is not None]

    def add(self, rows: Sequence[Trajectory]) -> None:
        self.known.update((row.id, row) for row in rows)
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


@dataclass(frozen=True, slots=True)
class Recalling:
    """A policy that says once more what it said in rollouts that were cut short, and only then goes on."""

    policy: Policy
    said: Mapping[str, Sequence[Completion]]
    """By id of the rollout."""

    @property
    def name(self) -> str:
        return self.policy.name

    def complete(self, conversations: Sequence[Conversation]) -> Sequence[Completion | None]:
        recalled = [self._recall(conversation) for conversation in conversations]
        return recalled if any(recalled) else self.policy.complete(conversations)

    def _recall(self, conversation: Conversation) -> Completion | None:
        said, turn = self.said.get(conversation.id, ()), len(conversation.turns)
        return said[turn] if turn < len(said) else None


@dataclass(frozen=True, slots=True)
class Played:
    tries: list[list[Trajectory]]
    """The trajectories of each group, in order."""
    spare: list[Trajectory]
    """What else the journal holds: tries that no group asks for."""


def play_singly(
    rollout: Rollout,
    groups: Sequence[Group],
    journal: Path,
    ended: Callable[[Trajectory], None] = lambda _: None,
    cut: Callable[[Trajectory], bool] = lambda _: False,
) -> Played:
    """Play each rollout of each group by itself; it is on disk as soon as it has ended.

    For a policy that plays a rollout the same whatever else is in flight, or that nothing can make repeat itself. What the
    journal holds of a query that still reads the same is not played again, but judged again; a trajectory that was `cut`
    short goes on from its last turn. `ended` is called with each trajectory, those of the journal first.
    """
    wanted = {f"{group.key}/{index}": replace(group, size=1, first=index) for group in groups for index in range(group.size)}
    with _opened(journal) as held:
        known = {name: _judged(rollout, held.known[name], one) for name, one in wanted.items() if _fits(rollout, held, name, one)}
        short = {name: row for name, row in known.items() if cut(row)}
        for name, row in known.items():
            if name not in short:
                ended(row)

        def keep(rows: list[Trajectory]) -> None:
            held.add(rows)
            for row in rows:
                ended(row)

        said = {name: [turn.completion for turn in row.turns[:-1]] for name, row in short.items()}
        again = replace(rollout, policy=Recalling(rollout.policy, said), ended=keep)
        missing = {name: one for name, one in wanted.items() if name not in known or name in short}
        found = zip(missing, again.run(list(missing.values())), strict=True)
        known.update((name, rows[0]) for name, rows in found if rows)
        spare = [row for name, row in held.known.items() if name not in wanted]
    tries = [[known[name] for index in range(group.size) if (name := f"{group.key}/{index}") in known] for group in groups]
    return Played(tries, spare)


def _fits(rollout: Rollout, held: Journal, name: str, one: Group) -> bool:
    """Whether the journal holds this rollout, and of a query that opens in the same words."""
    row = held.known.get(name)
    return row is not None and row.prompt == rollout.world.open(one.query, name).prompt


def _judged(rollout: Rollout, row: Trajectory, one: Group) -> Trajectory:
    return replace(row, score=rollout.judge(one.query, row.answer))
