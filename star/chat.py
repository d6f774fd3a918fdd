"""One question to a model behind any OpenAI-compatible server, over the standard library's HTTP client."""

from __future__ import annotations

import json
import logging
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any

from star.errors import StarError, UsageError

log = logging.getLogger(__name__)

PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""HTTP statuses that may be gone at the next try."""
KEY = "OPENAI_API_KEY"


@dataclass(frozen=True, slots=True)
class Chat:
    """A model on a server. The key comes from the environment and is written nowhere."""

    url: str
    """Base of the API, such as http://localhost:8000/v1."""
    model: str
    temperature: float = 0.0
    timeout_seconds: float = 120.0
    tries: int = 4
    wait_seconds: float = 1.0
    """Before the second try; doubled before each further one."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise UsageError(f"{self.url}: is no address of a server", "Give one such as http://localhost:8000/v1")

    def ask(self, system: str, user: str) -> str:
        """The model's reply. Raises StarError if the server cannot give one."""
        messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
        body = json.dumps({"model": self.model, "messages": messages, "temperature": self.temperature}).encode()
        for tried in range(1, self.tries + 1):
            try:
                return self._reply(post(f"{self.url.rstrip('/')}/chat/completions", body, self.timeout_seconds))
            except urllib.error.HTTPError as error:
                reason, passing = f"HTTP {error.code} {refusal(error)}".strip(), error.code in PASSING
            except (OSError, HTTPException) as error:
                reason, passing = str(getattr(error, "reason", error)) or type(error).__name__, True
            if not passing or tried == self.tries:
                break
            log.info("%s: %s; trying again", self.url, reason)
            time.sleep(self.wait_seconds * 2 ** (tried - 1))
        raise StarError(f"{self.url}: no reply of {self.model} ({reason})", f"Check the server, the model and {KEY}")

    def _reply(self, data: bytes) -> str:
        try:
            value: Any = json.loads(data)
            content = value["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError):
            content = None
        if not isinstance(content, str):
            raise StarError(f"{self.url}: what it answers is no chat completion", "Give the base of an OpenAI-compatible API")
        return content


def post(address: str, body: bytes, seconds: float) -> bytes:
    """What a server answers to JSON; `seconds` is how long it may be silent.

    `address` is one of http or https. Raises urllib.error.HTTPError for a refusal, OSError or HTTPException for a connection
    that fails.
    """
    headers = {"Content-Type": "application/json"}
    if os.environ.get(KEY):
        headers["Authorization"] = f"Bearer {os.environ[KEY]}"
    request = urllib.request.Request(address, body, headers)  # noqa: S310  # the scheme was checked
    with urllib.request.urlopen(request, timeout=seconds) as response:  # noqa: S310
        data: bytes = response.read()
    return data


def refusal(error: urllib.error.HTTPError) -> str:
    """What the server says about a refusal."""
    try:
        value = json.loads(error.read())
        return str(value["error"]["message"])[:200]
    except (OSError, HTTPException, ValueError, KeyError, TypeError):
        return str(error.reason)
