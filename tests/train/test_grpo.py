"""RL on trl's trainer. If this breaks, the policy is credited for what a tool wrote, for rollouts that were cut off, or
with the reward of another rollout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from star.algorithms.arpo import ARPO
from star.algorithms.dapo import DAPO
from star.algorithms.grpo import GRPO
from star.rewards import COMPONENTS, Curriculum, Macro, Success, Sum, components
from star.settings import Limits, Lora
from star.train import grpo
from star.train import model as models
from star.train.grpo import StarGRPOTrainer
from star.types import Trajectory

Make = Callable[..., StarGRPOTrainer]
Groups = list[list[Trajectory]]


def generate(trainer: StarGRPOTrainer) -> tuple[dict[str, Any], Groups, list[str]]:
    """One batch of rollouts as TRL sees it, the groups that were played, and the queries that were asked for."""
    played: list[Groups] = []
    play = trainer.play

    def recording() -> Groups:
        played.append(play())
        return played[-1]

    trainer.play = recording  # type: ignore[method-assign]
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    inputs = next(iter(trainer.get_train_dataloader()))
    output = trainer._generate_and_score_completions(inputs)
    trainer.play = play  # type: ignore[method-assign]
    return output, played[0], [trainer.setup.queries[row["group"]].id for row in inputs]


def rows_of(groups: Groups) -> list[Trajectory]:
    return [row for group in groups for row in group]


def loss_mask(output: dict[str, Any]) -> torch.Tensor:
    return (output["completion_mask"] * output["tool_mask"]).bool()


def microbatch(output: dict[str, Any], start: int, stop: int) -> dict[str, Any]:
    return grpo.trimmed({k: v[start:stop] if isinstance(v, torch.Tensor) and v.ndim else v for k, v in output.items()})


ALGORITHMS = {
    "grpo": GRPO(),
    "dapo": DAPO(),
    "arpo": ARPO(alpha=0.6, beta=0.0),
    "hard": ARPO(alpha=0.6, beta=0.0, advantage="hard"),
}


@pytest.fixture(params=list(ALGORITHMS))
def algorithm(request: pytest.FixtureRequest) -> Any:
    return ALGORITHMS[request.param]


@pytest.fixture(params=["compact", "trl"])
def _scoring(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to score tokens."""
    if request.param == "trl":
        monkeypatch.setattr(grpo, "compact", lambda model: False)


@pytest.mark.usefixtures("_scoring")
@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_rollout_logprobs_equal_the_trainers(make: Make, algorithm: Any, temperature: float) -> None:
    trainer = make(algorithm, temperature=temperature)
    output, _, _ = generate(trainer)
    ids = torch.cat([output["prompt_ids"], output["completion_ids"]], 1)
    attention = torch.cat([output["prompt_mask"], output["completion_mask"]], 1)
    width, mask = output["completion_ids"].shape[1], loss_mask(output)
    trainer._looked_at = mask.int()
    logprobs, _, _ = trainer._get_per_token_logps_and_entropies(trainer.model, ids, attention, width)
    assert mask.sum() > 30
    assert (logprobs - output["sampling_per_token_logps"])[mask].abs().max() < 1e-4


