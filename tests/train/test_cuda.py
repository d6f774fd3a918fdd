"""SFT and RL on a CUDA device, in a world that a model enters in seconds. If it breaks, a GPU learns other things than a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from star.algorithms.arpo import ARPO
from star.algorithms.grpo import GRPO
from star.rollout import Group
from star.settings import Rl, Tiny
from star.train import model as models
from star.train.grpo import StarGRPOTrainer
from star.train.playing import Recorded
from star.train.tokens import Renderer

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: make test-gpu"),
]
Make = Callable[..., StarGRPOTrainer]


@pytest.fixture(scope="session")
def size() -> Tiny:
    """Heads as large as those of models for GPUs, whose kernels have a least size."""
    return Tiny(hidden=128, layers=2, heads=4, kv_heads=2, intermediate=96)


@pytest.fixture
def checkpoint(student: Any, renderer: Renderer, tmp_path: Path) -> Path:
    models.save(student, renderer.tokenizer, tmp_path / "checkpoint", "student", 0)
    return tmp_path / "checkpoint"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("bf16", "alike"), [(False, 0.999), (True, 0.9)])
@pytest.mark.parametrize("extra", [{}, {"kl": 0.1}, {"gradient_checkpointing": True}], ids=str)
def test_rl_through_tries_takes_the_steps_of_trl(
    make: Make, checkpoint: Path, bf16: bool, alike: float, extra: dict[str, Any]
) -> None:
    played = make(GRPO())
    groups = [Group(query, 4, f"rl/{query.id}") for query in played.setup.queries]
    held = played.rollout(played.policy(1.0, 0), ARPO(alpha=0.6, beta=0.0)).run(groups)
    moved = []
    for trie in ("off", "auto"):
        model, _ = models.load(checkpoint, models.halved(Rl(bf16=bf16)))
        trainer = make(GRPO(), model=model, bf16=bf16, lr=2e-6, trie=trie, max_gap=1.0, **extra)
        trainer.source = Recorded(held)
        before = torch.cat([p.detach().double().flatten() for p in model.parameters()])
        trainer.train()
        assert trainer.accelerator.device.type == "cuda" and trainer._tries.serve(model) is (trie == "auto")
        moved.append(torch.cat([p.detach().double().flatten() for p in model.parameters()]) - before)
    assert (moved[0] != 0).double().mean() > 0.9
    assert torch.nn.functional.cosine_similarity(*moved, dim=0) > alike


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("bf16", "gap"), [(False, 1e-3), (True, 0.05)])
@pytest.mark.parametrize("algorithm", [GRPO(), ARPO(alpha=0.6, beta=0.0)], ids=["grpo", "arpo"])
def test_sampler_and_trainer_agree(make: Make, checkpoint: Path, algorithm: Any, bf16: bool, gap: float) -> None:
    model, _ = models.load(checkpoint, models.halved(Rl(bf16=bf16)))
    trainer = make(algorithm, model=model, bf16=bf16)
    trainer.train()
    gaps = [log["sampling/logprob_gap"] for log in trainer.state.log_history if "sampling/logprob_gap" in log]
    assert model.device.type == "cuda" and len(gaps) == 4 and max(gaps) < gap
