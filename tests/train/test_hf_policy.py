"""The trained model as a policy. If this breaks, RL corrects for probabilities that were never sampled from, or results
change with the company a rollout keeps in its batch."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from star.algorithms.arpo import ARPO
from star.policies.drawing import Draws
from star.policies.hf import HFPolicy
from star.protocols import Conversation
from star.rollout import Group, Rollout
from star.settings import Limits
from star.train.tokens import Renderer
from star.types import Trajectory

LIMITS = Limits(turns=5, turn_tokens=14, context=300)
TOLERANCE = 1e-4


def play(policy: HFPolicy, world: Any, batch: int = 64, count: int = 6, size: int = 2, algorithm: Any = None) -> list[Trajectory]:
    rollout = Rollout(policy, world, policy.draws.limits, world.score, algorithm, batch)
    groups = [Group(query, size, f"g/{query.id}") for query in world.queries("dev", count, 0)]
    return [row for group in rollout.run(groups) for row in group]


@torch.no_grad()
def distributions(model: Any, renderer: Renderer, row: Trajectory) -> list[tuple[int, float, torch.Tensor]]:
    """(id, log-probability, logits) of every id a rollout sampled, from one plain forward pass over the whole of it."""
    flat = renderer.flatten(row)
    ids = torch.tensor([flat.prompt_ids + flat.completion_ids])
    logits = model(input_ids=ids, use_cache=False).logits[0].float()
    start = len(flat.prompt_ids)
    sampled = [index for index, own in enumerate(flat.mask) if own]
    return [(flat.completion_ids[index], flat.logprobs[index], logits[start + index - 1]) for index in sampled]


def check(model: Any, renderer: Renderer, rows: list[Trajectory], temperature: float = 1.0) -> None:
    for row in rows:
        for token, logprob, logits in distributions(model, renderer, row):
            assert logprob == pytest.approx(torch.log_softmax(logits / temperature, -1)[token].item(), abs=TOLERANCE)


@pytest.mark.parametrize("batch", [1, 5, 64])
@pytest.mark.parametrize("patience", [0.0, 0.25, 0.9])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_a_full_forward(
    student: Any, renderer: Renderer, world: Any, batch: int, patience: float, temperature: float
) -> None:
    rows = play(HFPolicy(student, renderer, Draws(LIMITS, temperature, patience=patience)), world, batch)
    assert max(len(row.turns) for row in rows) > 2, "the cache was carried over several turns"
    assert {row.stop for row in rows} >= {"answer"}
    check(student, renderer, rows, temperature)


@pytest.mark.parametrize("patience", [0.0, 0.5])
def test_logprobs_of_forks_equal_a_full_forward(student: Any, renderer: Renderer, world: Any, patience: float) -> None:
    policy = HFPolicy(student, renderer, Draws(LIMITS, patience=patience))
    rows = play(policy, world, size=6, algorithm=ARPO(initial=0.3, alpha=0.6, beta=0.0))
    forks = [row for row in rows if row.parent is not None]
    assert len(forks) > 6 and {row.forked_at for row in forks} > {1}
    check(student, renderer, rows)
    by_id = {row.id: row for row in rows}
    for row in forks:
        assert row.turns[: row.forked_at] == by_id[row.parent or ""].turns[: row.forked_at]
    differing = [row for row in forks if row.turns[row.forked_at or 0] != by_id[row.parent or ""].turns[row.forked_at or 0]]
    assert differing, "a fork draws anew"


def texts(rows: list[Trajectory]) -> dict[str, list[tuple[int, ...]]]:
    return {row.id: [turn.completion.token_ids for turn in row.turns] for row in rows}


def test_the_same_key_draws_the_same_whatever_the_batch(student: Any, renderer: Renderer, world: Any) -> None:
    expected = texts(play(HFPolicy(student, renderer, Draws(LIMITS)), world, batch=64))
    assert len({str(ids) for ids in expected.values()}) > 3
    for batch, patience in ((1, 0.25), (4, 0.0), (6, 0.9), (64, 0.5)):
        assert texts(play(HFPolicy(student, renderer, Draws(LIMITS, patience=patience)), world, batch)) == expected
    assert texts(play(HFPolicy(student, renderer, Draws(LIMITS, seed=1)), world)) != expected
    fewer = texts(play(HFPolicy(student, renderer, Draws(LIMITS)), world, count=3))
    assert fewer == {key: expected[key] for key in fewer}


def test_forks_are_the_same_whatever_the_batch(student: Any, renderer: Renderer, world: Any) -> None:
    played = [
        texts(play(HFPolicy(student, renderer, Draws(LIMITS, patience=0.0)), world, batch, size=6, algorithm=ARPO(initial=0.5)))
        for batch in (6, 13, 64)
    ]
    assert played[0] == played[1] == played[2]


def test_greedy_is_the_argmax_of_a_plain_forward(student: Any, renderer: Renderer, world: Any) -> None:
    rows = play(HFPolicy(student, renderer, Draws(LIMITS, temperature=0.0)), world)
    for row in rows:
        for token, _, logits in distributions(student, renderer, row):
            assert token == int(logits.argmax())
    check(student, renderer, rows)
    assert rows[0].turns == rows[1].turns, "two rollouts of a query are one"


def test_entropies_are_in_units_of_the_uniform_distribution(student: Any, renderer: Renderer, world: Any) -> None:
    row = play(HFPolicy(student, renderer, Draws(LIMITS)), world, count=1, size=1)[0]
    entropies = [value for turn in row.turns for value in turn.completion.entropies]
    for value, (_, _, logits) in zip(entropies, distributions(student, renderer, row), strict=True):
        expected = torch.distributions.Categorical(logits=logits).entropy().item() / math.log(len(logits))
        assert value == pytest.approx(expected, abs=1e-4) and 0 <= value <= 1


@pytest.mark.parametrize("top_p", [1e-6, 0.5, 0.9])
def test_top_p_keeps_to_the_nucleus(student: Any, renderer: Renderer, world: Any, top_p: float) -> None:
    for row in play(HFPolicy(student, renderer, Draws(LIMITS, 1.0, top_p)), world, count=3):
        for token, logprob, logits in distributions(student, renderer, row):
            probabilities, order = logits.softmax(-1).sort(descending=True)
            size = 1 + int((probabilities.cumsum(0) < top_p - 1e-6).sum())
            nucleus = order[:size].tolist()
            assert token in nucleus
            share = logits.softmax(-1)[token] / probabilities[:size].sum()
            assert logprob == pytest.approx(math.log(share), abs=1e-3)


def fresh(renderer: Renderer, **settings: Any) -> Any:
    """A model that has learned nothing, so that it hardly ever ends a turn."""
    torch.manual_seed(3)
    config = Qwen2Config(
        vocab_size=len(renderer.tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, bos_token_id=None, eos_token_id=renderer.end, pad_token_id=0, **settings,
    )  # fmt: skip
    return Qwen2ForCausalLM(config).eval()


def test_limits_end_a_turn(renderer: Renderer, world: Any) -> None:
    model = fresh(renderer)
    limits = Limits(turns=3, turn_tokens=5, context=300)
    rows = play(HFPolicy(model, renderer, Draws(limits)), world)
    assert all(len(t.completion.token_ids) <= 5 for row in rows for t in row.turns)
    cut = [row for row in rows if row.stop == "tokens"]
    assert cut and all(row.turns[-1].completion.finish == "length" for row in cut)
    check(model, renderer, rows)

    query = world.queries("dev", 1, 0)[0]
    prompt = world.open(query, "k").prompt
    room = len(renderer.prompt_ids(prompt))
    for context, said, finish in ((room + 3, 3, "length"), (room, 0, "context"), (room - 5, 0, "context")):
        policy = HFPolicy(model, renderer, Draws(Limits(turns=3, turn_tokens=50, context=context), 1.0, patience=0.0))
        completion = policy.complete([Conversation("k", query, prompt, ())])[0]
        assert completion is not None
        assert (len(completion.token_ids), completion.finish) == (said, finish)


def test_the_context_is_never_exceeded(student: Any, renderer: Renderer, world: Any) -> None:
    prompt = max(len(renderer.prompt_ids(world.open(q, "k").prompt)) for q in world.queries("dev", 6, 0))
    for context in range(prompt, prompt + 40, 7):
        for row in play(HFPolicy(student, renderer, Draws(Limits(turns=5, turn_tokens=9, context=context))), world, size=1):
            flat = renderer.flatten(row)
            assert len(flat.prompt_ids + flat.completion_ids) <= max(context, prompt) + 1


def test_a_sliding_window_model_reads_everything_again(renderer: Renderer, world: Any) -> None:
    model = fresh(renderer, use_sliding_window=True, sliding_window=8, max_window_layers=0)
    rows = play(HFPolicy(model, renderer, Draws(Limits(turns=3, turn_tokens=200, context=400))), world, count=2)
    check(model, renderer, rows)


def test_sampling_leaves_the_mode_of_the_model(student: Any, renderer: Renderer, world: Any) -> None:
    for training in (True, False):
        student.train(training)
        play(HFPolicy(student, renderer, Draws(LIMITS)), world, count=1)
        assert student.training is training
        assert all(parameter.grad is None for parameter in student.parameters())