@pytest.mark.usefixtures("_scoring")
def test_no_gradient_flows_from_what_the_world_wrote(make: Make, algorithm: Any) -> None:
    """The hidden state before an id decides how likely it is: its gradient is 0 before ids that were not sampled.

    Row by row; that tries give the same gradients is a test of its own.
    """
    trainer = make(algorithm, limits=Limits(turns=3, turn_tokens=12, context=300), trie="off")
    output, groups, _ = generate(trainer)
    states: list[torch.Tensor] = []

    def keep(_module: Any, _inputs: Any, result: Any) -> None:
        result.last_hidden_state.retain_grad()
        states.append(result.last_hidden_state)

    trainer.model.base_model.register_forward_hook(keep)
    rows = rows_of(groups)
    seen = 0
    for start in (0, 4):
        part = microbatch(output, start, start + 4)
        states.clear()
        trainer._compute_loss(trainer.model, part).backward()
        gradient = states[-1].grad
        assert gradient is not None
        felt = gradient.abs().sum(-1)[:, part["prompt_ids"].shape[1] - 1 : -1]
        mask = (part["completion_mask"] * part["tool_mask"]).bool()
        assert felt[~mask].max() == 0.0
        advantages = part["advantages"] if part["advantages"].ndim == 2 else part["advantages"][:, None].expand_as(mask)
        assert (felt[mask & (advantages.abs() > 1e-6)] > 0).all()
        for index, row in enumerate(rows[start : start + 4]):
            flat = trainer.setup.renderer.flatten(row)
            sampled = torch.tensor(flat.mask).bool()
            assert torch.equal(mask[index, : len(sampled)], sampled & (row.stop not in trainer.setup.settings.mask))
            seen += int((~sampled).sum())
    assert seen > 20, "tools did write something"


def test_a_change_of_tool_tokens_logits_leaves_the_loss(make: Make) -> None:
    """The same from the other side: the ids that tools wrote may be anything where they are predicted."""
    trainer = make(GRPO())
    output, _, _ = generate(trainer)
    mask = loss_mask(output)
    logprobs = torch.zeros(mask.shape, requires_grad=True)
    trainer._get_per_token_logps_and_entropies = lambda *a, **k: (logprobs, logprobs.detach(), None)  # type: ignore[method-assign]
    trainer._compute_loss(trainer.model, output).backward()
    assert logprobs.grad is not None
    assert not logprobs.grad[~mask].any() and logprobs.grad[mask].any()


def test_rollouts_that_were_cut_leave_the_loss_but_stay_in_the_baseline(make: Make) -> None:
    trainer = make(GRPO(), limits=Limits(turns=3, turn_tokens=5, context=300))
    output, groups, _ = generate(trainer)
    rows = rows_of(groups)
    cut = [row.stop in trainer.setup.settings.mask for row in rows]
    assert any(cut) and not all(cut)
    for row, own, gone in zip(rows, loss_mask(output), cut, strict=True):
        assert bool(own.any()) is not gone
        assert not gone or trainer.value(row) == 0.0
    rewards = torch.tensor([trainer.value(row) for row in rows]).view(-1, 4)
    expected = (rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)
    assert torch.allclose(output["advantages"], expected.flatten(), atol=1e-4), "the mean is over all four rollouts"


def test_failures_weigh_as_much_as_is_asked(make: Make) -> None:
    whole, _, _ = generate(make(GRPO()))
    less, _, _ = generate(make(GRPO(negative=0.25)))
    full, part = whole["advantages"], less["advantages"]
    assert (full < 0).any() and (full > 0).any()
    assert torch.equal(part, torch.where(full < 0, full * 0.25, full))
    with pytest.raises(ValueError, match="negative"):
        GRPO(negative=-0.1)


def test_a_limit_that_is_not_masked_is_trained(make: Make) -> None:
    """A model that runs in circles must be able to learn that this earns nothing."""
    trainer = make(GRPO(), limits=Limits(turns=3, turn_tokens=12, context=300), mask=["tokens"])
    output, groups, _ = generate(trainer)
    stops = {row.stop for row in rows_of(groups)}
    assert "turns" in stops
    for row, own in zip(rows_of(groups), loss_mask(output), strict=True):
        assert bool(own.any()) is (row.stop != "tokens")


def test_a_batch_in_which_everything_was_cut_changes_nothing(make: Make) -> None:
    trainer = make(GRPO(), limits=Limits(turns=2, turn_tokens=1, context=300))
    output, groups, _ = generate(trainer)
    assert {row.stop for row in rows_of(groups)} <= set(trainer.setup.settings.mask)
    loss = trainer._compute_loss(trainer.model, microbatch(output, 0, 4))
    loss.backward()
    assert loss.item() == 0.0
    assert all(p.grad is None or not p.grad.any() for p in trainer.model.parameters())


