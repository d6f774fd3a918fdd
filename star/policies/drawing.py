"""How the policies that sample token ids draw them, and what they need of a renderer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from star.protocols import Conversation
from star.settings import Limits


class Tokens(Protocol):
    """A conversation as ids, and ids as text."""

    @property
    def end(self) -> int: ...

    def prefix(self, conversation: Conversation) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(frozen=True)
class Draws:
    limits: Limits = field(default_factory=Limits)
    temperature: float = 1.0
    """0 is greedy."""
    top_p: float = 1.0
    seed: int = 0
    name: str = "model"
    """What trajectories call the policy."""
    patience: float = 0.5
    """A call returns once at most this share of its rollouts is unfinished; 0 waits for all of them."""

    def room(self, ids: Sequence[int]) -> int:
        """How many ids the next turn may have after these; at most 0 if none."""
        return min(self.limits.turn_tokens, self.limits.context - len(ids))

    def key(self, conversation: Conversation) -> str:
        """Names the next turn of a rollout: what it draws depends on nothing else."""
        return f"{self.seed}/{conversation.id}/{len(conversation.turns)}"
