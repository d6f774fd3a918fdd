"""Where the groups of a batch come from: played with the model in training, or read from a file."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count, groupby
from pathlib import Path
from typing import Any, Protocol

from star.errors import DataError
from star.protocols import Algorithm
from star.records import read_jsonl
from star.rollout import Group, Rollout
from star.train.order import EpochSampler
from star.train.ranks import dealt, rank
from star.train.telemetry import tool_calls
from star.train.together import gathered
from star.types import Mode, Query, Trajectory

Groups = list[list[Trajectory]]


class GroupSource(Protocol):
    """Groups by number. An epoch has `len` of them."""

    recorded: bool
    """Whether they are of a policy that is not the one in training."""

    def __len__(self) -> int: ...

    def prompt(self, number: int) -> str:
        """What the group is about, for the trainer's log."""

    def groups(self, asked: Sequence[int], step: int) -> Groups:
        """The groups of one process's part of a batch, in order."""


@dataclass(slots=True)
class Live:
    """Plays queries with the policy as it is."""

    queries: Sequence[Query]
    size: int
    """Rollouts of a group."""
    algorithm: Algorithm
    rollout: Callable[[], Rollout]
    value: Callable[[Trajectory], float]
    log: Callable[[str, float], None]
    seed: int
    recorded: bool = False

    def __len__(self) -> int:
        return len(self.queries)

    def prompt(self, number: int) -> str:
        return self.queries[number].text

    def groups(self, asked: Sequence[int], step: int) -> Groups:
        rollout = self.rollout()
        first = rank() * len(asked)
        named = [(first + place, self.queries[number]) for place, number in enumerate(asked)]
        groups = rollout.run([Group(query, self.size, f"rl/{step}/{place}/{query.id}") for place, query in named])
        rounds, wasted = getattr(self.algorithm, "refill", 0), list[int]()
        for turn in range(rounds):
            groups, replaced = self._refill(rollout, groups, step, turn)
            wasted += map(tool_calls, replaced)
        if rounds:
            wasted = gathered(wasted)
            self.log("rollout/refilled_groups", len(wasted))
            self.log("rollout/refilled_tool_calls", sum(wasted))
        return groups

    def _refill(self, rollout: Rollout, groups: Groups, step: int, turn: int) -> tuple[Groups, Groups]:
        """Replace groups whose rollouts all earned the same by groups of other queries (DAPO's dynamic sampling).

        All processes agree on who plays which query, so the outcome does not depend on their number. Returns the groups as
        they are then, and those that this process has replaced.
        """
        first = rank() * len(groups)
        dull = gathered([first + place for place, group in enumerate(groups) if len(set(map(self.value, group))) == 1])
        taken = set(gathered([group[0].query_id for group in groups]))
        others = [query for query in self.queries if query.id not in taken]
        random.Random(f"{self.seed}/refill/{step}/{turn}").shuffle(others)
        own = [(place - first, query) for place, query in zip(dull, others, strict=False) if 0 <= place - first < len(groups)]
        fresh = rollout.run([Group(query, self.size, f"rl/{step}/refill-{turn}/{query.id}") for _, query in own])
        mended = list(groups)
        for (place, _), group in zip(own, fresh, strict=True):
            mended[place] = group
        return mended, [groups[place] for place, _ in own]


@dataclass(slots=True)
class Recorded:
    """Groups that were played before, in the order of their file."""

    held: Groups
    recorded: bool = True

    @classmethod
    def read(cls, path: Path, size: int, mode: Mode) -> Recorded:
        """The groups of a file of trajectories. Raises DataError where they cannot be trained on."""
        rows = read_jsonl(path, Trajectory)
        held = [list(group) for _, group in groupby(rows, key=lambda row: row.id.rpartition("/")[0])]
        for group in held:
            fault = _fault(group, size, mode)
            if fault:
                line = 1 + sum(map(len, held[: held.index(group)]))
                raise DataError(f"{path}:{line}: group {group[0].id.rpartition('/')[0]} {fault}", "Play: star rl --rollouts-only")
        if not held:
            raise DataError(f"{path}:1: no trajectories", "Play: star rl --rollouts-only")
        return cls(held)

    def __len__(self) -> int:
        return len(self.held)

    def prompt(self, number: int) -> str:
        return self.held[number][0].prompt[-1].content

    def groups(self, asked: Sequence[int], step: int) -> Groups:
        return [self.held[number] for number in asked]


def _fault(group: Sequence[Trajectory], size: int, mode: Mode) -> str | None:
    """Why a group cannot be trained on."""
    if len(group) != size:
        return f"has {len(group)} rollouts, and rl.group is {size}"
    if not any(turn.completion.token_ids for row in group for turn in row.turns):
        return "has no token ids: its policy was no model of ours"
    for row in group:
        if row.score is None or row.score.mode != mode:
            return f"was judged as {row.score.mode if row.score else 'nothing'}, and rl.mode is {mode}"
        lengths = [(len(turn.completion.token_ids), len(turn.completion.logprobs)) for turn in row.turns]
        if any(ids != logprobs for ids, logprobs in lengths):
            return f"has token ids without log-probabilities in {row.id}"
    return None


def batches(queries: int, size: int, seed: int) -> Iterator[list[int]]:
    """The numbers of the queries of one batch after another, as training asks for them: without end."""
    for epoch in count():
        sampler: Any = EpochSampler(data_source=range(queries), mini_repeat_count=1, batch_size=size, repeat_count=1, seed=seed)
        sampler.set_epoch(epoch)
        order = list(sampler)
        yield from (order[start : start + size] for start in range(0, len(order), size))


def shared(play: Callable[[Sequence[Query]], list[Trajectory]], queries: Sequence[Query]) -> list[Trajectory]:
    """Trajectories of all queries, each process having played its share."""
    return gathered(play(dealt(queries)))
