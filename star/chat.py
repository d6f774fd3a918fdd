"""The one client of models on servers, over the openai package; tenacity decides when to try again.

Calls run on an event loop in a thread of its own. What may pass (a busy or failing server, a cut or hanging connection, a
reply that is no chat completion or is empty) is tried again after a growing wait, or after the one that the server asks for.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import os
import threading
import time
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from openai import APIConnectionError, APIStatusError, AsyncOpenAI, Omit, OpenAIError, RequestOptions
from openai.types.chat import ChatCompletion
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt, wait_exponential, wait_random

from star.endpoint import KEY, OVER_BUDGET, Endpoint, NoReply, OutOfTime, Usage
from star.types import Finish, Message, ToolCall

log = logging.getLogger(__name__)

PASSING = frozenset({408, 409, 425, 429})
"""HTTP statuses below 500 that may be gone at the next try."""
EXHAUSTED = "insufficient_quota"
"""Code of a 429 that no waiting mends."""
LONGEST_WAIT = 60.0
"""Seconds between two tries at most, unless the server asks for more."""
PATIENCE = 600.0
"""Seconds that a server may ask to wait; one that asks for more gives no reply."""
LONGEST_REASON = 300
"""Characters of a failure's reason that are kept."""
REASONING = ("reasoning_content", "reasoning")
"""Fields in which servers hand over the reasoning apart from the reply."""


class _Passing(Exception):
    """A failure that may be gone at the next try; `wait` is what the server asks for, in seconds."""

    def __init__(self, reason: str, wait: float = 0.0) -> None:
        super().__init__(reason)
        self.wait = wait


class _Final(Exception):
    """A failure that stays."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a model said."""

    text: str
    thought: str
    """Reasoning that the server handed over apart from the text; empty if it did not."""
    call: ToolCall | None
    """The first native tool call, unless the text holds one."""
    finish: Finish
    tokens: int | None
    """Tokens of the reply as the server counted them, all reasoning included; None if it did not say."""


