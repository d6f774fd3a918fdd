"""What runs only on a CUDA device. If it breaks, nobody without one can notice: run `make test-gpu` on a machine that has one."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch

from star import plugins
from star.dataset import messages_of
from star.policies.drawing import Draws
from star.policies.expert import ExpertPolicy
from star.policies.hf import HFPolicy
from star.rollout import Group, Rollout
from star.settings import Limits, Tiny
from star.train import model as models
from star.train import tiny
from star.train.scoring import compact
from star.train.tokens import Renderer
from star.types import Trajectory
from star.worlds.travel.world import TravelWorld

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device: make test-gpu"),
]
LIMITS = Limits(turns=3, turn_tokens=24, context=900)


@pytest.fixture
def world() -> TravelWorld:
    return TravelWorld(days=(3,), size={"cities": 4})


@pytest.fixture
def checkpoint(world: TravelWorld, tmp_path: Path) -> Path:
    """A random model on disk, with a vocabulary made from one expert conversation."""
    query = world.queries("train", 1, 0)[0]
    [[played]] = Rollout(ExpertPolicy(world), world, Limits(), world.score).run([Group(query, 1, "expert")])
    tokens = tiny.tokenizer([messages_of(played)], world.names(), 2400)
    models.save(tiny.model(Tiny(hidden=64, layers=2), tokens, 0), tokens, tmp_path / "model", "tiny", 0)
    return tmp_path / "model"


def played(checkpoint: Path, world: TravelWorld, bf16: bool) -> tuple[HFPolicy, list[Trajectory]]:
    model, tokens = models.load(checkpoint, bf16)
    policy = HFPolicy(model, Renderer(tokens), Draws(LIMITS, seed=1))
    queries = world.queries("dev", 4, 0)
    groups = Rollout(policy, world, LIMITS, world.score).run([Group(query, 2, query.id) for query in queries])
    return policy, [row for group in groups for row in group]


@pytest.mark.parametrize(("bf16", "tolerance"), [(False, 1e-3), (True, 5e-2)])
def test_sampled_logprobs_equal_a_fresh_forward(checkpoint: Path, world: TravelWorld, bf16: bool, tolerance: float) -> None:
    policy, rows = played(checkpoint, world, bf16)
    assert policy.model.device.type == "cuda" and not compact(policy.model)
    for row in rows:
        flat = policy.renderer.flatten(row)  # type: ignore[attr-defined]
        ids = torch.tensor([flat.prompt_ids + flat.completion_ids], device="cuda")
        with torch.no_grad():
            logprobs = torch.log_softmax(policy.model(ids).logits.float(), dim=-1)
        found = logprobs[0, :-1].gather(-1, ids[0, 1:, None]).squeeze(-1)[len(flat.prompt_ids) - 1 :].cpu()
        mask = torch.tensor(flat.mask, dtype=torch.bool)
        assert (found[mask] - torch.tensor(flat.logprobs)[mask]).abs().max() < tolerance


@pytest.mark.vllm
@pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM")
@pytest.mark.parametrize(("bf16", "tolerance"), [(False, 1e-2), (True, 1e-1)])
def test_vllm_sleeps_and_wakes_with_new_weights(checkpoint: Path, world: TravelWorld, bf16: bool, tolerance: float) -> None:
    sampler = plugins.build("sampler", {"name": "vllm", "kv_cache_gib": 1.0}).open(
        models.source(checkpoint, LIMITS.context, bf16)
    )
    model, tokens = models.load(checkpoint, bf16)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * parameter.std() * torch.randn_like(parameter))
    for _ in range(2):
        awake = torch.cuda.mem_get_info()[0]
        sampler.rest()
        assert torch.cuda.mem_get_info()[0] > awake + 2**29, "its cache left the memory"
        sampler.update(models.weights(model))
    queries = world.queries("dev", 4, 0)
    policy = sampler.policy(Draws(LIMITS, 1.0, seed=1))
    groups = Rollout(policy, world, LIMITS, world.score).run([Group(query, 2, query.id) for query in queries])
    for row in (row for group in groups for row in group):
        flat = Renderer(tokens).flatten(row)
        ids = torch.tensor([flat.prompt_ids + flat.completion_ids], device="cuda")
        with torch.no_grad():
            logprobs = torch.log_softmax(model(ids).logits.float(), dim=-1)
        found = logprobs[0, :-1].gather(-1, ids[0, 1:, None]).squeeze(-1)[len(flat.prompt_ids) - 1 :].cpu()
        mask = torch.tensor(flat.mask, dtype=torch.bool)
        assert (found[mask] - torch.tensor(flat.logprobs)[mask]).abs().mean() < tolerance
    sampler.close()
