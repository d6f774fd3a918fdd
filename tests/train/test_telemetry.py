"""Figures that show a collapse while it happens. If this breaks, a run learns from another policy's rollouts, or falls apart
unseen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from star.algorithms.arpo import ARPO
from star.algorithms.grpo import GRPO
from star.errors import StarError, UsageError
from star.recipe import load
from star.train import grpo
from star.train.grpo import StarGRPOTrainer
from star.types import Completion, ToolCall, Trajectory, Turn

Make = Callable[..., StarGRPOTrainer]


def turn(count: int, entropy: float, **more: Any) -> Turn:
    said = Completion("x", tuple(range(count)), (-0.5,) * count, (entropy,) * count)
    return Turn(said, "seen", **{"call": ToolCall("pick", {}), **more})


def test_figures_of_rollouts_are_what_they_say() -> None:
    first = Trajectory("g/0", "q", "hf", (), (turn(4, 0.5), turn(20, 0.1), turn(2, 0.3, call=None)), "answer")
    fork = Trajectory(
        "g/1", "q", "hf", (), (*first.turns[:2], turn(6, 0.9, error="bad_json")), "turns", parent="g/0", forked_at=2
    )
    found = dict(grpo.telemetry.of_rollouts([[first, fork]], ["turns"]))
    assert found["rollout/stop_answer"] == found["rollout/stop_turns"] == found["rollout/masked"] == 0.5
    assert found["rollout/tokens"] == (4 + 20 + 2 + 6) / 2, "what a fork shares is sampled once"
    assert found["rollout/tool_calls"] == 3 / 2 and found["rollout/turns"] == 3
    assert (found["rollout/forks"], found["rollout/fork_turn"], found["rollout/errors"]) == (1, 2, 0.5)
    assert found["rollout/entropy"] == pytest.approx((4 * 0.5 + 20 * 0.1 + 2 * 0.3 + 6 * 0.9) / 32)
    assert found["rollout/entropy_after_tool"] == pytest.approx((10 * 0.1 + 2 * 0.3 + 6 * 0.9) / 18)


@pytest.mark.parametrize("algorithm", [GRPO(), ARPO(alpha=0.6, beta=0.0)], ids=["grpo", "arpo"])
@pytest.mark.parametrize("updates", [1, 2])
def test_sampler_and_trainer_are_compared(make: Make, algorithm: Any, updates: int) -> None:
    trainer = make(algorithm, steps=2 * updates, updates=updates, lr=1e-2)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "sampling/logprob_gap" in row]
    assert len(rows) == 2, "once a batch of rollouts, before the policy moves away from them"
    for row in rows:
        assert 0 <= row["sampling/logprob_gap"] <= row["sampling/logprob_gap_max"] < 1e-4
        assert row["seconds/rollouts"] > 0
    assert 0 < rows[0]["rollout/entropy_after_tool"] < 1


def test_rollouts_of_another_policy_stop_the_run(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    play = grpo._play

    def foreign(prompts: list[str], trainer: StarGRPOTrainer) -> dict[str, Any]:
        found = play(prompts, trainer)
        return {**found, "logprobs": [[value - 0.5 for value in row] for row in found["logprobs"]]}

    monkeypatch.setattr(grpo, "_play", foreign)
    with pytest.raises(StarError, match=r"differ by 0\.5 .* rl\.max_gap = 0\.1"):
        make(GRPO(), steps=1).train()
    make(GRPO(), steps=1, max_gap=1.0).train()


def test_a_tracker_that_nobody_knows_is_refused() -> None:
    assert load(None, ["rl.report_to=[tensorboard, trackio]"]).rl.report_to == ["tensorboard", "trackio"]
    with pytest.raises(UsageError, match="report_to"):
        load(None, ["rl.report_to=[excel]"])


def test_seconds_are_told_by_phase(make: Make) -> None:
    trainer = make(GRPO(), steps=2, micro_batch=4)
    trainer.train()
    rows = [row for row in trainer.state.log_history if "reward" in row]
    assert len(rows) == 2
    for row in rows:
        assert 0 < row["seconds/rollouts"] <= row["seconds/generation"]
        assert 0 < row["seconds/update"] < 60
