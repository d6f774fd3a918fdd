"""ARPO: agentic reinforced policy optimisation (arXiv 2507.19849, sections 3.1 and 3.2).

A group of M rollouts starts with N roots. H_t is the mean entropy, in units of ln V, of the first k tokens that follow a tool
response; H_0 that of the first k tokens of the rollout. With dH = H_t - H_0 and P = alpha + beta dH, the rollout branches
`ways` ways just before that turn if P > tau (or, with `coin`, with probability P) until M - N branches exist. What is missing
when all paths have ended is filled with fresh roots, never with duplicates.
Assumption: uncertainty after a tool response marks the decisions worth exploring.

Advantages: "soft" is GRPO's over the M rollouts. "hard" gives a token that several rollouts share the mean of their advantages.

`compat: reference` branches as the authors' code does: if U - beta dH <= alpha for a uniform U, so with probability P, where
H is a sum over the k tokens instead of a mean, and is taken from the turn that made the tool call instead of the one that
follows its response; one way at a time. Their code estimates entropy from the ten likeliest tokens; here it is exact. Not kept
are its baseline H_0, which outlives the batch it was measured in, and its filling of a group with copies of the last rollout.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
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
    """Tokens over which entropy is taken (k)."""
    coin: bool = False
    """Branch with probability P instead of by threshold."""
    compat: Literal["paper", "reference"] = "paper"
    """Whose rule decides on a branch: the paper's, or that of the authors' code."""
    advantage: Literal["soft", "hard"] = "soft"
    clip_low: float = 0.2
    clip_high: float = 0.28

    def __post_init__(self) -> None:
        if not 0 < self.initial <= 1:
            raise ValueError(f"initial is a share above 0 and up to 1, not {self.initial}")
        if self.ways < 1 or self.probe < 1:
            raise ValueError("ways and probe are at least 1")
        if self.initial == 1:
            self._refuse(
                "with initial: 1, which leaves nothing to branch", "alpha", "beta", "tau", "ways", "probe", "coin", "compat"
            )
        if self.coin:
            self._refuse("with coin", "tau")
        if self.compat == "reference":
            self._refuse("with compat: reference, which tosses a coin of its own and branches one way", "tau", "coin", "ways")

    def _refuse(self, why: str, *names: str) -> None:
        """Raise ValueError for a setting of these that was changed, since it would have no effect."""
        changed = [f.name for f in fields(self) if f.name in names and getattr(self, f.name) != f.default]
        if changed:
            raise ValueError(f"{' and '.join(changed)} would have no effect {why}; leave out")

    def roots(self, size: int) -> int:
        return max(1, round(size * self.initial))

    def forks(self, said: Sequence[Completion], left: int, draw: random.Random) -> int:
        if self.compat == "reference":
            rise = self._entropies(said[-2]) - self._entropies(said[0])
            return min(1, left) if draw.random() - self.beta * rise <= self.alpha else 0
        rise = self._entropy(said[-1]) - self._entropy(said[0])
        chance = self.alpha + self.beta * rise
        branch = draw.random() < chance if self.coin else chance > self.tau
        return min(self.ways, left) if branch else 0

    def _entropies(self, completion: Completion) -> float:
        """Sum of the entropies of the first tokens, in units of ln V."""
        return sum(completion.entropies[: self.probe])

    def _entropy(self, completion: Completion) -> float:
        """Mean entropy of the first tokens, in units of ln V."""
        return self._entropies(completion) / max(1, len(completion.entropies[: self.probe]))

    def settings(self) -> dict[str, object]:
        return {
            "loss_type": "dapo",
            "epsilon": self.clip_low,
            "epsilon_high": self.clip_high,
            "scale_rewards": "group",
        }
