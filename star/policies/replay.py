"""Recorded turns as a policy: plays a trajectory again, word for word."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from star.protocols import Conversation
from star.types import Completion


@dataclass(frozen=True, slots=True)
class ReplayPolicy:
    """`recorded` maps a query id to the assistant turns to say; what lies beyond them ends the episode as an error row."""

    recorded: Mapping[str, Sequence[Completion]] = field(default_factory=dict)
    name: str = "replay"

    def complete(self, conversations: Sequence[Conversation]) -> list[Completion]:
        return [self._next(c) for c in conversations]

    def _next(self, conversation: Conversation) -> Completion:
        turns = self.recorded.get(conversation.query.id, ())
        position = len(conversation.turns)
        if position < len(turns):
            return turns[position]
        return Completion("", finish="error", error=f"no recorded turn {position + 1} for query {conversation.query.id}")
