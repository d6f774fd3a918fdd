"""The one renderer: messages to token ids, for SFT, RL and serving alike.

A conversation is prompt ids, then per turn the sampled ids (never re-tokenised) and a bridge: what the chat template puts
between an assistant turn and the next one, with the observation inside. SFT walks the same way with the teacher's text in place
of sampled ids, so both render a conversation to the same ids; `Renderer` refuses a template that
renders earlier turns otherwise, and warns of one that only drops their thoughts.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from star.errors import StarError
from star.protocols import Conversation
from star.types import Completion, Message, Trajectory

ASSISTANT, OBSERVATION, THOUGHT = "assistant-probe", "observation-probe", "thought-probe"

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Flat:
    """A trajectory as training rows; the last four have the length of `completion_ids`."""

    prompt_ids: list[int]
    completion_ids: list[int]
    mask: list[int]
    """1 for ids the policy sampled, 0 for ids the world wrote."""
    logprobs: list[float]
    """Under the sampling distribution; 0 where the mask is 0."""
    segments: list[int]
    """Index of the turn each id belongs to; a bridge belongs to the turn before it."""


class Renderer:
    """Renders with a tokenizer's own chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._special = sorted(map(str, tokenizer.all_special_tokens), key=len, reverse=True)
        probe = [
            Message("system", "s"),
            Message("user", "u"),
            Message("assistant", ASSISTANT),
            Message("user", OBSERVATION),
        ]
        _, found, after = self._template(probe).partition(ASSISTANT)
        ends = [token for token in self._special if after.startswith(token)]
        if not found or not ends or OBSERVATION not in after:
            raise StarError(
                "the chat template does not end an assistant turn with a special token",
                "Use a model with a ChatML-like template (Qwen2.5, Qwen3, Llama 3, SmolLM2)",
            )
        self.end: int = tokenizer.convert_tokens_to_ids(ends[0])
        self._before, _, self._after = after[len(ends[0]) :].partition(OBSERVATION)
        self.bridge_ids = lru_cache(maxsize=4096)(self._bridge_ids)
        self._prompt_cached = lru_cache(maxsize=4096)(self._prompt_ids)
        self._verify(probe)

    def _template(self, messages: Sequence[Message]) -> str:
        rows = [{"role": m.role, "content": self._clean(m.content)} for m in messages]
        try:
            text = self.tokenizer.apply_chat_template(rows, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # noqa: BLE001  jinja raises whatever the template's author chose
            fix = "Use a model whose template takes system, user and assistant messages"
            raise StarError(f"the chat template failed: {error}", fix) from None
        return str(text)

    def _verify(self, probe: Sequence[Message]) -> None:
        composed = self.prompt_ids(probe[:2]) + self.completion_ids(ASSISTANT) + list(self.bridge_ids(OBSERVATION))
        if composed != self._encode(self._template(probe)):
            raise StarError(
                "the chat template rewrites earlier turns, so that training and serving would see different ids",
                "Use a template that only appends (Qwen2.5, Qwen3, Llama 3, SmolLM2)",
            )
        said = Message("assistant", f"<think>\n{THOUGHT}\n</think>\n\n{ASSISTANT}")
        if THOUGHT not in self._template([*probe[:2], said, *probe[3:]]):
            logger.warning(
                "this chat template drops the thoughts of earlier turns; star keeps them in SFT, RL and evaluation, but a chat "
                "server that renders whole conversations will not"
            )

    def _clean(self, text: str) -> str:
        """Break up special tokens that a user or a tool wrote: content never becomes structure."""
        for token in self._special:
            if token in text:
                text = text.replace(token, token[0] + " " + token[1:])
        return text

    def _encode(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def prompt_ids(self, messages: Sequence[Message]) -> list[int]:
        """Ids of the opening messages up to and including the header of the first assistant turn."""
        return list(self._prompt_cached(tuple(messages)))

    def _prompt_ids(self, messages: tuple[Message, ...]) -> tuple[int, ...]:
        return tuple(self._encode(self._template(messages)))

    def _bridge_ids(self, observation: str) -> tuple[int, ...]:
        """Ids between the end token of a turn and the first id of the next turn."""
        return tuple(self._encode(self._before + self._clean(observation) + self._after))

    def completion_ids(self, text: str) -> list[int]:
        """Ids of an assistant turn that was written, not sampled, with its end token."""
        return [*self._encode(self._clean(text)), self.end]

    def _said(self, completion: Completion) -> list[int]:
        """Sampled ids as they are, with the end token if they lack it; written text is encoded."""
        if not completion.token_ids:
            return self.completion_ids(completion.text)
        ids = list(completion.token_ids)
        return ids if ids[-1] == self.end else [*ids, self.end]

    def prefix(self, conversation: Conversation) -> list[int]:
        """What a model reads before it says the next turn."""
        ids = self.prompt_ids(conversation.prompt)
        for turn in conversation.turns:
            ids += self._said(turn.completion)
            ids += self.bridge_ids(turn.observation or "")
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        """Text of sampled ids without the end token."""
        kept = ids[:-1] if ids and ids[-1] == self.end else ids
        return str(self.tokenizer.decode(kept, skip_special_tokens=False))

    def example(self, messages: Sequence[Message]) -> tuple[list[int], list[int]]:
        """(ids, labels) of a training conversation; labels are -100 on everything the assistant did not say."""
        first = next(index for index, m in enumerate(messages) if m.role == "assistant")
        ids = self.prompt_ids(messages[:first])
        labels = [-100] * len(ids)
        for message in messages[first:]:
            said = message.role == "assistant"
            part = self.completion_ids(message.content) if said else list(self.bridge_ids(message.content))
            ids += part
            labels += part if said else [-100] * len(part)
        return ids, labels

    def flatten(self, trajectory: Trajectory) -> Flat:
        """A sampled trajectory as one row. What follows the last id that was sampled is left out, so that a row is never
        longer than the context; a trajectory in which nothing was sampled becomes one masked end token."""
        flat = Flat(self.prompt_ids(trajectory.prompt), [], [], [], [])
        turns = trajectory.turns if trajectory.turns[-1].completion.token_ids else trajectory.turns[:-1]
        for index, turn in enumerate(turns):
            ids, logprobs = list(turn.completion.token_ids), list(turn.completion.logprobs)
            last = index == len(turns) - 1
            bridge = [] if last else list(self.bridge_ids(turn.observation or ""))
            if not last and ids[-1:] != [self.end]:
                bridge = [self.end, *bridge]
            flat.completion_ids.extend(ids + bridge)
            flat.mask.extend([1] * len(ids) + [0] * len(bridge))
            flat.logprobs.extend(logprobs + [0.0] * len(bridge))
            flat.segments.extend([index] * (len(ids) + len(bridge)))
        if not flat.completion_ids:
            return Flat(flat.prompt_ids, [self.end], [0], [0.0], [0])
        return flat
