"""A teacher behind any OpenAI-compatible endpoint.

Calls run in threads, up to `concurrency` at a time, and each rollout goes on as soon as its own call is answered. What may
pass (a busy or failing server, a cut or hanging connection, a reply that is no chat completion or is empty) is tried
again after a growing wait; a call that still fails is a completion with its error, so its query is a row that says why.
"""

from __future__ import annotations

import concurrent.futures as futures
import json
import os
import random
import threading
import time
import urllib.error
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from http.client import HTTPException
from typing import Any

from star.actions import call_text
from star.chat import PASSING, post
from star.protocols import Conversation
from star.types import Completion, ToolCall

URL = "OPENAI_BASE_URL"
LONGEST_WAIT = 60.0
"""Seconds between two tries at most, whatever the server asks for."""
REASONING = ("reasoning_content", "reasoning")
"""Fields in which servers hand over the reasoning apart from the reply."""


class _Passing(Exception):
    """A failure that may be gone at the next try; `wait` is what the server asks for, in seconds."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


@dataclass(slots=True)
class Usage:
    """What a teacher has used in this process."""

    calls: int = 0
    retries: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0


@dataclass
class OpenAIPolicy:
    """The key comes from OPENAI_API_KEY and is written nowhere."""

    _: KW_ONLY
    model: str
    url: str = ""
    """Base of the API, such as http://localhost:8000/v1; else OPENAI_BASE_URL."""
    temperature: float | None = 0.7
    """None leaves it to the server, as some reasoning models want."""
    max_tokens: int | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """Further fields of the request body."""
    concurrency: int = 64
    call_seconds: float = 300.0
    """How long the server may be silent."""
    episode_seconds: float = 3600.0
    tries: int = 6
    wait_seconds: float = 1.0
    """Before the second try, give or take a half; doubled before each further one."""
    price_in: float = 0.0
    """US dollars for a million prompt tokens."""
    price_out: float = 0.0
    max_cost: float | None = None
    """US dollars after which no further call is made and no further query begun."""
    name: str = "openai"

    def __post_init__(self) -> None:
        self.url = (self.url or os.environ.get(URL, "")).rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url {self.url!r} is no address of a server; set it or {URL}")
        if min(self.concurrency, self.tries, self.call_seconds, self.episode_seconds) <= 0:
            raise ValueError("concurrency, tries, call_seconds and episode_seconds are positive")
        if self.max_cost is not None and not self.price_in + self.price_out > 0:
            raise ValueError("max_cost has no effect without price_in and price_out")
        self.usage = Usage()
        self._lock = threading.Lock()
        self._pool = futures.ThreadPoolExecutor(self.concurrency, thread_name_prefix="teacher")
        self._calls: dict[tuple[str, int], futures.Future[Completion]] = {}
        self._begun: dict[str, float] = {}

    def complete(self, conversations: Sequence[Conversation]) -> list[Completion | None]:
        """Start the calls that are not under way, and wait until one of those asked for has ended."""
        keys = [(c.id, len(c.turns)) for c in conversations]
        for key, conversation in zip(keys, conversations, strict=True):
            if key not in self._calls:
                begun = self._begun.setdefault(conversation.id, time.monotonic())
                self._calls[key] = self._pool.submit(self._answer, conversation, begun + self.episode_seconds)
        futures.wait([self._calls[key] for key in keys], return_when=futures.FIRST_COMPLETED)
        return [self._calls.pop(key).result() if self._calls[key].done() else None for key in keys]

    @property
    def spent(self) -> bool:
        """Whether the budget is used up."""
        return self.max_cost is not None and self.usage.dollars >= self.max_cost

    def _answer(self, conversation: Conversation, deadline: float) -> Completion:
        """The next turn of a conversation. Never raises."""
        body = self._body(conversation)
        rng = random.Random(f"{conversation.id}/{len(conversation.turns)}")
        reason = "no try was made"
        for tried in range(self.tries):
            if self.spent:
                return self._failed(f"the budget of ${self.max_cost:g} is spent")
            if time.monotonic() >= deadline:
                return self._failed(f"the episode took over {self.episode_seconds:g} s ({reason})")
            try:
                return self._read(self._post(body, deadline))
            except _Passing as error:
                reason = str(error)
                usual = self.wait_seconds * 2**tried * rng.uniform(0.5, 1.5)
                if tried + 1 < self.tries:
                    self._count(retries=1)
                    time.sleep(max(0.0, min(max(error.wait, usual), LONGEST_WAIT, deadline - time.monotonic())))
            except (urllib.error.HTTPError, ValueError) as error:
                return self._failed(f"{type(error).__name__}: {error}")
        return self._failed(f"{reason} ({self.tries} tries)")

    def _failed(self, reason: str) -> Completion:
        self._count(failures=1)
        return Completion("", finish="error", error=reason)

    def _body(self, conversation: Conversation) -> bytes:
        messages = [{"role": m.role, "content": m.content} for m in conversation.prompt]
        for turn in conversation.turns:
            messages.append({"role": "assistant", "content": turn.completion.text})
            messages.append({"role": "user", "content": turn.observation or ""})
        wanted = {"model": self.model, "messages": messages, "temperature": self.temperature, "max_tokens": self.max_tokens}
        return json.dumps({**{k: v for k, v in wanted.items() if v is not None}, **self.extra}).encode()

    def _post(self, body: bytes, deadline: float) -> Mapping[str, Any]:
        patience = max(0.01, min(self.call_seconds, deadline - time.monotonic()))
        self._count(calls=1)
        try:
            value = json.loads(post(f"{self.url}/chat/completions", body, patience))
        except urllib.error.HTTPError as error:
            with error:
                if error.code in PASSING:
                    raise _Passing(f"HTTP {error.code}", _seconds(error.headers.get("Retry-After"))) from None
                raise
        except (OSError, HTTPException) as error:
            raise _Passing(str(getattr(error, "reason", error)) or type(error).__name__) from None
        except ValueError:
            raise _Passing("the reply is not JSON") from None
        if not isinstance(value, dict):
            raise _Passing("the reply is no chat completion")
        return value

    def _read(self, value: Mapping[str, Any]) -> Completion:
        """A reply as a turn, its reasoning as thoughts and its native tool call as text."""
        self._bill(value.get("usage"))
        try:
            choice = value["choices"][0]
            message = choice["message"]
            text = message.get("content") or ""
            thought = next((message[key] for key in REASONING if isinstance(message.get(key), str)), "").strip()
            if not text.strip() and message.get("tool_calls"):
                function = message["tool_calls"][0]["function"]
                call = ToolCall(str(function["name"]), json.loads(function["arguments"]))
                return Completion(call_text(thought, call))
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            raise _Passing("the reply is no chat completion") from None
        if not isinstance(text, str) or not text.strip():
            raise _Passing("the reply is empty")
        if thought and "<think>" not in text:
            text = f"<think>{thought}</think>\n{text.strip()}"
        return Completion(text, finish="length" if choice.get("finish_reason") == "length" else "stop")

    def _bill(self, usage: Any) -> None:
        if isinstance(usage, dict):
            asked, said = (usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
            asked, said = (n if isinstance(n, int) and n > 0 else 0 for n in (asked, said))
            self._count(prompt_tokens=asked, completion_tokens=said)
            self._count(dollars=(asked * self.price_in + said * self.price_out) / 1e6)

    def _count(self, **more: float) -> None:
        with self._lock:
            for name, value in more.items():
                setattr(self.usage, name, getattr(self.usage, name) + value)


def _seconds(text: str | None) -> float:
    try:
        return max(0.0, min(float(text or 0), LONGEST_WAIT))
    except ValueError:
        return 0.0