class Client:
    """Asks the model of an endpoint, and counts in `usage` what that takes."""

    def __init__(self, endpoint: Endpoint, usage: Usage | None = None) -> None:
        self.endpoint, self.usage = endpoint, usage or Usage()
        self._key = os.environ.get(KEY, "")
        self._slots = asyncio.Semaphore(endpoint.concurrency)
        self._api = AsyncOpenAI(
            api_key=self._key or "none",
            base_url=endpoint.url,
            timeout=endpoint.call_seconds,
            max_retries=0,
        )
        self._options: RequestOptions = {} if self._key else {"headers": {"Authorization": Omit()}}
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=_run, args=(self._loop,), name="chat", daemon=True).start()
        weakref.finalize(self, _close, self._loop, self._api)

    def ask(self, system: str, user: str) -> str:
        """The text of the reply to one question. Raises NoReply."""
        return self.begin([Message("system", system), Message("user", user)]).result().text

    def begin(self, messages: Sequence[Message], deadline: float = math.inf) -> Future[Reply]:
        """Start a call. Its result comes before `deadline` (of `time.monotonic`), or it is an exception, NoReply."""
        rows = [{"role": message.role, "content": message.content} for message in messages]
        return asyncio.run_coroutine_threadsafe(self._answer(rows, deadline), self._loop)

    async def _answer(self, rows: list[dict[str, str]], deadline: float) -> Reply:
        left = None if deadline == math.inf else deadline - time.monotonic()
        last: list[str] = []
        retrying = AsyncRetrying(
            sleep=asyncio.sleep,
            stop=stop_after_attempt(self.endpoint.tries),
            wait=self._wait,
            retry=retry_if_exception_type(_Passing),
            before_sleep=lambda state: self._again(state, last),
            reraise=True,
        )
        try:
            async with asyncio.timeout(left):
                return await retrying(self._try, rows)
        except TimeoutError:
            raise self._lost(OutOfTime, last[-1] if last else "no reply yet") from None
        except _Passing as error:
            tries = f"{self.endpoint.tries} tries: " if self.endpoint.tries > 1 else ""
            raise self._lost(NoReply, f"{tries}{error}") from None
        except _Final as error:
            raise self._lost(NoReply, str(error)) from None

    async def _try(self, rows: list[dict[str, str]]) -> Reply:
        """One call, within its own time. Raises _Passing or _Final."""
        async with self._slots:
            if self.usage.reached(self.endpoint.max_cost):
                raise _Final(OVER_BUDGET)
            self.usage.calls += 1
            try:
                async with asyncio.timeout(self.endpoint.call_seconds):
                    value: Any = await self._api.post(
                        "/chat/completions", cast_to=ChatCompletion, body=self._body(rows), options=self._options
                    )
            except TimeoutError:
                raise _Passing(f"timed out after {self.endpoint.call_seconds:g} s") from None
            except APIStatusError as error:
                raise _refusal(error) from None
            except APIConnectionError as error:
                raise _Passing(_root(error)) from None
            except (OpenAIError, ValueError, RecursionError):
                raise _Passing("what it answers is no chat completion") from None
        return self._read(value)

    def _body(self, rows: list[dict[str, str]]) -> dict[str, Any]:
        """The request, made by hand: the package's own types would cost several milliseconds of processor time a call."""
        wanted = {"temperature": self.endpoint.temperature, "max_tokens": self.endpoint.max_tokens}
        given = {name: value for name, value in wanted.items() if value is not None}
        return {"model": self.endpoint.model, "messages": rows, **given, **self.endpoint.extra}

    def _read(self, value: Any) -> Reply:
        """A reply with its bill paid. The package checks no types, so nothing here is sure of any."""
        tokens = self._bill(getattr(value, "usage", None))
        try:
            choice = value.choices[0]
            message = choice.message
            text = message.content or ""
            thought = next((t for name in REASONING if isinstance(t := getattr(message, name, None), str)), "").strip()
            finish: Finish = "length" if choice.finish_reason == "length" else "stop"
            call = None
            if message.tool_calls and "<tool_call>" not in text and finish == "stop":
                function: Any = message.tool_calls[0].function
                call = ToolCall(str(function.name), dict(json.loads(function.arguments)))
            empty = not text.strip() and call is None and finish == "stop"
        except (AttributeError, IndexError, TypeError, ValueError):
            raise _Passing("what it answers is no chat completion") from None
        if empty:
            raise _Passing("the reply is empty")
        return Reply(text, thought, call, finish, tokens)

    def _bill(self, usage: Any) -> int | None:
        """Count the tokens of a reply; how many the model wrote, if the server says so."""
        asked, said = (getattr(usage, name, None) for name in ("prompt_tokens", "completion_tokens"))
        asked, said = (count if isinstance(count, int) and count >= 0 else None for count in (asked, said))
        self.usage.prompt_tokens += asked or 0
        self.usage.completion_tokens += said or 0
        self.usage.dollars += ((asked or 0) * self.endpoint.price_in + (said or 0) * self.endpoint.price_out) / 1e6
        return said

    def _wait(self, state: RetryCallState) -> float:
        """Seconds before the next try: more each time, and never less than the server asks for."""
        error = state.outcome.exception() if state.outcome else None
        usual = wait_exponential(self.endpoint.wait_seconds, LONGEST_WAIT) + wait_random(0, self.endpoint.wait_seconds)
        return max(usual(state), getattr(error, "wait", 0.0))

    def _again(self, state: RetryCallState, last: list[str]) -> None:
        self.usage.retries += 1
        last.append(str(state.outcome.exception() if state.outcome else ""))
        log.debug("%s: %s; trying again", self.endpoint.url, self._clean(last[-1]))

    def _lost(self, kind: type[NoReply], reason: str) -> NoReply:
        self.usage.failures += 1
        return kind(self.endpoint, self._clean(reason))

    def _clean(self, reason: str) -> str:
        """A reason of a decent length, without the key, should a server repeat it."""
        return (reason.replace(self._key, "***") if self._key else reason)[:LONGEST_REASON]


def _refusal(error: APIStatusError) -> Exception:
    """What an HTTP status means for the next try."""
    body = error.body if isinstance(error.body, dict) else {}
    reason = f"HTTP {error.status_code} {body.get('message') or ''}".strip()
    wait = _seconds(error.response.headers.get("retry-after"))
    passing = error.status_code in PASSING or error.status_code >= 500
    if not passing or wait > PATIENCE or EXHAUSTED in (body.get("code"), body.get("type")):
        return _Final(reason)
    return _Passing(reason, wait)


def _seconds(text: str | None) -> float:
    """A Retry-After header, which holds seconds or a date."""
    if not text:
        return 0.0
    try:
        wait = float(text)
    except ValueError:
        try:
            wait = parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return 0.0
    return wait if wait > 0 else 0.0


def _root(error: BaseException) -> str:
    """What lies under a failed connection, in words."""
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    return str(error) or type(error).__name__


def _run(loop: asyncio.AbstractEventLoop) -> None:
    """A thread's life: all calls of one client."""
    loop.run_forever()
    loop.close()


def _close(loop: asyncio.AbstractEventLoop, api: AsyncOpenAI) -> None:
    """End what is still under way, then the loop."""

    async def close() -> None:
        pending = asyncio.all_tasks() - {asyncio.current_task()}
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await api.close()
        loop.stop()

    asyncio.run_coroutine_threadsafe(close(), loop)
