"""Scoring only the positions that are read. If this breaks, training on a CPU follows another gradient than TRL's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from trl import GRPOTrainer

from star.algorithms.grpo import GRPO
from star.settings import Lora, Sft
from star.train import model as models
from star.train import sft
from star.train.scoring import compact, token_scores


def batch(model: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Ids with padding on the left and on the right, their mask, and the positions asked for."""
    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (3, 17), generator=draw)
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    mask[1, 14:] = 0
    asked = torch.rand(3, 17, generator=draw) < 0.5
    asked[:, :6] = False
    return ids, mask, asked & mask.bool()


def gradient(model: Any) -> torch.Tensor:
    """Of all parameters, as one vector."""
    found = torch.cat([p.grad.flatten().clone() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return found


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return bool((one - other).norm() <= 1e-5 * other.norm() + 1e-9)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_scores_equal_trls_own(make: Callable[..., Any], temperature: float) -> None:
    trainer = make(GRPO(), temperature=temperature)
    model = trainer.model
    ids, mask, asked = batch(model)
    weights = torch.rand(3, 11, generator=torch.Generator().manual_seed(1)) * asked[:, 6:]
    theirs, spread, _ = GRPOTrainer._get_per_token_logps_and_entropies(trainer, model, ids, mask, 11, compute_entropy=True)
    (theirs * weights).sum().backward()
    expected = gradient(model)
    ours, entropies = token_scores(model, ids, mask, asked, temperature)
    (ours[:, 6:] * weights).sum().backward()
    held = asked[:, 6:]
    assert close(ours[:, 6:][held], theirs[held]) and close(entropies[:, 6:][held], spread[held])
    assert not ours[~asked].any() and not entropies[~asked].any(), "what nobody asked for is 0"
    assert expected.norm() > 0 and close(gradient(model), expected)


def test_scores_of_a_model_with_adapters(student: Any) -> None:
    wrapped = models.lora(student, Lora(rank=2, alpha=4))
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    ids, mask, asked = batch(student)
    ours, _ = token_scores(wrapped, ids, mask, asked)
    logits = wrapped(input_ids=ids, attention_mask=mask).logits[:, :-1]
    theirs = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
    assert close(ours[:, 1:][asked[:, 1:]], theirs[asked[:, 1:]])


def test_the_sft_loss_equals_trls_own(student: Any, renderer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ids, mask, asked = batch(student)
    labels = ids.masked_fill(~asked, -100)
    inputs = {"input_ids": ids, "attention_mask": mask, "labels": labels}
    trainer = sft.StarSFTTrainer(
        model=student,
        args=sft.config(Sft(steps=1), tmp_path, 0, 8),
        train_dataset=Dataset.from_list([{"input_ids": [1, 2], "labels": [1, 2]}]),
        processing_class=renderer.tokenizer,
        settings=Sft(steps=1),
    )
    assert compact(student)
    count = labels[:, 1:].ne(-100).sum()
    for items in (None, 2 * count):
        ours = trainer.compute_loss(student, dict(inputs), num_items_in_batch=items)
        ours.backward()
        got = gradient(student)
        with monkeypatch.context() as patch:
            patch.setattr(sft, "compact", lambda model: False)
            theirs = trainer.compute_loss(student, dict(inputs), num_items_in_batch=items)
        theirs.backward()
        assert close(ours, theirs)
        assert got.norm() > 0 and close(got, gradient(student))


def test_odd_models_are_left_to_trl(student: Any) -> None:
    assert compact(student)
    student.config.final_logit_softcapping = 30.0
    assert not compact(student)
    assert not compact(torch.nn.Linear(2, 2))
