"""What reinforcement learning costs: updates through tries, rollouts with a cache, and ARPO's sampling beside GRPO's.

    python benchmarks/rl.py [--quick] [--json] [--repeats 3] [--checkpoint DIR]

Without --quick each workload of paper shape takes minutes a measurement: with --repeats 1 all of it ends in half an hour on
one core.

trie     One update (forward, backward, step) on the same micro-batch of whole groups, by TRL's own computation (all rows at once,
         and four rows at a time; the faster one counts), by the scores at asked positions (`compact`), and through a trie.
         `sharing` is row tokens per unique token; ids are random, forks fall uniformly on tool responses; a random Qwen2.
         Memory is the process's peak above what it held before the update, beside TRL's with all rows at once.
rollout  Tokens a second of whole rollouts by HFPolicy, and by transformers' `generate` on all rollouts in one batch, which reads
         the whole conversations in every turn. Turns end at random, after the mean of the workload.
arpo     Tool calls and tokens of a group of equal size, where forks fell, and how often by decile of entropy. Without
         --checkpoint the rollouts are the expert's, with entropies drawn at random: forks then say what the rule does, not
         what a model does.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import logging
import math
import random
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM
from trl import GRPOTrainer
from trl.trainer.utils import add_fused_lm_head

from star import plugins
from star.dataset import messages_of
from star.policies.drawing import Draws
from star.policies.hf import HFPolicy
from star.protocols import Algorithm, Conversation, Env, Policy, Step
from star.recipe import build_world, find, load
from star.rewards import Sum
from star.rollout import Group, Rollout
from star.settings import Limits, Rl, Tiny
from star.train import model as models
from star.train import tiny
from star.train.grpo import Setup, StarGRPOTrainer
from star.train.tokens import Renderer
from star.train.trie import pack
from star.train.trie_scoring import Tries
from star.types import Completion, Message, Query, Score, ToolCall, Trajectory

WORLD = build_world(load(find("demo")))


@dataclass(frozen=True)
class Shape:
    """Rows of one group: a prompt, then turns of `said` tokens with `seen` tokens of tool responses between them."""

    name: str
    rows: int
    roots: int
    prompt: int
    turns: int
    said: int
    seen: int
    layers: int = 4


QUICK = (
    Shape("arpo demo", 16, 8, 45, 7, 18, 22),
    Shape("arpo paper, shortened", 16, 8, 200, 10, 16, 26, layers=2),
    Shape("grpo paper, shortened", 8, 8, 500, 10, 10, 16, layers=2),
)
FULL = (
    Shape("arpo demo", 16, 8, 45, 7, 18, 22),
    Shape("arpo paper", 16, 8, 1300, 10, 250, 550, layers=2),
    Shape("grpo paper", 8, 8, 1300, 10, 250, 550, layers=2),
)
QUICK_TALKS = (Shape("demo", 24, 24, 45, 7, 18, 22), Shape("paper, shortened", 8, 8, 500, 8, 12, 200, layers=2))
FULL_TALKS = (Shape("demo", 64, 64, 45, 7, 18, 22), Shape("paper", 8, 8, 1300, 10, 250, 550, layers=2))
VOCABULARY = 2400


def grown(shape: Shape, rng: random.Random) -> list[tuple[list[int], list[int]]]:
    """(ids, mask of sampled tokens) of each row."""
    rows: list[tuple[list[int], list[int], list[int]]] = []
    prompt = _ids(shape.prompt, rng)
    for number in range(shape.rows):
        ids, mask, starts, turn = list(prompt), [0] * shape.prompt, list[int](), 0
        if number >= shape.roots:
            parent, turn = rng.choice(rows), rng.randrange(1, shape.turns)
            ids, mask, starts = parent[0][: parent[2][turn]], parent[1][: parent[2][turn]], parent[2][:turn]
        for left in reversed(range(shape.turns - turn)):
            starts.append(len(ids))
            said = _ids(shape.said, rng)
            seen = _ids(shape.seen, rng) if left else []
            ids, mask = [*ids, *said, *seen], [*mask, *[1] * len(said), *[0] * len(seen)]
        rows.append((ids, mask, starts))
    return [(ids, mask) for ids, mask, _ in rows]


def _ids(mean: int, rng: random.Random) -> list[int]:
    return [rng.randrange(3, VOCABULARY) for _ in range(max(2, round(rng.gauss(mean, mean / 4))))]


def micro_batch(shape: Shape) -> dict[str, Any]:
    """The rows as TRL hands them to the loss."""
    rng = random.Random(0)
    rows = grown(shape, rng)
    prompt = next(index for index, said in enumerate(rows[0][1]) if said)
    width = max(len(ids) for ids, _ in rows) - prompt
    said = [(ids[prompt:], mask[prompt:]) for ids, mask in rows]
    batch = {
        "prompt_ids": [ids[:prompt] for ids, _ in rows],
        "prompt_mask": [[1] * prompt for _ in rows],
        "completion_ids": [ids + [0] * (width - len(ids)) for ids, _ in said],
        "completion_mask": [[1] * len(ids) + [0] * (width - len(ids)) for ids, _ in said],
        "tool_mask": [mask + [0] * (width - len(mask)) for _, mask in said],
    }
    made: dict[str, Any] = {name: torch.tensor(value) for name, value in batch.items()}
    made["advantages"] = torch.tensor([rng.gauss(0, 1) for _ in rows])
    made["num_items_in_batch"] = made["tool_mask"].sum()
    return made


class Ways(StarGRPOTrainer):
    """The trainer with its ways of scoring side by side."""

    def take(self, way: str) -> None:
        self.way, self._tries = way, Tries(way == "trie")

    def _get_per_token_logps_and_entropies(self, *args: Any, **kwargs: Any) -> Any:
        scorer = GRPOTrainer if self.way == "trl" else StarGRPOTrainer
        return scorer._get_per_token_logps_and_entropies(self, *args, **kwargs)


def updates(trainer: Ways, net: Any, batch: dict[str, Any], way: str, rows: int) -> None:
    """Gradients of the whole batch, `rows` rows at a time."""
    trainer.take(way)
    for start in range(0, len(batch["prompt_ids"]), rows):
        part = {name: value[start : start + rows] if value.ndim else value for name, value in batch.items()}
        with trainer._step_context:
            trainer._compute_loss(net, part).backward()


def trie_figures(shape: Shape, trainer: Ways, repeats: int) -> dict[str, Any]:
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY, hidden_size=128, intermediate_size=320, num_hidden_layers=shape.layers, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, use_cache=False, max_position_embeddings=1 << 15,
    )  # fmt: skip
    net = Qwen2ForCausalLM(config).train()
    add_fused_lm_head(net, outputs=("log_probs", "entropy"))
    optimizer = torch.optim.AdamW(
        net.parameters(), lr=0.0
    )  # a full step that leaves the weights alone: gradients stay comparable
    batch = micro_batch(shape)
    ways = {
        "trl": ("trl", shape.rows),
        "trl_4_rows": ("trl", 4),
        "compact": ("compact", shape.rows),
        "trie": ("trie", shape.rows),
    }
    gradients, seconds, work, memory = {}, dict.fromkeys(ways, 1e9), dict.fromkeys(ways, 1e9), {}
    for turn in range(repeats):
        for name, (way, rows) in ways.items():
            net.zero_grad()
            base = held()
            wall, processor = time.perf_counter(), time.process_time()
            updates(trainer, net, batch, way, rows)
            if turn == 0:
                gradients[name] = torch.cat([p.grad.flatten() for p in net.parameters() if p.grad is not None])
            optimizer.step()
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            memory[name] = peak() - base
            seconds[name], work[name] = min(seconds[name], wall), min(work[name], processor)
            told(f"{shape.name}, {name}: {wall:.1f} s, peak {memory[name] / 2**20:.0f} MiB")
    ids = torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1)
    trie = pack(ids, torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1))
    error = (gradients["trie"] - gradients["trl"]).norm() / gradients["trl"].norm()
    return {
        "workload": shape.name, "rows": shape.rows, "tokens": trie.tokens, "sharing": trie.sharing,
        "speedup": min(seconds["trl"], seconds["trl_4_rows"]) / seconds["trie"],
        "speedup_processor_time": min(work["trl"], work["trl_4_rows"]) / work["trie"],
        "speedup_of_compact": min(seconds["trl"], seconds["trl_4_rows"]) / seconds["compact"],
        "gradient_relative_error": float(error), "peak_memory_ratio": _ratio(memory["trie"], memory["trl"]),
        "peak_memory_ratio_to_4_rows": _ratio(memory["trie"], memory["trl_4_rows"]), "seconds": seconds,
    }  # fmt: skip


def told(line: str) -> None:
    """What is done, for whoever waits."""
    print(line, file=sys.stderr, flush=True)


def _ratio(one: float, other: float) -> float | None:
    return one / other if other > 0 else None


def held() -> float:
    """Bytes that the process holds, after freed memory went back and the peak was forgotten; Linux only, else 0."""
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return 0.0
    return _status("VmRSS")


def peak() -> float:
    return _status("VmHWM") if Path("/proc/self/status").exists() else 0.0


def _status(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024.0 * next(float(line.split()[1]) for line in lines if line.startswith(name))


def teacher() -> Policy:
    expert: Policy = plugins.build("policy", {"name": "expert"}, world=WORLD)
    return expert


def played(count: int) -> list[Trajectory]:
    groups = [Group(query, 1, query.id) for query in WORLD.queries("train", count, 0)]
    return [rows[0] for rows in Rollout(teacher(), WORLD, Limits(), WORLD.score).run(groups)]


class Talkative(Qwen2ForCausalLM):
    """A model of random weights whose turns end as those of a trained one do: now and then, and not all at once."""

    end, lift = 0, 0.0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        out = super().forward(*args, **kwargs)
        out.logits[..., self.end] += self.lift
        return out


@dataclass
class Walk:
    """An episode of a number of turns, whose tools answer with so many tokens of a text."""

    prompt: tuple[Message, ...]
    replies: list[str]
    done: int = 0

    def step(self, text: str) -> Step:
        self.done += 1
        if self.done > len(self.replies):
            return Step(stop="answer", answer="")
        return Step(observation=self.replies[self.done - 1], call=ToolCall("look", {}))

    def fork(self) -> Env:
        return replace(self)


@dataclass
class Hall:
    """A world of walks of one shape."""

    shape: Shape
    renderer: Renderer
    words: list[str]

    def text(self, tokens: int, rng: random.Random) -> str:
        found = ""
        while len(self.renderer.completion_ids(found)) < tokens:
            found += rng.choice(self.words)
        return found

    def queries(self, count: int) -> list[Query]:
        return [Query(f"q{number}", "", {}, "easy", 3, "rl") for number in range(count)]

    def open(self, query: Query, key: str) -> Env:
        rng = random.Random(key)
        prompt = (Message("system", "walk"), Message("user", self.text(self.shape.prompt, rng)))
        return Walk(prompt, [self.text(self.shape.seen, rng) for _ in range(self.shape.turns - 1)])


@dataclass
class Naive:
    """Turns by transformers' `generate`, which reads the whole conversation in each."""

    net: Any
    renderer: Renderer
    limit: int
    name: str = "naive"

    def complete(self, conversations: Sequence[Conversation]) -> list[Completion | None]:
        prefixes = [self.renderer.prefix(talk) for talk in conversations]
        width, end = max(map(len, prefixes)), self.renderer.end
        ids = torch.tensor([[end] * (width - len(prefix)) + prefix for prefix in prefixes])
        mask = torch.tensor([[0] * (width - len(prefix)) + [1] * len(prefix) for prefix in prefixes])
        options = {"do_sample": True, "top_k": 0, "pad_token_id": end, "eos_token_id": end}
        with torch.no_grad():
            out = self.net.generate(input_ids=ids, attention_mask=mask, max_new_tokens=self.limit, use_cache=True, **options)
        said = [row[: row.index(end) + 1] if end in row else row for row in out[:, width:].tolist()]
        return [Completion(self.renderer.decode(row), tuple(row)) for row in said]


