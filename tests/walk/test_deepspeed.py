"""Training whose model lies in DeepSpeed's shards (ZeRO-3) over two processes, by the configuration that comes with star.
If this breaks, large models end at other weights than small ones, or cannot be sealed or resumed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from star import extensions

pytestmark = [
    pytest.mark.walk,
    pytest.mark.deepspeed,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="needs DeepSpeed: make test-vllm"),
]
Star = Callable[..., subprocess.CompletedProcess[str]]
Kill = Callable[..., None]
Serve = Callable[[Path, int], AbstractContextManager[str]]
ZERO3 = ("--set", "rl.launch.accelerate=zero3", "--set", "rl.launch.processes=2")


@pytest.fixture(autouse=True, scope="module")
def on_cpus(environment: dict[str, str]) -> None:
    environment["DS_ACCELERATOR"] = "cpu"


def weights(run: Path, stage: str) -> dict[str, torch.Tensor]:
    return load_file(run / stage / "model" / "model.safetensors")


def distance(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> float:
    assert one.keys() == other.keys()
    return max(float((one[name] - other[name]).abs().max()) for name in one)


def steps(run: Path) -> list[dict[str, Any]]:
    return [row for row in json.loads((run / "rl" / "log.json").read_text())["steps"] if "grad_norm" in row]


@pytest.fixture(scope="module")
def recorded(whole: Path, good: Star) -> tuple[str, ...]:
    good("rl", "-r", "mini.yaml", "--run", "for-zero", "--from", "whole", "--rollouts-only", "--set", "rl.steps=4")
    groups = whole.parent / "for-zero" / "rollouts" / "groups.jsonl"
    walk = ("rl", "-r", "mini.yaml", "--from", "whole", "--from-rollouts", str(groups))
    return (*walk, "--set", "rl.steps=4", "--set", "rl.eval_steps=0")


@pytest.fixture(scope="module")
def zero(place: Path, recorded: tuple[str, ...], good: Star) -> Path:
    good(*recorded, "--run", "zero", *ZERO3)
    return place / "zero"


def test_rl_ends_at_the_weights_of_one_process(place: Path, whole: Path, recorded: Any, zero: Path, good: Star) -> None:
    good(*recorded, "--run", "one-process")
    assert distance(weights(place / "one-process", "rl"), weights(zero, "rl")) < 1e-5
    assert distance(weights(place / "one-process", "rl"), weights(whole, "sft")) > 1e-4, "it learned"


def both(setting: str, place: Path, recorded: Any, good: Star) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The weights of one process and of the shards after the same training."""
    name = setting.replace(" ", "-")
    words = [word for part in setting.split() for word in ("--set", part)]
    good(*recorded, "--run", f"{name}-one", *words)
    good(*recorded, "--run", f"{name}-zero", *words, *ZERO3)
    one, zero = (weights(place / f"{name}-{kind}", "rl") for kind in ("one", "zero"))
    assert {tensor.dtype for tensor in one.values()} == {tensor.dtype for tensor in zero.values()}
    return one, zero


def test_adapters_end_there_too(place: Path, whole: Path, recorded: Any, good: Star) -> None:
    one, zero = both("rl.lora.rank=2", place, recorded, good)
    assert distance(one, zero) < 1e-5
    assert distance(one, weights(whole, "sft")) > 1e-3, "it learned"


@pytest.mark.parametrize("setting", ["rl.bf16=true", "rl.bf16=true rl.lora.rank=2"])
def test_bfloat16_goes_the_same_way(setting: str, place: Path, whole: Path, recorded: Any, good: Star) -> None:
    """DeepSpeed computes with weights of bfloat16, of which it keeps float32; one process rounds them layer by layer."""
    one, zero = both(setting, place, recorded, good)
    before = weights(whole, "sft")
    moved = [torch.cat([(now[name].double() - before[name]).flatten() for name in before]) for now in (one, zero)]
    assert torch.nn.functional.cosine_similarity(*moved, dim=0) > 0.95
    assert min(float(way.abs().max()) for way in moved) > 1e-3, "it learned"


def test_rl_goes_on_after_a_kill(place: Path, recorded: Any, zero: Path, good: Star, kill: Kill) -> None:
    kill("zero-cut/rl.partial/trainer/checkpoint-2/files.json", *recorded, "--run", "zero-cut", *ZERO3)
    lock = extensions.directory() / "deepspeed_shm_comm" / extensions.LOCK
    lock.touch()  # as if it had been killed while DeepSpeed compiled
    done = good(*recorded, "--run", "zero-cut", *ZERO3)
    assert "rl: resuming" in done.stderr and f"removed {lock}" in done.stderr
    assert distance(weights(zero, "rl"), weights(place / "zero-cut", "rl")) == 0.0


def test_sft_ends_at_the_weights_of_one_process(place: Path, good: Star) -> None:
    words = ("sft", "-r", "mini.yaml", "--from", "whole", "--set", "sft.optimizer=adamw", "--set", "sft.micro_batch=2")
    good(*words, "--run", "sft-one")
    good(*words, "--run", "sft-zero", "--set", "sft.launch.accelerate=zero3", "--set", "sft.launch.processes=2")
    assert distance(weights(place / "sft-one", "sft"), weights(place / "sft-zero", "sft")) < 1e-3
    assert distance(weights(place / "sft-one", "sft"), load_file(place / "sft-one/sft/base/model.safetensors")) > 0.05


def test_muon_is_refused(whole: Path, recorded: Any, command: Star) -> None:
    done = command(*recorded, "--run", "zero-muon", *ZERO3, "--set", "rl.optimizer=muon")
    assert done.returncode == 1 and "error: optimizer: muon needs whole matrices" in done.stderr
    assert "adamw" in done.stderr.splitlines()[-1]


def test_a_model_in_shards_does_not_sample(whole: Path, command: Star) -> None:
    done = command("rl", "-r", "mini.yaml", "--run", "zero-sampled", "--from", "whole", *ZERO3)
    assert done.returncode == 1 and "hf cannot sample from a model that is in shards" in done.stderr


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM: make test-vllm")
def test_vllm_samples_for_it(place: Path, wide: Path, good: Star, vllm_server: Serve) -> None:
    """A server, which begins with the untrained weights, so that only what it is handed can agree; and an engine a process."""
    words = ("rl", "-r", "wide.yaml", "--from", "wide", "--set", "rl.steps=3", "--set", "rl.eval_steps=2")
    good(*words, "--run", "zero-inside", *ZERO3, "--set", "rl.rollouts={name: vllm, kv_cache_gib: 0.1}")
    with vllm_server(wide / "sft" / "base", 900) as url:
        server = ("--set", f'rl.rollouts={{name: vllm_server, url: "{url}"}}')
        good(*words, *server, "--run", "zero-whole", "--processes", "2")
        good(*words, *server, "--run", "zero-live", *ZERO3)
    found = [steps(place / name) for name in ("zero-whole", "zero-live", "zero-inside")]
    for whole, *spread in zip(*found, strict=True):
        assert max(row["sampling/logprob_gap_max"] for row in (whole, *spread)) < 1e-3
        assert whole["grad_norm"] > 0
        for row in spread:
            assert row["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-3)
            assert row["reward"] == pytest.approx(whole["reward"], rel=1e-5)
