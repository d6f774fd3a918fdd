"""A model directory as a teacher, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Any

from star import plugins
from star.policies.drawing import Draws
from star.protocols import Conversation, Policy
from star.settings import Limits
from star.train import model as models
from star.train.samplers import Sampler
from star.types import Completion


@dataclass
class LocalTeacher:
    """Samples from a causal language model that transformers can load; it is loaded at the first turn."""

    _: KW_ONLY
    model: str
    """Directory, or name on the hub."""
    temperature: float = 0.7
    top_p: float = 0.95
    turn_tokens: int = 2048
    context: int = 32768
    seed: int = 0
    bf16: bool = False
    rollouts: dict[str, Any] = field(default_factory=lambda: {"name": "hf"})
    """What samples the turns, as `rl.rollouts`."""
    name: str = "local"

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or not 0 < self.turn_tokens < self.context:
            raise ValueError("temperature >= 0, 0 < top_p <= 1 and 0 < turn_tokens < context must hold")
        plugins.check("sampler", self.rollouts, "rollouts")

    @cached_property
    def _policy(self) -> Policy:
        sampler: Sampler = plugins.build("sampler", self.rollouts).open(models.source(self.model, self.context, self.bf16))
        limits = Limits(turn_tokens=self.turn_tokens, context=self.context)
        return sampler.policy(Draws(limits, self.temperature, self.top_p, self.seed, self.name))

    def complete(self, conversations: Sequence[Conversation]) -> Sequence[Completion | None]:
        return self._policy.complete(conversations)
