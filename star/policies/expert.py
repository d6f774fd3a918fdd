"""The world's own expert as a policy: the embedded teacher."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from star.protocols import Conversation, World
from star.types import Completion


@dataclass(frozen=True, slots=True)
class ExpertPolicy:
    world: World
    name: str = "expert"

    def complete(self, conversations: Sequence[Conversation]) -> list[Completion]:
        return [Completion(self.world.expert(c.query)(c.turns)) for c in conversations]
