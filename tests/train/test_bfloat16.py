"""Training in bfloat16. If this breaks, steps are rounded away, and a night's run leaves the model that it began with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from star.algorithms.arpo import ARPO
from star.algorithms.grpo import GRPO
from star.rollout import Group
from star.settings import Lora, Rl, Sft
from star.train import model as models
from star.train import sft
from star.train.grpo import StarGRPOTrainer
from star.train.playing import Recorded
from star.train.tokens import Renderer

Make = Callable[..., StarGRPOTrainer]
LR = 2e-6
"""The paper's for RL."""


@pytest.fixture
def checkpoint(student: Any, renderer: Renderer, tmp_path: Path) -> Path:
    models.save(student, renderer.tokenizer, tmp_path / "checkpoint", "student", 0)
    return tmp_path / "checkpoint"


def values(model: Any) -> torch.Tensor:
    """All that training may move, as one vector."""
    return torch.cat([p.detach().double().flatten() for p in model.parameters() if p.requires_grad])


def alike(steps: list[torch.Tensor]) -> None:
    """Both went the same way, as far."""
    full, half = steps
    assert (half != 0).double().mean() > 0.9
    assert torch.nn.functional.cosine_similarity(full, half, dim=0) > 0.9
    assert float(half.norm()) == pytest.approx(float(full.norm()), rel=0.1)


@pytest.mark.parametrize("trie", ["auto", "off"])
@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_:FutureWarning")  # trl turns it off and on by the old names
@pytest.mark.parametrize("extra", [{}, {"kl": 0.1}, {"gradient_checkpointing": True}], ids=str)
def test_rl_takes_the_steps_of_float32(make: Make, checkpoint: Path, trie: str, extra: dict[str, Any]) -> None:
    played = make(GRPO())
    groups = [Group(query, 4, f"rl/{query.id}") for query in played.setup.queries]
    held = played.rollout(played.policy(1.0, 0), ARPO(alpha=0.6, beta=0.0)).run(groups)
    steps = []
    for bf16 in (False, True):
        model, _ = models.load(checkpoint, models.halved(Rl(bf16=bf16)))
        trainer = make(GRPO(), model=model, bf16=bf16, lr=LR, trie=trie, max_gap=1.0, **extra)
        trainer.source = Recorded(held)
        before = values(model)
        trainer.train()
        assert trainer._tries.serve(model) is (trie == "auto")
        steps.append(values(model) - before)
    alike(steps)


def test_sft_takes_the_steps_of_float32(checkpoint: Path, renderer: Renderer, conversations: Any, tmp_path: Path) -> None:
    data = [dict(zip(("input_ids", "labels"), renderer.example(messages), strict=True)) for messages in conversations]
    steps = []
    for bf16 in (False, True):
        settings = Sft(steps=4, batch=8, micro_batch=4, lr=LR, schedule="constant", warmup=0.0, bf16=bf16)
        model, _ = models.load(checkpoint, models.halved(settings))
        before = values(model)
        sft.train(model, renderer, data, settings, tmp_path / str(bf16), 0, lambda *_: None)
        steps.append(values(model) - before)
    alike(steps)


def test_adapters_move_over_weights_in_bfloat16(make: Make, checkpoint: Path) -> None:
    settings = Rl(bf16=True, lora=Lora(rank=2, dropout=0.0))
    model, _ = models.load(checkpoint, models.halved(settings))
    model = models.lora(model, settings.lora)
    kinds = {p.requires_grad: p.dtype for p in model.parameters()}
    assert kinds == {True: torch.float32, False: torch.bfloat16}
    before = values(model)
    make(GRPO(), model=model, bf16=True, lora=settings.lora, lr=LR).train()
    assert (values(model) != before).double().mean() > 0.4, "the half of them that begins at 0 at least"


@pytest.mark.parametrize("algorithm", [GRPO(), ARPO(alpha=0.6, beta=0.0)], ids=["grpo", "arpo"])
def test_sampler_and_trainer_compute_alike(make: Make, student: Any, algorithm: Any) -> None:
    """In bfloat16 both: the sampler is as far from float32 as bfloat16 is, and nearer to the trainer than its limit by far."""
    trainer = make(algorithm, bf16=True)
    policy = trainer.policy(1.0, 0)
    [row, *_] = trainer.rollout(policy, None).run([Group(trainer.setup.queries[0], 1, "one")])[0]
    flat = trainer.setup.renderer.flatten(row)
    ids = torch.tensor([flat.prompt_ids + flat.completion_ids])
    with torch.no_grad():
        exact = torch.log_softmax(type(student).forward(student, ids).logits, -1)[0, :-1]
    exact = exact.gather(-1, ids[0, 1:, None]).squeeze(-1)[len(flat.prompt_ids) - 1 :]
    mask = torch.tensor(flat.mask).bool()
    off = (exact - torch.tensor(flat.logprobs))[mask].abs().max()
    assert 1e-5 < off < 0.1
    trainer.train()
    gaps = [log["sampling/logprob_gap"] for log in trainer.state.log_history if "sampling/logprob_gap" in log]
    assert len(gaps) == 4 and max(gaps) < 0.02
