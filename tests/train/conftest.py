"""A world that takes a model seconds to enter, and a model that has learned a little of it: unsure enough to explore."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from star.protocols import Algorithm, Env, Expert, Step
from star.rewards import Sum
from star.settings import Limits, Rl, Sft, Tiny
from star.train import sft, tiny
from star.train.grpo import Setup, StarGRPOTrainer
from star.train.tokens import Renderer
from star.types import Message, Query, Score, ToolCall, Turn

COLOURS = ("red", "green", "blue", "white")
FRUITS = ("apple", "pear", "plum", "fig")
"""Words that only the tool says, and words that the model says as well."""


@dataclass
class Orchard:
    """One walk: whatever is said picks a fruit, until "home"."""

    query: Query
    picked: int = 0

    @property
    def prompt(self) -> tuple[Message, ...]:
        return Message("system", "You walk through an orchard."), Message("user", self.query.text)

    def step(self, text: str) -> Step:
        if "home" in text:
            return Step(stop="answer", answer=text)
        self.picked += 1
        fruit = FRUITS[(self.query.facts["start"] + self.picked) % 4]
        return Step(observation=f"You see a {COLOURS[self.picked % 4]} {fruit}.", call=ToolCall("pick", {"text": text}))

    def fork(self) -> Env:
        return replace(self)


@dataclass
class OrchardWorld:
    """Verdicts that depend on every character of an answer, so that rollouts of a group earn different rewards."""

    dull: set[str] = field(default_factory=set)
    """Ids of queries whose every answer earns nothing."""

    def queries(self, split: str, count: int, seed: int) -> list[Query]:
        rows = [{"start": index % 4, "number": index} for index in range(count)]
        return [Query(f"{split}-{i}", f"Walk number {i}: {FRUITS[i % 4]}.", row, "easy", 3, split) for i, row in enumerate(rows)]

    def open(self, query: Query, key: str) -> Env:
        return Orchard(query)

    def score(self, query: Query, answer: str | None) -> Score:
        draw = random.Random(f"{query.id}/{answer}")
        held = {f"c{index}": draw.random() < 0.8 for index in range(8)}
        hard = {f"h{index}": draw.random() < 0.8 for index in range(5)}
        delivered = answer is not None and query.id not in self.dull
        return Score(query.id, "strict", held, hard, all(held.values()), delivered=delivered)

    def expert(self, query: Query) -> Expert:
        def say(turns: Sequence[Turn]) -> str:
            seen = str(turns[-1].observation).split()[-1].rstrip(".") if turns else FRUITS[query.facts["start"]]
            return f"pick {seen}" if len(turns) < 2 else f"home {seen}"

        return say


def conversation(world: OrchardWorld, query: Query) -> list[Message]:
    env, turns = world.open(query, ""), list[Turn]()
    messages, said = list(env.prompt), world.expert(query)
    while True:
        text = said(turns)
        step = env.step(text)
        messages.append(Message("assistant", text))
        if step.observation is None:
            return messages
        messages.append(Message("user", step.observation))
        turns.append(Turn(completion=None, observation=step.observation))  # type: ignore[arg-type]


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def world() -> OrchardWorld:
    return OrchardWorld()


@pytest.fixture(scope="session")
def conversations(world: OrchardWorld) -> list[list[Message]]:
    return [conversation(world, query) for query in world.queries("train", 32, 0)]


@pytest.fixture(scope="session")
def renderer(conversations: list[list[Message]]) -> Renderer:
    """Over an embedded tokenizer, in which the words of this world are tokens."""
    return Renderer(tiny.tokenizer(conversations, [*COLOURS, *FRUITS, "home", "pick"], 2000))


@pytest.fixture(scope="session")
def size() -> Tiny:
    return Tiny(hidden=32, layers=2, heads=4, kv_heads=2, intermediate=48)


@pytest.fixture(scope="session")
def _student(renderer: Renderer, conversations: list[list[Message]], size: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Any:
    model = tiny.model(size, renderer.tokenizer, 0)
    data = [dict(zip(("input_ids", "labels"), renderer.example(messages), strict=True)) for messages in conversations]
    settings = Sft(steps=30, batch=8, micro_batch=8, lr=1e-2, schedule="constant", warmup=0.0, save_steps=100)
    sft.train(model, renderer, data, settings, tmp_path_factory.mktemp("student"), 0, lambda *_: None)
    return model.eval()


@pytest.fixture
def student(_student: Any) -> Any:
    """A model that mostly says something sensible; each test has its own copy."""
    model = type(_student)(copy.deepcopy(_student.config))
    model.load_state_dict(_student.state_dict())
    return model.eval()


Make = Callable[..., StarGRPOTrainer]


@pytest.fixture
def make(student: Any, renderer: Renderer, tmp_path: Path) -> Make:
    """Builds a trainer of two groups of four; arguments are fields of `Rl`, or of `Setup` where it has them."""

    def make(
        algorithm: Algorithm, world: OrchardWorld | None = None, reward: Any = None, count: int = 8, model: Any = student,
        checkpoint: str = "", **rl: Any,
    ) -> Any:  # fmt: skip
        place = world or OrchardWorld()
        limits = rl.pop("limits", Limits(turns=4, turn_tokens=12, context=300))
        settings = Rl(**{"group": 4, "queries": 2, "micro_batch": 4, "steps": 4, "lr": 1e-3, "limits": limits, **rl})
        queries = place.queries("rl", count, 0)
        setup = Setup(settings, place, place.score, algorithm, reward or Sum(), renderer, queries, 0, checkpoint=checkpoint)
        return StarGRPOTrainer(model, setup, tmp_path / "trainer")

    return make
