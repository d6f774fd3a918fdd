"""Real vLLM, in this process and as a server; a CPU will do. If this breaks, vLLM no longer does what RL builds on.

`make test-vllm` sets up an environment that has it and runs this group.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import torch

from star import plugins
from star.algorithms.arpo import ARPO
from star.algorithms.grpo import GRPO
from star.errors import StarError
from star.policies.drawing import Draws
from star.rollout import Group, Rollout
from star.settings import Limits, Lora, Tiny
from star.train import model as models
from star.train import tiny
from star.train.grpo import StarGRPOTrainer
from star.train.tokens import Renderer
from star.types import Trajectory

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM: make test-vllm"),
]
Make = Callable[..., StarGRPOTrainer]
Open = Callable[..., Any]
Serve = Callable[[Path, int], AbstractContextManager[str]]
LIMITS = Limits(turns=4, turn_tokens=12, context=300)
TOLERANCE = 1e-3
LOCAL = {"name": "vllm", "kv_cache_gib": 0.05}


@pytest.fixture(scope="session")
def size() -> Tiny:
    """vLLM's attention on CPUs takes heads of 32 and more."""
    return Tiny(hidden=64, layers=2, heads=2, kv_heads=1, intermediate=96)


@pytest.fixture
def checkpoint(student: Any, renderer: Renderer, tmp_path: Path) -> Path:
    models.save(student, renderer.tokenizer, tmp_path / "student", "tiny", 0)
    return tmp_path / "student"


@pytest.fixture
def opened() -> Iterator[Open]:
    """Opens samplers of a checkpoint and closes them in the end."""
    with ExitStack() as stack:

        def opened(spec: dict[str, Any], checkpoint: Path, context: int = LIMITS.context) -> Any:
            return stack.enter_context(closing(plugins.build("sampler", spec).open(models.source(checkpoint, context))))

        yield opened


def play(policy: Any, world: Any, algorithm: Any = None) -> list[Trajectory]:
    rollout = Rollout(policy, world, LIMITS, world.score, algorithm)
    groups = [Group(query, 4, f"g/{query.id}") for query in world.queries("dev", 4, 0)]
    return [row for group in rollout.run(groups) for row in group]


@torch.no_grad()
def gap(model: Any, renderer: Renderer, rows: list[Trajectory], temperature: float = 1.0, top_p: float = 1.0) -> float:
    """Greatest distance of a recorded log-probability from one plain forward pass of transformers over the whole rollout."""
    worst = 0.0
    for row in rows:
        flat = renderer.flatten(row)
        ids = torch.tensor([flat.prompt_ids + flat.completion_ids])
        found = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float() / temperature, -1)
        ordered, order = found.sort(dim=-1, descending=True)
        dropped = torch.zeros_like(found, dtype=torch.bool).scatter(-1, order, ordered.exp().cumsum(-1) - ordered.exp() >= top_p)
        found = torch.log_softmax(found.masked_fill(dropped, float("-inf")), -1)
        start = len(flat.prompt_ids) - 1
        for index in (index for index, own in enumerate(flat.mask) if own):
            worst = max(worst, abs(float(found[start + index, flat.completion_ids[index]]) - flat.logprobs[index]))
    return worst


def gaps_of(trainer: StarGRPOTrainer) -> list[float]:
    key = "sampling/logprob_gap_max"
    return [row[key] for row in trainer.state.log_history if key in row]


@torch.no_grad()
def moved(trainer: StarGRPOTrainer, checkpoint: Path) -> float:
    """How far training moved the embedding, which is the head as well."""
    before, _ = models.load(checkpoint)
    after = trainer.accelerator.unwrap_model(trainer.model).get_input_embeddings().weight
    return float((after - before.get_input_embeddings().weight).abs().max())


def check_draws(sampler: Any, model: Any, renderer: Renderer, world: Any) -> None:
    for temperature, top_p in ((1.0, 1.0), (0.7, 1.0), (1.0, 0.8), (0.0, 1.0)):
        rows = play(sampler.policy(Draws(LIMITS, temperature, top_p, seed=1)), world)
        assert gap(model, renderer, rows, temperature or 1.0, top_p) < TOLERANCE, (temperature, top_p)
        again = play(sampler.policy(Draws(LIMITS, temperature, top_p, seed=1)), world)
        assert [row.turns[0].completion.token_ids for row in rows] == [row.turns[0].completion.token_ids for row in again]
        entropies = [value for row in rows for turn in row.turns for value in turn.completion.entropies]
        assert min(entropies) >= 0 and max(entropies) < 1
    assert len({str(row.turns) for row in play(sampler.policy(Draws(LIMITS, 1.0)), world)}) > 8, "every rollout draws for itself"


