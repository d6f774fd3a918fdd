"""The doors for plugins. A plugin is any object of the right shape; nothing needs to be inherited."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from star.types import Completion, Message, Mode, Query, Score, Stop, ToolCall, Turn


@dataclass(frozen=True, slots=True)
class Step:
    """What the world answers to one assistant turn: an observation to go on with, or a stop."""

    observation: str | None = None
    stop: Stop | None = None
    answer: str | None = None
    call: ToolCall | None = None
    error: str | None = None
    fault: str | None = None


class Env(Protocol):
    """One episode of one query. Episodes step side by side, in threads: what they share must bear that."""

    @property
    def prompt(self) -> tuple[Message, ...]: ...

    def step(self, text: str) -> Step:
        """Take an assistant turn. Never raises for anything a model can write."""

    def fork(self) -> Env:
        """An independent copy in the same state."""


Expert = Callable[[Sequence[Turn]], str]
"""Turns so far -> text of the next assistant turn."""


class World(Protocol):
    """A source of queries, an environment for each, and the one judge."""

    def queries(self, split: str, count: int, seed: int) -> list[Query]:
        """Depends on (split, count's prefix, seed) alone; splits never overlap."""

    def open(self, query: Query, key: str) -> Env:
        """Start an episode; `key` names it for injected faults."""

    def score(self, query: Query, answer: str | None, mode: Mode = "strict") -> Score:
        """The judge's verdict on an answer, which may be None or garbage; never raises."""

    def plan(self, answer: str | None) -> list[dict[str, Any]] | None:
        """The answer as the judge reads it, None if it cannot be read."""

    def expert(self, query: Query) -> Expert: ...


@dataclass(frozen=True, slots=True)
class Conversation:
    """A rollout in progress, as a policy sees it. A policy that is a model reads `prompt` and `turns` only."""

    id: str
    query: Query
    prompt: tuple[Message, ...]
    turns: tuple[Turn, ...]
    parent: str | None = None


class Policy(Protocol):
    """Teacher, expert and trained model alike: conversations in, the next completion of each out."""

    @property
    def name(self) -> str: ...

    def complete(self, conversations: Sequence[Conversation]) -> Sequence[Completion | None]:
        """One completion a conversation, in order; None for one that is not finished and must be asked for again.

        At least one is finished. A failure of one is a completion with `finish="error"`.
        """


class Reward(Protocol):
    """A weighting of the judge's score; a pure function of (score, progress)."""

    @property
    def name(self) -> str: ...

    def weights(self, progress: float) -> dict[str, float]:
        """Component (cs_micro, cs_macro, hard_micro, hard_macro, success) -> weight, at a share 0-1 of training."""


class Algorithm(Protocol):
    """How a group of rollouts is sampled and how rewards become credit.

    An algorithm may also have: `refill` (int), rounds in which groups without signal are replaced; `negative` (float), the weight
    of negative advantages; `advantage` ("hard"), one advantage for what rollouts share; and `penalty(tokens) -> float`, what a
    rollout of so many sampled tokens earns besides its reward.
    """

    @property
    def name(self) -> str: ...

    def roots(self, size: int) -> int:
        """How many of a group's `size` rollouts start at the query; the rest may branch off."""

    def forks(self, said: Sequence[Completion], left: int, draw: random.Random) -> int:
        """How many branches to start just before the last of at least two completions of a rollout; at most `left`.

        The last one followed a tool response, and the one before it made the call.
        """

    def settings(self) -> dict[str, object]:
        """Arguments of trl.GRPOConfig that define the loss."""
