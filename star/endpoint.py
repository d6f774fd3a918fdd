"""A model on a server, as settings: where it is, how it is asked, what it costs. Loads no client."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from star.errors import StarError, UsageError

KEY, URL = "OPENAI_API_KEY", "OPENAI_BASE_URL"
OVER_BUDGET = "the budget is spent"
"""Error of a call that was not made since `max_cost` was reached."""


@dataclass(slots=True)
class Usage:
    """What has been used, over all processes that worked at one stage."""

    calls: int = 0
    retries: int = 0
    failures: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    dollars: float = 0.0

    def reached(self, limit: float | None) -> bool:
        """Whether a budget in dollars is used up."""
        return limit is not None and self.dollars >= limit


@dataclass
class Endpoint:
    """A model behind any OpenAI-compatible server. The key comes from OPENAI_API_KEY and is written nowhere."""

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
    """Calls in flight at most."""
    call_seconds: float = 300.0
    """How long one try may take."""
    tries: int = 6
    wait_seconds: float = 1.0
    """Before the second try; doubled before each further one, and up to as much again by chance."""
    price_in: float = 0.0
    """US dollars for a million prompt tokens."""
    price_out: float = 0.0
    max_cost: float | None = None
    """US dollars after which no further call is made."""

    def __post_init__(self) -> None:
        self.url = (self.url or os.environ.get(URL, "")).rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"{self.url or 'no url'}: is no address of a server", f"Give http://HOST:PORT/v1, or set {URL}")
        if min(self.concurrency, self.tries, self.call_seconds) <= 0 or self.wait_seconds < 0:
            raise UsageError(f"{self.url}: concurrency, tries and call_seconds must be positive", "Correct the setting")
        if self.max_cost is not None and not self.price_in + self.price_out > 0:
            raise UsageError("max_cost has no effect without price_in and price_out", "Give dollars for a million tokens")


class NoReply(StarError):
    """The server gave no reply, for good; `reason` says why, in words without the key."""

    def __init__(self, endpoint: Endpoint, reason: str) -> None:
        what = f"{endpoint.url}: no reply of {endpoint.model} ({reason})"
        super().__init__(what, f"Check the server, the model and {KEY}")
        self.reason = reason


class OutOfTime(NoReply):
    """The deadline passed first."""
