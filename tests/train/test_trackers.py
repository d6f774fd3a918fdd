"""Trackers get every figure of RL. If this breaks, a night's curves are missing, torn, or deleted with the scratch files."""

from __future__ import annotations

import os
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from transformers import TrainerCallback

from star.algorithms.dapo import DAPO
from star.algorithms.grpo import GRPO
from star.train import checkpoints, trackers
from star.train.dev import Dev
from star.train.grpo import Setup, StarGRPOTrainer

STEPS = [1, 2, 3, 4]


class Killed(Exception):
    """The process ends here."""


class Dying(TrainerCallback):
    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self._step:
            raise Killed


@pytest.fixture
def tracked(make: Any, tmp_path: Path) -> Any:
    """Trains with trackers, perhaps until it dies, and goes on from its last checkpoint if it is called again."""

    def tracked(names: list[str], algorithm: Any, until: int | None = None) -> str:
        scratch = tmp_path / "trainer"
        scratch.mkdir(exist_ok=True)
        title = trackers.title(scratch, "demo")
        with trackers.opened(names, tmp_path, title) as callbacks:
            made = make(algorithm, report_to=names, save_steps=2)
            dev = Dev(lambda _: {"greedy": 0.5, "value": 0.5}, 2, scratch)
            setup: Setup = replace(made.setup, title=title)
            dying = [] if until is None else [Dying(until)]
            dev.trainer = trainer = StarGRPOTrainer(made.model, setup, scratch, callbacks=[*callbacks, dev, *dying])
            with nullcontext() if until is None else pytest.raises(Killed):
                checkpoints.finish(trainer, scratch)
        return title

    return tracked


def steps(events: EventAccumulator, tag: str) -> list[int]:
    return [event.step for event in events.Scalars(tag)]


@pytest.mark.parametrize("algorithm", [GRPO(), DAPO()], ids=["grpo", "dapo"])
def test_tensorboard_has_each_step_once_after_a_resumption(tracked: Any, algorithm: Any, tmp_path: Path, caplog: Any) -> None:
    first = tracked(["tensorboard"], algorithm, until=3)
    assert tracked(["tensorboard"], algorithm) == first
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    for tag in ("reward", "rewards/success/mean", "rollout/entropy", "rollout/forks", "sampling/logprob_gap", "seconds/rollouts"):
        assert steps(events, f"train/{tag}") == STEPS
    assert steps(events, "eval/greedy") == [0, 2, 4]
    assert "dropped this attribute" not in caplog.text


def test_weights_and_biases_goes_on_with_a_run(
    tracked: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    pytest.importorskip("wandb", reason="wandb is not installed: pip install 'star-agents[trackers]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    title = tracked(["wandb"], GRPO(), until=3)
    tracked(["wandb"], GRPO())
    parts = [file for file in (tmp_path / "wandb").glob(f"offline-run-*/run-{title}.wandb") if file.stat().st_size]
    assert parts and any(b"rollout/entropy" in file.read_bytes() for file in parts)
    assert "WANDB_RUN_ID" not in os.environ
    assert capsys.readouterr().out == ""


def test_trackio_goes_on_with_a_run(tracked: Any, capsys: Any) -> None:
    pytest.importorskip("trackio", reason="trackio is not installed: pip install 'star-agents[trackers]'")
    title = tracked(["trackio"], GRPO(), until=3)
    tracked(["trackio"], GRPO())
    import trackio

    assert [run.name for run in trackio.Api().runs(trackers.PROJECT)].count(title) == 1
    assert capsys.readouterr().out == ""


def test_a_run_that_begins_anew_has_a_name_of_its_own(tmp_path: Path) -> None:
    names = set()
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
        names |= {trackers.title(tmp_path / place, "demo") for _ in range(2)}
    assert len(names) == 2 and all(name.startswith("demo-rl-") for name in names)