def test_logprobs_agree_in_this_process(opened: Open, checkpoint: Path, student: Any, renderer: Renderer, world: Any) -> None:
    sampler = opened(LOCAL, checkpoint)
    check_draws(sampler, student, renderer, world)
    rows = play(sampler.policy(Draws(LIMITS, 1.0, patience=0.0)), world, ARPO(initial=0.5, alpha=0.6, beta=0.0))
    assert any(row.parent for row in rows) and gap(student, renderer, rows) < TOLERANCE


@pytest.mark.parametrize("lora", [None, Lora(rank=4, alpha=8)], ids=["full", "lora"])
def test_training_in_this_process_samples_from_the_latest_weights(
    make: Make, checkpoint: Path, student: Any, renderer: Renderer, world: Any, lora: Any
) -> None:
    model = models.lora(student, lora) if lora else student
    trainer = make(GRPO(), model=model, rollouts=LOCAL, steps=3, lr=1e-2, lora=lora, checkpoint=str(checkpoint))
    trainer.train()
    assert len(gaps_of(trainer)) == 3 and max(gaps_of(trainer)) < TOLERANCE
    assert lora or moved(trainer, checkpoint) > 1e-2
    rows = play(trainer.policy(1.0, 0), world)
    trained = trainer.accelerator.unwrap_model(trainer.model).eval()
    assert gap(trained, renderer, rows) < TOLERANCE
    trainer.close()


def test_stale_weights_stop_the_run(make: Make, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = plugins.load("star.policies.vllm:LocalEngine")
    monkeypatch.setattr(module, "update", lambda *_: None)
    trainer = make(GRPO(), rollouts=LOCAL, steps=8, lr=2e-2, checkpoint=str(checkpoint))
    with closing(trainer), pytest.raises(StarError, match=r"over rl\.max_gap = 0\.1.*did not take over the latest step"):
        trainer.train()


def test_a_model_that_vllm_refuses(opened: Open, checkpoint: Path) -> None:
    with pytest.raises(StarError, match=r"vLLM cannot serve .*rollouts: hf"):
        opened(LOCAL, checkpoint, 100_000)


@pytest.fixture(scope="session")
def served(
    _student: Any, renderer: Renderer, size: Tiny, tmp_path_factory: pytest.TempPathFactory, vllm_server: Serve
) -> Iterator[str]:
    """A server that starts with untrained weights of the same shape."""
    directory = tmp_path_factory.mktemp("served")
    models.save(tiny.model(size, renderer.tokenizer, 1), renderer.tokenizer, directory / "model", "tiny", 0)
    with vllm_server(directory / "model", LIMITS.context) as url:
        yield url


def test_logprobs_agree_over_http(
    served: str, opened: Open, checkpoint: Path, student: Any, renderer: Renderer, world: Any
) -> None:
    sampler = opened({"name": "vllm_server", "url": served}, checkpoint)
    check_draws(sampler, student, renderer, world)


def test_training_against_a_server_samples_from_the_latest_weights(
    served: str, make: Make, checkpoint: Path, renderer: Renderer, world: Any
) -> None:
    spec = {"name": "vllm_server", "url": f"{served}/v1"}
    trainer = make(GRPO(), rollouts=spec, steps=3, lr=1e-2, checkpoint=str(checkpoint))
    trainer.train()
    assert len(gaps_of(trainer)) == 3 and max(gaps_of(trainer)) < TOLERANCE
    assert moved(trainer, checkpoint) > 1e-2
    rows = play(trainer.policy(1.0, 0), world)
    assert gap(trainer.accelerator.unwrap_model(trainer.model).eval(), renderer, rows) < TOLERANCE


def test_a_server_refuses_what_it_cannot_do(served: str, opened: Open, checkpoint: Path, world: Any) -> None:
    with pytest.raises(StarError, match="--max-model-len 5000"):
        opened({"name": "vllm_server", "url": served}, checkpoint, 5000)
    spec = {"name": "vllm_server", "url": served, "likeliest": 30, "tries": 1}
    with pytest.raises(StarError, match=r"refuses a turn \(HTTP 400 .*30"):
        play(opened(spec, checkpoint).policy(Draws(LIMITS, 1.0)), world)
