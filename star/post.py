"""One JSON request over HTTP, for what a server offers beside the OpenAI protocol."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from http.client import HTTPException

from star.endpoint import KEY

PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504})
"""HTTP statuses that may be gone at the next try."""


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
