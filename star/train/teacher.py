"""A model directory as a teacher, on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

from star.policies.hf import HFPolicy
from star.protocols import Conversation
from star.recipe import Limits
from star.train.model import load
from star.train.tokens import Renderer
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
    name: str = "local"

    def __post_init__(self) -> None:
        if self.temperature < 0 or not 0 < self.top_p <= 1 or not 0 < self.turn_tokens < self.context:
            raise ValueError("temperature >= 0, 0 < top_p <= 1 and 0 < turn_tokens < context must hold")

    @cached_property
    def _policy(self) -> HFPolicy:
        model, tokenizer = load(self.model, self.bf16)
        limits = Limits(turn_tokens=self.turn_tokens, context=self.context)
        return HFPolicy(model, Renderer(tokenizer), limits, self.temperature, self.top_p, self.seed, self.name)

    def complete(self, conversations: Sequence[Conversation]) -> list[Completion | None]:
        return self._policy.complete(conversations)
