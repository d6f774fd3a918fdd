"""A policy over an inference engine that takes token ids and gives back token ids with their log-probabilities.

The engine is vLLM in this process or behind HTTP. Draws are keyed by (seed, rollout, turn), so that they do not depend on the
order of requests; the numerics of an engine may still differ in the last digits with what else is in its batch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from star.policies.drawing import Draws, Tokens
from star.protocols import Conversation
from star.types import Completion, Finish

FINISH: dict[str, Finish] = {"stop": "stop", "length": "length"}
"""How an engine calls the end of a turn that was sampled to its end -> how a completion does."""


@dataclass(frozen=True, slots=True)
class Request:
    """One turn to sample. It ends with the id `end`, which is sampled too, or after `limit` ids."""

    key: str
    """Names it among the requests under way."""
    ids: list[int]
    limit: int
    end: int
    temperature: float
    """0 is greedy."""
    top_p: float
    seed: int
    """At least 0 and below 2**56."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The ids of a turn and, for each, its log-probability and those of the likeliest ids, under the distribution it was drawn
    from: after temperature and top_p; of greedy draws at temperature 1."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    likeliest: tuple[tuple[float, ...], ...]
    finish: Finish


class Engine(Protocol):
    """Samples many turns at a time from one model."""

    def submit(self, request: Request) -> None:
        """Begin a turn."""

    def wait(self) -> dict[str, Sampled]:
        """Key -> what was sampled, of at least one turn that was begun; each turn is handed over once.

        Raises StarError if the engine fails for good.
        """

    def update(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Take over weights, named as in a checkpoint, and forget what was cached under the old ones. No turn is under way.

        Raises StarError if the engine cannot.
        """

    def rest(self) -> None:
        """Free what memory it can until the next update."""

    def close(self) -> None:
        """Free everything; it samples no more."""


@dataclass
class EnginePolicy:
    """Samples turns from an engine."""

    engine: Engine
    renderer: Tokens
    vocabulary: int
    """Ids the model knows: the unit of entropies is its logarithm."""
    draws: Draws = field(default_factory=Draws)
    _begun: set[str] = field(default_factory=set, init=False)
    _ended: dict[str, Completion] = field(default_factory=dict, init=False)

    @property
    def name(self) -> str:
        return self.draws.name

    def complete(self, conversations: Sequence[Conversation]) -> list[Completion | None]:
        keys = [f"{self.name}/{c.id}/{len(c.turns)}" for c in conversations]
        for key, conversation in zip(keys, conversations, strict=True):
            if key not in self._begun:
                self._begin(key, conversation)
        left = max(0, min(int(self.draws.patience * len(keys)), len(keys) - 1))
        while sum(key not in self._ended for key in keys) > left:
            self._ended |= {key: self._completion(sampled) for key, sampled in self.engine.wait().items()}
        self._begun -= self._ended.keys() & set(keys)
        return [self._ended.pop(key, None) for key in keys]

    def _begin(self, key: str, conversation: Conversation) -> None:
        self._begun.add(key)
        ids = self.renderer.prefix(conversation)
        limit = self.draws.room(ids)
        if limit <= 0:
            self._ended[key] = Completion("", finish="context")
            return
        seed = _number(self.draws.key(conversation))
        request = Request(key, ids, limit, self.renderer.end, self.draws.temperature, self.draws.top_p, seed)
        self.engine.submit(request)

    def _completion(self, sampled: Sampled) -> Completion:
        entropies = tuple(entropy(found, self.vocabulary) for found in sampled.likeliest)
        return Completion(self.renderer.decode(sampled.ids), sampled.ids, sampled.logprobs, entropies, sampled.finish)


def _number(text: str) -> int:
    """A seed of 56 bits, equal for equal texts only."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:7])


def entropy(likeliest: Sequence[float], vocabulary: int) -> float:
    """Entropy of a distribution in units of ln V from the log-probabilities of its likeliest ids.

    All other ids count as one, so it is a lower bound; the more ids, the closer. Compare only what was measured with the same
    number of ids.
    """
    shares = [math.exp(logprob) for logprob in likeliest]
    rest = max(0.0, 1.0 - math.fsum(shares))
    return -math.fsum(share * math.log(share) for share in (*shares, rest) if share > 0) / math.log(vocabulary)
