"""DAPO (arXiv 2503.14476, section 3): GRPO with clip-higher, a token-level loss and groups that carry signal only.

Clip-higher: rho is clipped to [1 - 0.2, 1 + 0.28]. Token-level: the loss is a mean over all sampled tokens of the batch.
Dynamic sampling: groups whose rollouts all earn the same reward have no advantage; `refill` replaces them with fresh groups of
other queries, at most `refill` times a step. Over-long rollouts leave the loss, as in STAR.
Soft over-long punishment (equation 13), with L = `soft_limit` and C = `soft_cache`: a rollout of n tokens earns
0 up to L - C, (L - C - n) / C up to L, and -1 beyond. Here n counts the tokens that the policy sampled; what tools wrote is
not its fault.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from star.types import Completion


@dataclass(frozen=True, slots=True)
class DAPO:
    name: str = "dapo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    refill: int = 1
    """Rounds in which groups without signal are sampled again from other queries; 0 trains on what came first."""
    soft_limit: int | None = None
    """Sampled tokens of a rollout from which the punishment is -1; None punishes no length."""
    soft_cache: int | None = None
    """Tokens below `soft_limit` over which the punishment grows from 0; by default a fifth of it, as in the paper (4,096 of
    20,480)."""

    def __post_init__(self) -> None:
        if self.refill < 0:
            raise ValueError(f"refill is a number of rounds, not {self.refill}; 0 trains on what came first")
        if self.soft_limit is None and self.soft_cache is not None:
            raise ValueError("soft_cache has no effect without soft_limit")
        if self.soft_limit is not None and not 0 < self._cache <= self.soft_limit:
            raise ValueError(f"soft_cache is between 1 and soft_limit = {self.soft_limit}, not {self._cache}")

    @property
    def _cache(self) -> int:
        assert self.soft_limit is not None
        return max(1, self.soft_limit // 5) if self.soft_cache is None else self.soft_cache

    def penalty(self, tokens: int) -> float:
        """Equation 13 for a rollout of so many sampled tokens: between -1 and 0."""
        if self.soft_limit is None:
            return 0.0
        return max(-1.0, min(0.0, (self.soft_limit - self._cache - tokens) / self._cache))

    def roots(self, size: int) -> int:
        return size

    def forks(self, said: Sequence[Completion], left: int, draw: random.Random) -> int:
        return 0

    def settings(self) -> dict[str, object]:
        return {
            "loss_type": "dapo",
            "epsilon": self.clip_low,
            "epsilon_high": self.clip_high,
            "scale_rewards": "group",
        }