def test_groups_stay_whole_and_in_order(make: Make, algorithm: Any) -> None:
    trainer = make(algorithm)
    output, groups, asked = generate(trainer)
    assert [len(group) for group in groups] == [4, 4]
    for group in groups:
        assert len({row.query_id for row in group}) == len({row.prompt for row in group}) == 1
    if algorithm.name != "dapo":
        assert [row.query_id for row in rows_of(groups)] == asked
    renderer = trainer.setup.renderer
    for index, row in enumerate(rows_of(groups)):
        flat = renderer.flatten(row)
        ids, held = output["completion_ids"][index], output["completion_mask"][index].bool()
        assert ids[held].tolist() == flat.completion_ids
        assert output["prompt_ids"][index][output["prompt_mask"][index].bool()].tolist() == flat.prompt_ids


def test_groups_must_fit_a_process(make: Make) -> None:
    trainer = make(GRPO())
    trainer.num_generations = 3
    with pytest.raises(ValueError, match="do not hold whole groups"):
        trainer._check_groups()


@pytest.mark.parametrize("reward", [Sum(), Macro(), Success(), Curriculum()])
def test_rewards_follow_the_step(make: Make, reward: Any) -> None:
    trainer = make(GRPO(scale="none"), reward=reward)
    trainer.state.max_steps = 10
    for step in (0, 4, 8):
        trainer.state.global_step = step
        output, groups, _ = generate(trainer)
        weights = reward.weights(step / 10)
        assert trainer.reward_weights.tolist() == [*(weights[name] for name in COMPONENTS), 1.0]
        earned = torch.tensor([sum(weights[n] * v for n, v in components(row.score).items()) for row in rows_of(groups)])
        expected = earned.view(-1, 4) - earned.view(-1, 4).mean(1, keepdim=True)
        assert torch.allclose(output["advantages"], expected.flatten(), atol=1e-4)


def test_dapo_replaces_groups_without_signal(make: Make, world: Any) -> None:
    dull = type(world)(dull={query.id for query in world.queries("rl", 6, 0)[:4]})
    kept = 0
    for refill in (0, 1, 3):
        trainer = make(DAPO(refill=refill), world=dull, count=6)
        output, groups, asked = generate(trainer)
        asked = list(dict.fromkeys(asked))
        names = [group[0].query_id for group in groups]
        assert len(groups) == 2 and len(set(names)) == 2
        for name, wanted in zip(names, asked, strict=True):
            assert name == wanted or (refill and wanted in dull.dull), "a group with signal stays where it was"
            kept += name == wanted
        assert not refill or not set(names) & dull.dull or names != asked
        if refill == 3:
            assert not set(names) & dull.dull
            assert output["advantages"].abs().max() > 0
    assert kept


def test_dapo_gives_up_where_all_is_dull(make: Make, world: Any) -> None:
    trainer = make(DAPO(refill=2), world=type(world)(dull={query.id for query in world.queries("rl", 8, 0)}))
    output, groups, _ = generate(trainer)
    assert [len(group) for group in groups] == [4, 4] and not output["advantages"].any()


def test_what_dapo_replaced_is_counted(make: Make, world: Any) -> None:
    trainer = make(DAPO(refill=2), world=type(world)(dull={query.id for query in world.queries("rl", 8, 0)}))
    source: Any = trainer.source
    logged: dict[str, float] = {}
    played: list[Trajectory] = []
    rollout = source.rollout

    def listening() -> Any:
        found = rollout()
        found.ended = played.extend
        return found

    source.rollout, source.log = listening, logged.__setitem__
    kept = source.groups([0, 1], 0)
    calls = [sum(turn.call is not None for row in rows for turn in row.turns) for rows in (played, rows_of(kept))]
    assert logged == {"rollout/refilled_groups": 4, "rollout/refilled_tool_calls": calls[0] - calls[1]}
    assert calls[0] > calls[1] > 0


