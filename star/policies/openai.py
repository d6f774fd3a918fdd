"""A teacher behind any OpenAI-compatible endpoint.

Each rollout goes on as soon as its own call is answered; a call that gets no reply is a completion with its error, so its
query is a row that says why.
"""

from __future__ import annotations

import concurrent.futures as futures
import re
import time
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

from star import plugins
from star.actions import call_text
from star.endpoint import Endpoint, NoReply, OutOfTime, Usage
from star.errors import UsageError
from star.protocols import Conversation
from star.types import Completion, Message

TAGS = re.compile(r"</?think>")


@dataclass
class OpenAIPolicy(Endpoint):
    """The client is loaded at the first turn."""

    _: KW_ONLY
    episode_seconds: float = 3600.0
    name: str = "openai"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.episode_seconds <= 0:
            raise UsageError(f"episode_seconds {self.episode_seconds:g}: must be positive", "Correct the setting")
        self.usage = Usage()
        self._calls: dict[tuple[str, int], futures.Future[Any]] = {}
        self._begun: dict[str, float] = {}

    def complete(self, conversations: Sequence[Conversation]) -> list[Completion | None]:
        """Start the calls that are not under way, and wait until one of those asked for has ended."""
        keys = [(c.id, len(c.turns)) for c in conversations]
        for key, conversation in zip(keys, conversations, strict=True):
            if key not in self._calls:
                begun = self._begun.setdefault(conversation.id, time.monotonic())
                self._calls[key] = self._client.begin(_messages(conversation), begun + self.episode_seconds)
        futures.wait([self._calls[key] for key in keys], return_when=futures.FIRST_COMPLETED)
        return [self._turn(self._calls.pop(key)) if self._calls[key].done() else None for key in keys]

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return self.usage.reached(self.max_cost)

    @cached_property
    def _client(self) -> Any:
        return plugins.load("star.chat:Client")(self, self.usage)

    def _turn(self, call: futures.Future[Any]) -> Completion:
        """A reply as a turn, its reasoning, and what stands beside a native tool call, as thoughts."""
        try:
            reply = call.result()
        except OutOfTime as error:
            reason = f"the episode took over {self.episode_seconds:g} s ({error.reason})"
            return Completion("", finish="error", error=reason)
        except NoReply as error:
            return Completion("", finish="error", error=error.reason)
        if reply.call is not None:
            beside = TAGS.sub("", reply.text).strip()
            text = call_text("\n".join(part for part in (reply.thought, beside) if part), reply.call)
        elif reply.thought and "<think>" not in reply.text:
            text = f"<think>{reply.thought}</think>\n{reply.text.strip()}"
        else:
            text = reply.text
        return Completion(text, finish=reply.finish, tokens=reply.tokens)


def _messages(conversation: Conversation) -> list[Message]:
    """What the model is shown."""
    messages = list(conversation.prompt)
    for turn in conversation.turns:
        messages += [Message("assistant", turn.completion.text), Message("user", turn.observation or "")]
    return messages
