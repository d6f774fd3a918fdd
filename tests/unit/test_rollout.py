"""THE loop plays synthesis, RL and evaluation. If this breaks, groups mix, failed episodes vanish, limits leak, or the
forks of a group depend on what else is in flight."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest

from star.algorithms.arpo import ARPO
from star.policies.replay import ReplayPolicy
from star.protocols import Env, Expert, Step
from star.rollout import Group, Rollout
from star.settings import Limits
from star.types import Completion, Message, Query, Score, ToolCall, Trajectory


@dataclass
class Room:
    """One episode of the corridor: whatever is said opens the next door, until "out"."""

    key: str
    doors: int = 0

    @property
    def prompt(self) -> tuple[Message, ...]:
        return Message("system", "s"), Message("user", "u")

    def step(self, text: str) -> Step:
        if text == "trip":
            raise ValueError("the floor gave way")
        if text == "out":
            return Step(stop="answer", answer=f"out after {self.doors}")
        if text == "mumble":
            return Step(observation="pardon?", error="bad_json")
        if text == "scream":
            return Step(stop="format", error="no_action")
        self.doors += 1
        return Step(observation=f"door {self.doors}", call=ToolCall("open", {}))

    def fork(self) -> Env:
        return replace(self)


@dataclass
class Corridor:
    opened: list[str] = field(default_factory=list)

    def queries(self, split: str, count: int, seed: int) -> list[Query]:
        return [Query(f"q{index}", "text", {}, "easy", 3, split) for index in range(count)]

    def open(self, query: Query, key: str) -> Env:
        self.opened.append(key)
        return Room(key)

    def score(self, query: Query, answer: str | None) -> Score:
        return Score(query.id, "strict", {"out": answer is not None}, {}, True, delivered=answer is not None)

    def expert(self, query: Query) -> Expert:
        return lambda turns: "out"


QUERIES = Corridor().queries("train", 6, 0)


def said(*texts: str, entropies: Sequence[float] = ()) -> list[Completion]:
    return [Completion(text, entropies=(e,)) for text, e in zip(texts, entropies or [0.0] * len(texts), strict=True)]


def run(
    recorded: dict[str, list[Completion]], groups: Sequence[Group], limits: Limits | None = None,
    algorithm: ARPO | None = None, batch: int = 128, world: Corridor | None = None,
) -> list[list[Trajectory]]:  # fmt: skip
    world = world or Corridor()
    return Rollout(ReplayPolicy(recorded), world, limits or Limits(), world.score, algorithm, batch).run(groups)


LENGTHS = {query.id: said(*["open"] * index, "out") for index, query in enumerate(reversed(QUERIES))}


@pytest.mark.parametrize("batch", [1, 3, 8, 100])
def test_groups_are_whole_and_in_order(batch: int) -> None:
    groups = [Group(query, 1 + index % 3, f"g/{query.id}") for index, query in enumerate(QUERIES)]
    world = Corridor()
    played = run(LENGTHS, groups, batch=batch, world=world)
    assert [[row.id for row in rows] for rows in played] == [[f"{g.key}/{i}" for i in range(g.size)] for g in groups]
    assert sorted(world.opened) == sorted(row.id for rows in played for row in rows)
    for rows in played:
        for row in rows:
            assert row.answer == f"out after {len(row.turns) - 1}"
            assert row.score is not None and row.score.success
            assert [t.observation for t in row.turns] == [f"door {n}" for n in range(1, len(row.turns))] + [None]
            assert (row.parent, row.forked_at, row.error, row.policy) == (None, None, None, "replay")


def test_every_group_is_told_of_as_it_ends() -> None:
    world, seen = Corridor(), list[list[Trajectory]]()
    groups = [Group(query, 2, query.id) for query in QUERIES]
    rows = Rollout(ReplayPolicy(LENGTHS), world, Limits(), world.score, batch=4, ended=seen.append).run(groups)
    assert sorted(seen, key=lambda part: part[0].id) == sorted(rows, key=lambda part: part[0].id)


def test_what_has_begun_is_finished_and_no_more_begins() -> None:
    world, seen = Corridor(), list[list[Trajectory]]()
    groups = [Group(query, 2, query.id) for query in QUERIES]
    limited = Rollout(ReplayPolicy(LENGTHS), world, Limits(), world.score, batch=4, ended=seen.append)
    limited.enough = lambda: bool(seen)
    rows = limited.run(groups)
    assert [len(part) for part in rows] == [2, 2, 0, 0, 0, 0]
    assert all(row.score is not None and row.score.success for part in rows for row in part)
    limited.enough = lambda: True
    assert limited.run(groups) == [[]] * 6


def test_a_failed_episode_is_a_row() -> None:
    recorded = {
        "q0": said("open", "trip"),
        "q1": said("open"),
        "q2": said("open", "scream"),
        "q3": said("mumble", "out"),
        "q4": [*said("open"), Completion("", finish="error", error="the server is gone")],
        "q5": [*said("open"), Completion("halfw", finish="length")],
    }
    rows = [rows[0] for rows in run(recorded, [Group(query, 1, query.id) for query in QUERIES])]
    assert [row.stop for row in rows] == ["error", "error", "format", "answer", "error", "tokens"]
    assert rows[0].error == "ValueError: the floor gave way"
    assert rows[1].error == "no recorded turn 2 for query q1"
    assert (rows[2].error, rows[2].turns[-1].error) == (None, "no_action")
    assert [turn.error for turn in rows[3].turns] == ["bad_json", None]
    assert rows[4].error == "the server is gone"
    assert [len(row.turns) for row in rows] == [2] * 6, "what was said last is kept"
    assert [row.score is not None and row.score.delivered for row in rows] == [False, False, False, True, False, False]


def test_a_context_without_room_ends_a_rollout() -> None:
    rows = run({"q0": [Completion("", finish="context")]}, [Group(QUERIES[0], 1, "g")])[0]
    assert (rows[0].stop, rows[0].answer) == ("tokens", None)


@pytest.mark.parametrize(("limit", "stop", "turns"), [(1, "turns", 1), (3, "turns", 3), (4, "answer", 4), (9, "answer", 4)])
def test_the_turn_limit(limit: int, stop: str, turns: int) -> None:
    row = run({"q0": said("open", "open", "open", "out")}, [Group(QUERIES[0], 1, "g")], Limits(turns=limit))[0][0]
    assert (row.stop, len(row.turns)) == (stop, turns)
    assert (row.answer is not None) == (stop == "answer")


RISING = {query.id: said("open", "open", "open", "out", entropies=[0.1, 0.05, 0.8, 0.2]) for query in QUERIES}


def test_arpo_forks_just_before_the_turn_whose_entropy_rose() -> None:
    rows = run(RISING, [Group(QUERIES[0], 4, "g")], algorithm=ARPO(initial=0.5))[0]
    assert [(row.id, row.parent, row.forked_at) for row in rows] == [
        ("g/0", None, None),
        ("g/1", None, None),
        ("g/2", "g/0", 2),
        ("g/3", "g/1", 2),
    ]
    for fork in rows[2:]:
        parent = next(row for row in rows if row.id == fork.parent)
        assert fork.turns[: fork.forked_at] == parent.turns[: fork.forked_at]
        assert fork.answer == "out after 3", "the fork has an environment of its own"


def test_no_fork_before_the_first_tool_response_or_after_an_error() -> None:
    recorded = {"q0": said("mumble", "open", "out", entropies=[0.0, 0.9, 0.0])}
    rows = run(recorded, [Group(QUERIES[0], 4, "g")], algorithm=ARPO(initial=0.5))[0]
    assert [row.parent for row in rows] == [None] * 4, "the first turns are no tool responses"


@pytest.mark.parametrize("size", [2, 5, 8, 16])
@pytest.mark.parametrize("algorithm", [ARPO(ways=3), ARPO(initial=0.2), ARPO(coin=True), ARPO(tau=0.9), ARPO(initial=1.0)])
def test_a_group_has_exactly_its_size(size: int, algorithm: ARPO) -> None:
    world = Corridor()
    rows = run(RISING, [Group(query, size, query.id) for query in QUERIES], algorithm=algorithm, world=world)
    for group in rows:
        assert [row.id for row in group] == [f"{group[0].query_id}/{index}" for index in range(size)]
        fresh = sorted(row.id for row in group if row.parent is None)
        opened = sorted(key for key in world.opened if key.startswith(f"{group[0].query_id}/"))
        assert fresh == opened, "what is no fork began at the query"
        assert len(fresh) >= algorithm.roots(size)
    if algorithm.tau == 0.9:
        assert all(row.parent is None for group in rows for row in group), "what is missing is filled with fresh rollouts"


@pytest.mark.parametrize("algorithm", [ARPO(ways=2), ARPO(coin=True, alpha=0.4)])
def test_forks_depend_on_the_group_alone(algorithm: ARPO) -> None:
    groups = [Group(query, 6, f"g/{query.id}") for query in QUERIES]
    recorded = RISING | {"q1": LENGTHS["q1"], "q4": said("open", "out", entropies=[0.1, 0.9])}
    played = {batch: run(recorded, groups, algorithm=algorithm, batch=batch) for batch in (1, 7, 13, 100)}
    assert played[1] == played[7] == played[13] == played[100]
    assert played[1] == [run(recorded, [group], algorithm=algorithm)[0] for group in groups]
    assert any(row.parent for group in played[1] for row in group)


@dataclass
class Slow(Room):
    """A room whose door does not open for one query."""

    def step(self, text: str) -> Step:
        if self.key.startswith("q1") and text.startswith("<tool_call>"):
            self.gate.wait(30)
        return super().step("open" if text.startswith("<tool_call>") else text)

    gate: threading.Event = field(default_factory=threading.Event)


class SlowCorridor(Corridor):
    def open(self, query: Query, key: str) -> Env:
        return Slow(key)


def test_a_stuck_tool_ends_its_rollout_and_no_other(caplog: pytest.LogCaptureFixture) -> None:
    knock = '<tool_call>{"name": "knock", "arguments": {}}</tool_call>'
    recorded = {query.id: said(knock, "out") for query in QUERIES}
    groups = [Group(query, 1, query.id) for query in QUERIES]
    begun = time.monotonic()
    played = run(recorded, groups, Limits(tool_seconds=0.2), world=SlowCorridor())
    assert time.monotonic() - begun < 5
    for (row,) in played:
        stuck = row.query_id == "q1"
        assert row.stop == ("error" if stuck else "answer")
        assert row.error == ("knock did not return within 0.2 s" if stuck else None)
        assert row.score is not None and row.score.success is not stuck
    (record,) = caplog.records
    assert record.getMessage() == (
        "rollout q1/0 of query q1, turn 1: knock did not return within 0.2 s; the rollout ends"
    )  # fmt: skip


def test_environments_step_side_by_side() -> None:
    """Each step waits until all have begun: one after another, none would return in time."""
    meeting = threading.Barrier(len(QUERIES))

    @dataclass
    class Meeting(Room):
        def step(self, text: str) -> Step:
            meeting.wait(5)
            return super().step(text)

    world = Corridor()
    world.open = lambda query, key: Meeting(key)  # type: ignore[method-assign]
    played = run({q.id: said("out") for q in QUERIES}, [Group(q, 1, q.id) for q in QUERIES], world=world)
    assert all(rows[0].stop == "answer" for rows in played)
