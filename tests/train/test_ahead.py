"""A walk tells at its beginning what would stop a later stage. If this breaks, SFT trains for a night, and in the morning RL says
that a package is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from star import plugins
from star.cli import main
from star.errors import StarError
from star.manifest import Run
from star.recipe import load


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A place for runs on a machine where what is optional is not installed."""
    for package in ("deepspeed", "vllm", "wandb"):
        monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs" / "demo"


@pytest.mark.parametrize(
    ("setting", "told", "code"),
    [
        ("sft.launch.processes=7", "sft.batch = 8 is not shared by 7 processes", 2),
        ("sft.launch.accelerate=zero3", "sft.launch: zero3 needs the package 'deepspeed'.", 1),
        ("rl.launch.processes=3", "16 queries of 8 rollouts on 3 processes are not whole groups", 2),
        ("rl.launch.accelerate=zero2", "zero2: no such file, and no accelerate configuration of this name", 2),
        ("rl.launch.accelerate=zero3", "rl.launch: zero3 needs the package 'deepspeed'", 1),
        ("rl.launch.accelerate=fsdp2", "rl.rollouts: hf cannot sample from a model that is in shards over the processes. Set", 1),
        ("rl.report_to=[tensorboard, wandb]", "rl.report_to needs the package 'wandb'. Install", 1),
        ("rl.rollouts=vllm", "rl.rollouts: vllm needs the package 'vllm'. Install it: pip install 'star-agents[vllm]'", 1),
        ("eval.rollouts=vllm", "eval.rollouts: vllm needs the package 'vllm'", 1),
        ("rl.queries=5000", "rl.queries = 5000 is more than synth.rl, which is 640. Lower it", 2),
    ],
)
def test_a_walk_tells_at_once(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], setting: str, told: str, code: int
) -> None:
    monkeypatch.setattr(Run, "perform", lambda *_: pytest.fail("a stage began"))
    assert main(["run", "demo", "--set", setting]) == code
    assert told in capsys.readouterr().err


def test_what_is_not_asked_for_is_not_missed(bare: Path) -> None:
    small = ["synth.train=8", "synth.rl=16", "synth.dev=2", "synth.validation=2", "rl.rollouts=vllm"]
    sets = [word for setting in small for word in ("--set", setting)]
    assert main(["run", "demo", "--until", "trajectories", *sets]) == 0
    assert (bare / "trajectories").is_dir()


def test_recorded_rollouts_need_no_sampler(bare: Path) -> None:
    check = plugins.load("star.rl:check")
    recorded = ["rl.rollouts=vllm", "rl.recorded=groups.jsonl", "rl.launch.processes=1"]
    check(load(None, [*recorded, "rl.eval_steps=0"]))
    with pytest.raises(StarError, match="rl.rollouts: vllm needs the package 'vllm'"):
        check(load(None, recorded))
