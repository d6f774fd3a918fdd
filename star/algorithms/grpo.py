"""GRPO: group relative policy optimisation (arXiv 2402.03300, section 4.1).

A_i = (r_i - mean(r)) / std(r) over the M rollouts of one query, the same for every token of rollout i;
loss = -mean over tokens of min(rho A, clip(rho, 1 - low, 1 + high) A).
Assumption: the rollouts of a group are independent samples of the same policy. STAR trains with clip-higher and without KL;
its epsilons are not stated, the defaults are DAPO's.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from star.types import Completion


@dataclass(frozen=True, slots=True)
class GRPO:
    name: str = "grpo"
    clip_low: float = 0.2
    clip_high: float = 0.28
    loss: Literal["grpo", "dapo", "dr_grpo", "bnpo"] = "dapo"
    """TRL's loss_type: "grpo" averages within a rollout first, "dapo" over all tokens of the batch."""
    scale: Literal["group", "batch", "none"] = "group"
    """What the advantage is divided by the standard deviation of."""
    negative: float = 1.0
    """Weight of negative advantages. Below 1, what succeeded counts more than what failed: all of a rollout that met every
    constraint was right, but most of a failed one was right too, and is pushed down all the same. That is the larger part of the
    gradient's noise where batches are small. The price is diversity (arXiv 2506.01347 takes the two apart: reinforcing successes
    raises pass@1, penalising failures keeps pass@k)."""

    def __post_init__(self) -> None:
        if self.negative < 0:
            raise ValueError(f"negative is a weight of at least 0, not {self.negative}")

    def roots(self, size: int) -> int:
        return size

    def forks(self, said: Sequence[Completion], left: int, draw: random.Random) -> int:
        return 0

    def settings(self) -> dict[str, object]:
        return {
            "loss_type": self.loss,
            "epsilon": self.clip_low,
            "epsilon_high": self.clip_high,
            "scale_rewards": self.scale,
        }
