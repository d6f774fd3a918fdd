"""The records that walk from room to room. Plain frozen dataclasses; checked only when they are read from disk."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

Stop = Literal["answer", "turns", "tokens", "format", "error"]
"""Why a trajectory ended: an answer, the turn limit, the token limit, a turn that is no action, or a failure."""

Finish = Literal["stop", "length", "context", "error"]
"""Why one completion ended: its end token, the token limit of a turn, the context window, or a failed backend."""

Mode = Literal["strict", "official", "agent-star"]
MODES: tuple[Mode, ...] = ("strict", "official", "agent-star")


@dataclass(frozen=True, slots=True)
class Query:
    """One request of a user, with the hidden truth about it."""

    id: str
    text: str
    facts: dict[str, Any]
    """org, dest, days, visiting_city_number, date, people_number, local_constraint, budget, level. Never shown to a model."""
    difficulty: str
    days: int
    split: str


@dataclass(frozen=True, slots=True)
class Message:
    role: Literal["system", "user", "assistant"]
    content: str


@dataclass(frozen=True, slots=True)
class Completion:
    """What a policy said in one turn. `token_ids` are the sampled ids, never re-tokenised; empty for text-only policies."""

    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[float, ...] = ()
    """Natural log-probability of each sampled id under the sampling distribution; same length as `token_ids`."""
    entropies: tuple[float, ...] = ()
    """Entropy of the distribution each id was drawn from, in units of ln V (0 certain, 1 uniform); same length as `token_ids`."""
    finish: Finish = "stop"
    error: str | None = None
    tokens: int | None = None
    """Length of what a server's model wrote, as the server counted it, with reasoning that it kept to itself; None if it did
    not say, or if `token_ids` do."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """A completion and what the world answered."""

    completion: Completion
    observation: str | None = None
    """Content of the user message that follows; None if the trajectory ended here."""
    call: ToolCall | None = None
    error: str | None = None
    """Kind of the error the agent made in this turn (see `star.actions.ERRORS`), None if it made none."""
    fault: str | None = None
    """Kind of a fault that was injected on purpose, counted apart from the agent's own errors."""


@dataclass(frozen=True, slots=True)
class Score:
    """The judge's verdict on one plan.

    A value of None means that the constraint does not apply to this query, never that it was not judged.
    """

    query_id: str
    mode: Mode
    commonsense: dict[str, bool | None]
    hard: dict[str, bool | None]
    """Raw verdicts; they count only if `hard_counts`."""
    hard_counts: bool
    """Whether the plan is complete and within the sandbox, without which hard constraints earn nothing."""
    total_cost: float | None = None
    reasons: dict[str, str] = field(default_factory=dict)
    """Constraint name -> why it failed, in words."""
    delivered: bool = True
    """Whether a readable plan was handed in at all."""

    @property
    def commonsense_micro(self) -> float:
        """Share of the commonsense constraints that hold, out of all eight (None counts as passed, as in the papers)."""
        return sum(v is not False for v in self.commonsense.values()) / len(self.commonsense) if self.delivered else 0.0

    @property
    def commonsense_macro(self) -> bool:
        return self.delivered and all(v is not False for v in self.commonsense.values())

    @property
    def hard_micro(self) -> float:
        """Share of the applicable hard constraints that hold; 0 where they do not count, 1 if none applies."""
        if not (self.delivered and self.hard_counts):
            return 0.0
        applicable = [v for v in self.hard.values() if v is not None]
        return sum(applicable) / len(applicable) if applicable else 1.0

    @property
    def hard_macro(self) -> bool:
        return self.delivered and self.hard_counts and all(v is not False for v in self.hard.values())

    @property
    def success(self) -> bool:
        return self.commonsense_macro and self.hard_macro


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One episode. An episode that failed is a row with its error, never a missing row."""

    id: str
    query_id: str
    policy: str
    prompt: tuple[Message, ...]
    turns: tuple[Turn, ...]
    stop: Stop
    answer: str | None = None
    score: Score | None = None
    parent: str | None = None
    """Id of the trajectory this one was forked from."""
    forked_at: int | None = None
    """Number of leading turns shared with the parent."""
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Example:
    """One training conversation."""

    query_id: str
    trajectory_id: str
    messages: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: str
    base: str
    adapter: str | None
    step: int


@dataclass(frozen=True, slots=True)
class Prediction:
    query_id: str
    trajectory_id: str
    answer: str | None
    plan: list[dict[str, Any]] | None
    stop: Stop


@dataclass(frozen=True, slots=True)
class Rate:
    """A share with its 95 % Wilson interval. `passed` of `n`; for micro rates n counts constraints, not queries."""

    value: float
    passed: int
    n: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Report:
    """The official metrics of one set of plans."""

    run: str
    split: str
    mode: Mode
    n: int
    metrics: dict[str, Rate]
    """delivery, commonsense_micro, commonsense_macro, hard_micro, hard_macro, success."""
    by_difficulty: dict[str, dict[str, Rate]]
    by_days: dict[str, dict[str, Rate]]
    stops: dict[str, int] = field(default_factory=dict)
    errors: dict[str, int] = field(default_factory=dict)
    """Kind of agent error -> how many turns made it."""
    turns: float = 0.0
    """Mean number of turns of an episode."""