def rollout_figures(shape: Shape, renderer: Renderer, repeats: int) -> dict[str, Any]:
    """Tokens sampled a second over whole rollouts, tools and tokenisation included."""
    config = tiny.model(replace(Tiny(), layers=shape.layers), renderer.tokenizer, 0).config
    config.max_position_embeddings = 1 << 15
    torch.manual_seed(0)
    net = Talkative(config).eval()
    net.end, net.lift = renderer.end, math.log(config.vocab_size / shape.said)
    hall = Hall(shape, renderer, [str(turn.observation) for row in played(8) for turn in row.turns if turn.observation])
    limits = Limits(turns=shape.turns, turn_tokens=3 * shape.said, context=1 << 14)
    judged = Score("", "strict", {}, {}, True)
    best, tokens = {"hf_policy": 0.0, "naive": 0.0}, dict[str, int]()
    for turn in range(repeats):
        policies: dict[str, Any] = {
            "hf_policy": HFPolicy(net, renderer, Draws(limits, seed=turn)),
            "naive": Naive(net, renderer, limits.turn_tokens),
        }
        for name, policy in policies.items():
            groups = [Group(query, 1, query.id) for query in hall.queries(shape.rows)]
            started = time.perf_counter()
            rows = Rollout(policy, hall, limits, lambda *_: judged).run(groups)
            seconds = time.perf_counter() - started
            tokens[name] = sum(len(turn.completion.token_ids) for (row,) in rows for turn in row.turns)
            best[name] = max(best[name], tokens[name] / seconds)
            told(f"rollouts of {shape.name}, {name}: {tokens[name]} tokens in {seconds:.1f} s")
    return {
        "workload": shape.name, "conversations": shape.rows, "turns": shape.turns, "tokens": tokens,
        "tokens_per_second": best["hf_policy"], "naive_tokens_per_second": best["naive"],
        "speedup": best["hf_policy"] / best["naive"],
    }  # fmt: skip