def test_arpo_hard_advantages_are_per_token(make: Make) -> None:
    trainer = make(ALGORITHMS["hard"])
    output, groups, _ = generate(trainer)
    advantages = output["advantages"]
    assert advantages.shape == output["completion_ids"].shape
    rewards = torch.tensor([trainer.value(row) for row in rows_of(groups)]).view(-1, 4)
    soft = ((rewards - rewards.mean(1, keepdim=True)) / (rewards.std(1, keepdim=True) + 1e-4)).flatten()
    rows, forks = rows_of(groups), 0
    for index, row in enumerate(rows):
        flat = trainer.setup.renderer.flatten(row)
        own = [turn for turn in range(len(row.turns)) if not any(o.parent == row.id or row.parent for o in rows)]
        held = torch.tensor([turn in own for turn in flat.segments])
        assert torch.allclose(advantages[index, : len(held)][held], soft[index], atol=1e-5)
        if row.parent is None:
            continue
        forks += 1
        parent = next(position for position, other in enumerate(rows) if other.id == row.parent)
        shared = sum(turn < (row.forked_at or 0) for turn in flat.segments)
        assert torch.equal(advantages[index, :shared], advantages[parent, :shared])
        last = len(flat.segments) - 1
        if not any(other.parent == row.id for other in rows):
            assert advantages[index, last] == pytest.approx(soft[index].item(), abs=1e-5)
    assert forks >= 2


@pytest.mark.parametrize("extra", [{}, {"kl": 0.1}, {"lora": Lora(rank=2)}, {"updates": 2}], ids=str)
def test_training_moves_the_model(make: Make, student: Any, renderer: Any, tmp_path: Path, extra: dict[str, Any]) -> None:
    models.save(student, renderer.tokenizer, tmp_path / "model", "", 0)
    model, _ = models.load(tmp_path / "model")
    if "lora" in extra:
        model = models.lora(model, extra["lora"])
    before = [parameter.detach().clone() for parameter in model.parameters()]
    trainer = make(ALGORITHMS["hard"], model=model, **{"steps": 2, **extra})
    trainer.train()
    assert trainer.state.global_step == 2
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    trained = [parameter.requires_grad for parameter in model.parameters()]
    assert any(moved) and not any(m and not t for m, t in zip(moved, trained, strict=True))
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())
    logged = [row for row in trainer.state.log_history if "reward" in row]
    assert {"rollout/turns", "rollout/forks", "rollout/masked", "rewards/success/mean"} <= logged[0].keys()
    assert ("kl" in logged[0]) == ("kl" in extra)
    assert {row["label"] for row in trainer.kept} == {"best", "worst"}


def test_length_is_punished_beside_the_reward(make: Make) -> None:
    trainer = make(DAPO(refill=0, soft_limit=20, soft_cache=15))
    output, groups, _ = generate(trainer)
    rows = rows_of(groups)
    tokens = [sum(len(turn.completion.token_ids) for turn in row.turns) for row in rows]
    taken = [max(-1.0, min(0.0, (5 - count) / 15)) for count in tokens]
    assert len(set(taken)) > 2, "rollouts of different lengths"
    earned = [sum(components(row.score if row.stop == "answer" else None).values()) for row in rows]
    assert [trainer.value(row) for row in rows] == pytest.approx([e + t for e, t in zip(earned, taken, strict=True)])
    values = torch.tensor([trainer.value(row) for row in rows]).view(-1, 4)
    expected = (values - values.mean(1, keepdim=True)) / (values.std(1, keepdim=True) + 1e-4)
    assert torch.allclose(output["advantages"], expected.flatten(), atol=1e-4)
    assert trainer._metrics["train"]["rewards/overlong/mean"][-1] == pytest.approx(sum(taken) / len(taken), abs=1e-5)
