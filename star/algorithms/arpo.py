"""ARPO: agentic reinforced policy optimisation (arXiv 2507.19849, sections 3.1 and 3.2).

A group of M rollouts starts with N roots. H_t is the mean entropy, in units of ln V, of the first k tokens that follow a tool
response; H_0 that of the first k tokens of the rollout. With dH = H_t - H_0 and P = alpha + beta dH, the rollout branches
`ways` ways just before that turn if P > tau (or, with `coin`, with probability P) until M - N branches exist. What is missing
when all paths have ended is filled with fresh roots, never with duplicates.
Assumption: uncertainty after a tool response marks the decisions worth exploring.

Advantages: "soft" is GRPO's over the M rollouts. "hard" gives a token that several rollouts share the mean of their advantages.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Literal

from star.types import Completion


@dataclass(frozen=True, slots=True)
class ARPO:
    name: str = "arpo"
    initial: float = 0.5
    """Share of a group's rollouts that start at the query (N / M)."""
    alpha: float = 0.5
    beta: float = 0.2
    tau: float = 0.5
    """Threshold on P; has no meaning with `coin`."""
    ways: int = 1
    """Branches started at one fork (Z)."""
    probe: int = 20
    """Tokens over which entropy is averaged (k)."""
    coin: bool = False
    """Branch with probability P instead of by threshold."""
    advantage: Literal["soft", "hard"] = "soft"
    clip_low: float = 0.2
    clip_high: float = 0.28

    def __post_init__(self) -> None:
        if not 0 < self.initial <= 1:
            raise ValueError(f"initial is a share above 0 and up to 1, not {self.initial}")
        if self.ways < 1 or self.probe < 1:
            raise ValueError("ways and probe are at least 1")
        if self.coin and self.tau != 0.5:
            raise ValueError("tau has no effect with coin; leave it out")

    def roots(self, size: int) -> int:
        return max(1, round(size * self.initial))

    def forks(self, first: Completion, current: Completion, left: int, draw: random.Random) -> int:
        rise = self._entropy(current) - self._entropy(first)
        chance = self.alpha + self.beta * rise
        branch = draw.random() < chance if self.coin else chance > self.tau
        return min(self.ways, left) if branch else 0

    def _entropy(self, completion: Completion) -> float:
        """Mean entropy of the first tokens, in units of ln V."""
        head = completion.entropies[: self.probe]
        return sum(head) / len(head) if head else 0.0

    def settings(self) -> dict[str, object]:
        return {
            "loss_type": "dapo",
            "epsilon": self.clip_low,
            "epsilon_high": self.clip_high,
            "scale_rewards": "group",
        }