@dataclass
class Uncertain:
    """The expert's words as token ids, each turn of each rollout with an entropy drawn at random."""

    renderer: Renderer
    expert: Policy
    name: str = "expert with random entropies"
    _said: dict[tuple[str, int], Completion] = field(default_factory=dict)

    def complete(self, conversations: Sequence[Conversation]) -> list[Completion | None]:
        return [self._turn(talk) for talk in conversations]

    def _turn(self, talk: Conversation) -> Completion:
        key = (talk.query.id, len(talk.turns))
        if key not in self._said:
            said = self.expert.complete([talk])[0]
            assert said is not None
            ids = tuple(self.renderer.completion_ids(said.text))
            self._said[key] = replace(said, token_ids=ids, logprobs=(0.0,) * len(ids))
        said = self._said[key]
        entropy = random.Random(f"{talk.id}/{len(talk.turns)}").random()
        return replace(said, entropies=(entropy,) * len(said.token_ids))


def arpo_figures(policy: Policy, size: int, count: int, limits: Limits) -> dict[str, Any]:
    found: dict[str, Any] = {"model": policy.name, "rollouts_per_group": size, "groups": count}
    for name in ("grpo", "arpo"):
        algorithm: Algorithm = plugins.build("algorithm", {"name": name})
        groups = [Group(query, size, f"{name}/{query.id}") for query in WORLD.queries("rl", count, 0)]
        rows = [row for group in Rollout(policy, WORLD, limits, WORLD.score, algorithm).run(groups) for row in group]
        own = [turn for row in rows for turn in row.turns[row.forked_at or 0 :]]
        found[name] = {
            "tool_calls_per_group": sum(turn.call is not None for turn in own) / count,
            "tokens_per_group": sum(len(turn.completion.token_ids) for turn in own) / count,
            "success": sum(row.score is not None and row.score.success for row in rows) / len(rows),
        }
        if name == "arpo":
            found |= _forks(rows, count)
    for what in ("tool_calls_per_group", "tokens_per_group"):
        found[f"{what}_ratio"] = _ratio(found["arpo"][what], found["grpo"][what])
    return found


