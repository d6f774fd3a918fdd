"""DAPO (arXiv 2503.14476, section 3): GRPO with clip-higher, a token-level loss and groups that carry signal only.

Clip-higher: rho is clipped to [1 - 0.2, 1 + 0.28]. Token-level: the loss is a mean over all sampled tokens of the batch.
Dynamic sampling: groups whose rollouts all earn the same reward have no advantage; `refill` replaces them with fresh groups of
other queries, at most `refill` times a step. Over-long rollouts leave the loss, as in STAR.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from star.types import Completion


@dataclass(frozen=True, slots=True)
class DAPO:
    name: str = "dapo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    refill: int = 1
    """Rounds in which groups without signal are sampled again from other queries; 0 trains on what came first."""

    def __post_init__(self) -> None:
        if self.refill < 0:
            raise ValueError(f"refill is a number of rounds, not {self.refill}; 0 trains on what came first")

    def roots(self, size: int) -> int:
        return size

    def forks(self, first: Completion, current: Completion, left: int, draw: random.Random) -> int:
        return 0

    def settings(self) -> dict[str, object]:
        return {
            "loss_type": "dapo",
            "epsilon": self.clip_low,
            "epsilon_high": self.clip_high,
            "scale_rewards": "group",
        }
