"""Training through a trie is training. If this breaks, sharing prefixes changes what is learned."""

from __future__ import annotations

import logging
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)  # fmt: skip

from star import plugins
from star.dataset import messages_of
from star.protocols import Algorithm
from star.recipe import load
from star.rewards import Sum
from star.rollout import Group, Rollout
from star.settings import Limits, Lora, Rl, Tiny
from star.train import model as models
from star.train import tiny, trie_scoring
from star.train.credit import shared_mean
from star.train.grpo import Setup, StarGRPOTrainer
from star.train.scoring import token_scores
from star.train.tokens import Renderer
from star.train.trie import Trie, pack, regrouped
from star.train.trie_attention import Merged, attending, concatenated
from star.train.trie_scoring import Tries, obstacle, trie_scores
from star.worlds.travel.world import TravelWorld

SHAPE = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": None, "eos_token_id": None,
}  # fmt: skip
KINDS = {
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
    "llama": (LlamaConfig, LlamaForCausalLM),
}


def model(kind: str = "qwen2") -> Any:
    torch.manual_seed(0)
    config, maker = KINDS[kind]
    return maker(config(**SHAPE, use_cache=False)).float()


def batch(rows: list[list[int]], rng: random.Random) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(ids, attention mask, asked); padding on both sides, tokens asked for at random."""
    width = max(map(len, rows)) + 3
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    for index, row in enumerate(rows):
        left = rng.randint(0, width - len(row))
        ids[index, left : left + len(row)] = torch.tensor(row)
        mask[index, left : left + len(row)] = 1
    drawn = torch.tensor([[rng.random() < 0.6 for _ in range(width)] for _ in rows])
    return ids, mask, drawn & (mask.cumsum(1) > 1) & (mask == 1)


def forest(rng: random.Random) -> list[list[int]]:
    """Rows that fork off each other anywhere, with duplicates, prefixes of others, and rows that share nothing."""
    rows = [[rng.randint(1, 95) for _ in range(rng.randint(2, 40))] for _ in range(rng.randint(1, 3))]
    for _ in range(rng.randint(0, 9)):
        parent = rng.choice(rows)
        kept = parent[: rng.randint(0, len(parent))]
        tail = [rng.randint(1, 4) for _ in range(rng.choice([0, 1, 2, 20]))]
        rows.append(kept + tail if len(kept + tail) > 1 else list(parent))
    rng.shuffle(rows)
    return rows


def ancestors(trie: Trie, token: int) -> set[int]:
    found = set()
    while token >= 0:
        found.add(token)
        token = int(trie.parents[token])
    return found


@pytest.mark.parametrize("seed", range(60))
def test_a_trie_holds_every_row_and_every_token_sees_its_own_ancestors(seed: int) -> None:
    rng = random.Random(seed)
    rows = forest(rng)
    ids, mask, _ = batch(rows, rng)
    trie = pack(ids, mask)
    assert len(trie.ids) == len({tuple(row[: end + 1]) for row in rows for end in range(len(row))})
    assert trie.tokens == sum(map(len, rows))
    for row, held, place in zip(rows, mask.bool(), trie.places, strict=True):
        assert trie.ids[place[held]].tolist() == row
        assert trie.positions[place[held]].tolist() == list(range(len(row)))
        assert trie.parents[place[held]].tolist() == [-1, *place[held][:-1].tolist()]
    for begin, end in trie.strands:
        for token in range(begin, end):
            seen = list(range(begin, token + 1))
            seen += [key for c in trie.crossings if c.begin <= token < c.end for key in range(c.first, c.last)]
            assert len(seen) == len(set(seen)) and set(seen) == ancestors(trie, token)


def gradients(net: Any) -> torch.Tensor:
    parts = [parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None]
    net.zero_grad()
    return torch.cat(parts)


def close(one: torch.Tensor, other: torch.Tensor) -> bool:
    return float((one - other).norm()) <= 1e-5 * float(one.norm()) + 1e-7


def both_ways(net: Any, rows: list[list[int]], rng: random.Random) -> None:
    ids, mask, asked = batch(rows, rng)
    weights = torch.tensor([[rng.gauss(0, 1) for _ in row] for row in ids.tolist()])
    results = []
    for score in (lambda: token_scores(net, ids, mask, asked, 0.7), lambda: trie_scores(net, pack(ids, mask), asked, 0.7)):
        with attending(net.get_base_model() if hasattr(net, "get_base_model") else net):
            logprobs, entropies = score()
            (logprobs.exp() * weights).sum().backward()
        results.append((logprobs.detach(), entropies.detach(), gradients(net)))
    for one, other in zip(*results, strict=True):
        assert close(one, other)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(8))
def test_scores_and_gradients_are_those_of_the_rows(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    both_ways(model(kind).train(), [row for row in forest(rng) if len(row) > 1], rng)


@pytest.mark.parametrize("reentrant", [False, True])
def test_with_gradient_checkpointing(reentrant: bool) -> None:
    net = model().train()
    net.activation_checkpointing_enable({"use_reentrant": reentrant})
    net.enable_input_require_grads()
    both_ways(net, forest(random.Random(5)), random.Random(6))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of peft, about a name in transformers
def test_with_low_rank_adapters() -> None:
    net = models.lora(model(), Lora(rank=4)).train()
    for name, parameter in net.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    both_ways(net, forest(random.Random(5)), random.Random(6))


def test_in_blocks_of_the_vocabulary_projection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trie_scoring, "BLOCK", 96 * 5)
    both_ways(model().train(), forest(random.Random(7)), random.Random(8))


def test_rows_of_which_nothing_is_asked_have_a_gradient_of_zero() -> None:
    net, rng = model().train(), random.Random(1)
    ids, mask, asked = batch(forest(rng), rng)
    logprobs, _ = trie_scores(net, pack(ids, mask), torch.zeros_like(asked))
    logprobs.sum().backward()
    assert float(gradients(net).abs().sum()) == 0.0


@pytest.mark.parametrize("seed", range(6))
def test_attention_by_parts_is_attention_over_concatenated_keys(seed: int) -> None:
    rng = random.Random(seed)
    ids, mask, _ = batch(forest(rng), rng)
    trie = pack(ids, mask)
    torch.manual_seed(seed)
    states = [torch.randn(1, heads, len(trie.ids), 8, dtype=torch.float64, requires_grad=True) for heads in (6, 2, 2)]
    weights = torch.randn(1, len(trie.ids), 6, 8, dtype=torch.float64)
    found = []
    for mixed in (Merged.apply(*states, trie, 0.3), concatenated(*states, trie, 0.3)):
        found.append([mixed, *torch.autograd.grad((mixed * weights).sum(), states)])
    for one, other in zip(*found, strict=True):
        assert torch.allclose(one, other, rtol=1e-9, atol=1e-11)


def test_a_model_is_left_as_it_was() -> None:
    net = model()
    ids, mask, asked = batch([[1, 2, 3], [1, 2, 4]], random.Random(0))
    trie_scores(net, pack(ids, mask), asked)
    assert net.config._attn_implementation == "sdpa"
    with attending(net):
        inside = net(input_ids=ids, attention_mask=mask).logits
    assert torch.equal(inside, net(input_ids=ids, attention_mask=mask).logits)


REFUSED = {
    "attend": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=4)),
    "experts": lambda: MixtralForCausalLM(MixtralConfig(**SHAPE, num_local_experts=2)),
    "rotary": lambda: GPT2LMHeadModel(GPT2Config(vocab_size=64, n_embd=16, n_layer=1, n_head=2)),
    "dropout": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE, attention_dropout=0.1)),
    "wrapped": lambda: torch.nn.Sequential(model()),
}


@pytest.mark.parametrize("word", REFUSED)
def test_a_model_that_cannot_is_refused_loudly_and_once(word: str, caplog: pytest.LogCaptureFixture) -> None:
    net, tries = REFUSED[word](), Tries(True)
    ids, mask, asked = batch([[1, 2, 3], [1, 2, 4]], random.Random(0))
    with caplog.at_level(logging.WARNING):
        assert tries.scores(net, ids, mask, asked, 1.0) is None
        assert tries.scores(net, ids, mask, asked, 1.0) is None
    ours = [record.message for record in caplog.records if record.name == trie_scoring.__name__]
    assert len(ours) == 1 and word in ours[0]


def test_unusual_attention_is_found_out() -> None:
    net = model()
    attention = type(net.model.layers[0].self_attn)

    class Odd(attention):  # type: ignore[misc,valid-type]
        def forward(self, *args: Any, **options: Any) -> Any:
            mixed, weights = super().forward(*args, **options)
            return mixed.cumsum(1), weights

    assert obstacle(net) is None
    for layer in net.model.layers:
        layer.self_attn.__class__ = Odd
    assert "not the usual one" in str(obstacle(net))


def test_groups_stay_together_in_the_order_of_the_shuffle() -> None:
    row = torch.tensor([5, 0, 3, 1, 4, 2])
    ids = torch.tensor([[7, 9], [7, 1], [7, 2], [7, 3], [7, 8], [7, 1]])
    whole = {"row": row, "prompt_ids": ids[:, :1], "completion_ids": ids[:, 1:], "num": torch.tensor(9), "none": None}
    halves = [{k: v[i : i + 3] if v is not None and v.ndim else v for k, v in whole.items()} for i in (0, 3)]
    found = regrouped(halves, 3)
    assert [b["row"].tolist() for b in found] == [[3, 4, 5], [0, 2, 1]]
    assert [b["completion_ids"].flatten().tolist() for b in found] == [[2, 8, 9], [1, 1, 3]]
    assert all(b["num"] == 9 and b["none"] is None for b in found)


def test_off_is_a_word() -> None:
    assert load(None, ["rl.trie=off"]).rl.trie == "off" and load(None).rl.trie == "auto"


# The whole trainer: TRL's loss on rollouts with forks, with and without tries.

WORLD = TravelWorld(days=(3,), size={"cities": 4})


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    queries = WORLD.queries("train", 4, 0)
    expert = plugins.build("policy", {"name": "expert"}, world=WORLD)
    played = Rollout(expert, WORLD, Limits(), WORLD.score).run([Group(query, 1, query.id) for query in queries])
    return Renderer(tiny.tokenizer([messages_of(rows[0]) for rows in played] * 20, WORLD.names(), 2000))


def trainer(renderer: Renderer, directory: Path, trie: Any, algorithm: Algorithm, **changes: Any) -> StarGRPOTrainer:
    queries = WORLD.queries("train", 4, 0)
    settings = Rl(
        group=4, queries=2, micro_batch=4, steps=2, lr=1e-3, trie=trie, eval_steps=0,
        limits=Limits(turns=2, turn_tokens=8, context=900), **changes,
    )  # fmt: skip
    net: Any = tiny.model(Tiny(hidden=16, layers=2, heads=4, kv_heads=2, intermediate=24), renderer.tokenizer, 0)
    if settings.lora:
        net = models.lora(net, settings.lora)
    if settings.kl:
        net.name_or_path = net.config._name_or_path = str(directory / "start")
        net.save_pretrained(directory / "start")
    setup = Setup(settings, WORLD, partial(WORLD.score, mode="strict"), algorithm, Sum(), renderer, queries, 0)
    return StarGRPOTrainer(net, setup, directory)


def inputs(made: StarGRPOTrainer, hard: bool) -> dict[str, Any]:
    """A micro-batch of two groups of forked rows, as TRL hands it to the loss."""
    rng = random.Random(3)
    prompts = [[rng.randint(3, 90) for _ in range(9)] for _ in range(2)]
    prompts[1] = prompts[0][:4] + prompts[1][:3]
    rows = []
    for prompt in prompts:
        trunk = [rng.randint(3, 90) for _ in range(30)]
        rows += [(prompt, trunk[:kept] + [rng.randint(3, 90) for _ in range(12)]) for kept in (0, 10, 10, 20)]
    rows[3] = rows[2]
    wide = max(len(prompt) for prompt, _ in rows)
    long = max(len(said) for _, said in rows)
    data = {
        "prompt_ids": [[0] * (wide - len(p)) + p for p, _ in rows],
        "prompt_mask": [[0] * (wide - len(p)) + [1] * len(p) for p, _ in rows],
        "completion_ids": [s + [0] * (long - len(s)) for _, s in rows],
        "completion_mask": [[1] * len(s) + [0] * (long - len(s)) for _, s in rows],
        "tool_mask": [[int(i < len(s) and i % 10 < 6) for i in range(long)] for _, s in rows],
    }
    batched: dict[str, Any] = {name: torch.tensor(value) for name, value in data.items()}
    batched["advantages"] = torch.tensor([rng.gauss(0, 1) for _ in rows])
    if hard:
        segments = torch.tensor([[hash(tuple(p + s[: 10 * (i // 10 + 1)])) % 9973 if i < len(s) else -1 for i in range(long)]
                                 for p, s in rows])  # fmt: skip
        batched["advantages"] = shared_mean(batched["advantages"], segments)
    batched["num_items_in_batch"] = batched["tool_mask"].sum()
    shift = torch.tensor([[rng.gauss(0, 0.3) for _ in range(long)] for _ in rows])
    batched["old_per_token_logps"] = -4 + shift
    batched["ref_per_token_logps"] = -4 + shift.roll(1, 0)
    return batched


CASES = {
    "soft": ({}, False),
    "hard": ({}, True),
    "kl": ({"kl": 0.1}, False),
    "kl hard": ({"kl": 0.1}, True),
    "lora": ({"lora": Lora(rank=4)}, False),
    "lora kl checkpointing": ({"lora": Lora(rank=4), "kl": 0.1, "gradient_checkpointing": True}, True),
    "checkpointing": ({"gradient_checkpointing": True}, False),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore")
def test_loss_and_gradients_are_those_of_trl(name: str, renderer: Renderer, tmp_path: Path) -> None:
    changes, hard = CASES[name]
    algorithm = plugins.build("algorithm", {"name": "arpo", "advantage": "hard" if hard else "soft"})
    results = []
    for trie in ("off", "auto"):
        made = trainer(renderer, tmp_path / trie, trie, algorithm, **changes)
        made.current_gradient_accumulation_steps = 1
        made.model.train()
        if trie == "off":
            made._get_per_token_logps_and_entropies = partial(  # type: ignore[method-assign]
                super(StarGRPOTrainer, made)._get_per_token_logps_and_entropies
            )
        torch.manual_seed(1)
        for key, parameter in made.model.named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(parameter, std=0.1)
        with made._step_context:
            loss = made._compute_loss(made.model, inputs(made, hard))
            assert (made.model.config._attn_implementation == "star_trie") == (trie == "auto")
            loss.backward()
        results.append((loss.detach(), gradients(made.model)))
    (one, two), (other, another) = results
    assert close(one, other) and close(two, another)


@pytest.mark.parametrize("changes", [{}, {"kl": 0.1}, {"updates": 2}, {"gradient_checkpointing": True}], ids=str)
@pytest.mark.filterwarnings("ignore")
def test_training_runs_through_tries(changes: dict[str, Any], renderer: Renderer, tmp_path: Path) -> None:
    """The same weights after training from whole rollouts; with several updates a batch, groups are dealt out differently."""
    weights = []
    for trie in ("off", "auto"):
        models.seeded(0)
        made = trainer(renderer, tmp_path / trie, trie, plugins.build("algorithm", {"name": "grpo"}), **changes)
        calls = []
        original = made._tries.scores
        made._tries.scores = lambda *a, _o=original, _c=calls, **k: _c.append(_o(*a, **k)) or _c[-1]  # type: ignore[method-assign]
        made.train()
        assert any(found is not None for found in calls) == (trie == "auto")
        assert made.model.config._attn_implementation == "sdpa"
        weights.append(torch.cat([parameter.detach().flatten() for parameter in made.model.parameters()]))
    assert "updates" in changes or float((weights[0] - weights[1]).norm() / weights[0].norm()) < 1e-4