def _forks(rows: list[Trajectory], count: int) -> dict[str, Any]:
    """Turn before which each fork fell, and the share of turns after a tool response that forked, by decile of their entropy."""
    depths = Counter(row.forked_at for row in rows if row.forked_at is not None)
    forked = {(row.parent, row.forked_at) for row in rows if row.parent is not None}
    turns = []
    for row in rows:
        for number in range((row.forked_at or 0) + (row.parent is not None), len(row.turns)):
            if number and row.turns[number - 1].call is not None:
                head = row.turns[number].completion.entropies[:20]
                turns.append((sum(head) / max(1, len(head)), (row.id, number) in forked))
    turns.sort()
    cuts = [turns[len(turns) * tenth // 10 : len(turns) * (tenth + 1) // 10] for tenth in range(10)]
    return {
        "forks_per_group": sum(depths.values()) / count,
        "fork_depths": {str(depth): depths[depth] for depth in sorted(depths)},
        "fork_rate_by_entropy_decile": [sum(fork for _, fork in cut) / len(cut) if cut else None for cut in cuts],
    }


def measured(options: argparse.Namespace, scratch: Path) -> dict[str, Any]:
    rows = [messages_of(row) for row in played(24)] * 3  # a phrase must recur to become a token
    renderer = Renderer(tiny.tokenizer(rows, WORLD.names(), VOCABULARY))
    net = tiny.model(Tiny(), renderer.tokenizer, 0)
    settings = Rl(group=8, queries=2, micro_batch=16, steps=1)
    queries = WORLD.queries("rl", 4, 0)
    algorithm = plugins.build("algorithm", {"name": "arpo"})
    trainer = Ways(net, Setup(settings, WORLD, WORLD.score, algorithm, Sum(), renderer, queries, 0), scratch)
    trainer.current_gradient_accumulation_steps = 1
    net.eval()
    talks = QUICK_TALKS if options.quick else FULL_TALKS
    rollouts = [rollout_figures(shape, renderer, 1 if options.quick else options.repeats) for shape in talks]
    limits = Limits(turns=12, turn_tokens=120, context=1024)
    policy: Policy = Uncertain(renderer, teacher())
    if options.checkpoint:
        trained, tokenizer = models.load(options.checkpoint)
        policy = HFPolicy(trained, Renderer(tokenizer), Draws(limits, name=options.checkpoint.name, patience=0.0))
    arpo = arpo_figures(policy, 16, 8 if options.quick else 32, limits)
    shapes = QUICK if options.quick else FULL
    return {
        "trie": [trie_figures(shape, trainer, 1 if options.quick else options.repeats) for shape in shapes],
        "rollout": rollouts,
        "arpo": arpo,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short rows, each measured once; about a minute on two cores")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--checkpoint", type=Path, help="a trained model for the part on ARPO")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as scratch:
        result = measured(options, Path(scratch))
    if options.json:
        print(json.dumps(result))
        return
    for row in result["trie"]:
        figures = " ".join(f"{name} {row[name]:.3g}" for name in row if isinstance(row[name], float))
        print(f"{row['workload']:24} {figures}")
    for row in result["rollout"]:
        print(f"rollout  {row}")
    print(f"arpo     {result['arpo']}")


if __name__ == "__main__":
    main()
