"""Where groups come from. If this breaks, rollouts are trained on that no model of ours has played, or in another order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from star.algorithms.grpo import GRPO
from star.errors import DataError
from star.records import write_jsonl
from star.train.grpo import StarGRPOTrainer
from star.train.playing import Recorded, batches
from star.types import Completion, Trajectory

Make = Callable[..., StarGRPOTrainer]


@pytest.fixture
def played(make: Make) -> list[Trajectory]:
    """Two groups of four."""
    return [row for group in make(GRPO()).source.groups([0, 1], 0) for row in group]


def test_recorded_groups_come_in_the_order_of_the_file(played: list[Trajectory], tmp_path: Path) -> None:
    write_jsonl(tmp_path / "groups.jsonl", played)
    found = Recorded.read(tmp_path / "groups.jsonl", 4, "strict")
    assert len(found) == 2 and found.recorded
    assert found.groups([1, 0], 5) == [played[4:], played[:4]]


def _silent(row: Trajectory) -> Trajectory:
    turns = tuple(replace(turn, completion=Completion(turn.completion.text)) for turn in row.turns)
    return replace(row, turns=turns)


def _unsure(row: Trajectory) -> Trajectory:
    return replace(row, turns=tuple(replace(t, completion=replace(t.completion, logprobs=())) for t in row.turns))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: rows[:-1], r":5: group .* has 3 rollouts, and rl.group is 4"),
        (lambda rows: [replace(row, score=replace(row.score, mode="official")) for row in rows], "was judged as official"),
        (lambda rows: [replace(row, score=None) for row in rows], "was judged as nothing"),
        (lambda rows: list(map(_silent, rows)), "has no token ids"),
        (lambda rows: [*rows[:-1], _unsure(rows[-1])], r":5: .* token ids without log-probabilities in"),
        (lambda rows: [], ":1: no trajectories"),
    ],
    ids=["torn group", "other judge", "unjudged", "no ids", "no log-probabilities", "empty"],
)
def test_what_cannot_be_trained_on_is_refused(
    played: list[Trajectory], tmp_path: Path, change: Callable[[Any], Any], message: str
) -> None:
    write_jsonl(tmp_path / "groups.jsonl", change(played))
    with pytest.raises(DataError, match=message):
        Recorded.read(tmp_path / "groups.jsonl", 4, "strict")


def test_batches_are_those_that_training_asks_for(make: Make) -> None:
    trainer = make(GRPO(), count=7, steps=12)
    asked: list[list[int]] = []
    source = trainer.source

    def groups(numbers: Any, step: int) -> Any:
        asked.append(list(numbers))
        return type(source).groups(source, numbers, step)

    trainer.source = type("Recording", (), {"groups": staticmethod(groups), "recorded": False})()  # type: ignore[assignment]
    trainer.train()
    assert asked == list(islice(batches(7, 2, 0), 12)), "over four epochs"
    assert len({number for batch in asked[:3] for number in batch}) == 6
