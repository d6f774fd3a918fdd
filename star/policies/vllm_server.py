"""vLLM behind HTTP, on this machine or another one.

Turns are sampled through /v1/completions: token ids go in and come out. Calls run in threads; what may pass (a busy or failing
server, a cut connection) is tried again after a growing wait. The server takes over weights from a directory that both sides
see, through the worker extension `star.policies.vllm.Worker`:

    VLLM_SERVER_DEV_MODE=1 vllm serve CHECKPOINT --host 127.0.0.1 --dtype float32 \
        --logprobs-mode processed_logprobs --worker-extension-cls star.policies.vllm.Worker

The development mode lets everyone who reaches the server command it: keep it on the loopback address or a private network.
"""

from __future__ import annotations

import concurrent.futures as futures
import json
import random
import tempfile
import time
import urllib.error
from collections.abc import Iterable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from star.errors import StarError
from star.policies.engine import FINISH, Request, Sampled
from star.post import PASSING, post, refusal

START = (
    "Start it with VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls star.policies.vllm.Worker, star installed beside it; "
    "or sample with rollouts: hf or vllm"
)
"""What to do about a server that takes no weights."""
LONGEST_WAIT = 60.0
"""Seconds between two tries at most."""


class ServerEngine:
    """A vLLM server that serves one model, whatever its weights are at the moment."""

    def __init__(
        self, bf16: bool, context: int, *, url: str, likeliest: int, concurrency: int, directory: str, **calls: float
    ) -> None:
        """`url` is the root of the server; weights are handed over in `directory`, or, where it is empty, a temporary one.
        `calls` are tries, call_seconds (how long the server may be silent) and wait_seconds (before the second try)."""
        self._url, self._likeliest, self._directory = url, likeliest, directory
        self._wanted = {"dtype": "bfloat16" if bf16 else "float32", "logprobs_mode": "processed_logprobs"}
        self._context = context
        self._tries, self._call_seconds, self._wait_seconds = int(calls["tries"]), calls["call_seconds"], calls["wait_seconds"]
        self._pool = futures.ThreadPoolExecutor(concurrency, thread_name_prefix="vllm")
        self._calls: dict[futures.Future[Sampled], str] = {}

    def submit(self, request: Request) -> None:
        self._calls[self._pool.submit(self._answer, request)] = request.key

    def wait(self) -> dict[str, Sampled]:
        done, _ = futures.wait(self._calls, return_when=futures.FIRST_COMPLETED)
        try:
            return {self._calls.pop(call): call.result() for call in done}
        except StarError:
            for call in self._calls:
                call.cancel()
            self._calls.clear()
            raise

    def update(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        with tempfile.TemporaryDirectory(prefix="weights-", dir=self._directory or None) as directory:
            save_file({name: tensor.cpu().contiguous() for name, tensor in weights}, Path(directory) / "model.safetensors")
            Path(directory).chmod(0o755)  # the server may run as another user
            self.load(directory)

    def load(self, directory: str) -> None:
        """Have the server take over the weights of a model directory."""
        try:
            reply = self._ask("/collective_rpc", {"method": "star_load", "args": [str(Path(directory).resolve())]})
            said = dict(reply["results"][0])
            fresh = self._ask("/reset_prefix_cache", {})["success"]
        except urllib.error.HTTPError as error:
            reason = refusal(error)
            foreign = error.code == 404 or "star_load" in reason
            fix = START if foreign else f"The server must see {directory}: set rollouts.directory to a directory of both sides"
            raise StarError(f"{self._url}: the server takes no weights (HTTP {error.code} {reason})", fix) from None
        except (KeyError, IndexError, TypeError, ValueError):
            raise StarError(f"{self._url}: the server takes no weights", START) from None
        if not fresh:
            raise StarError(f"{self._url}: the server keeps what it cached under the old weights", "Let it serve this run alone")
        self._check(said)

    def _check(self, said: Mapping[str, Any]) -> None:
        """Refuse a server whose log-probabilities are not those that training compares with."""
        for name, wanted in self._wanted.items():
            if said[name] != wanted:
                flag = f"--{name.replace('_', '-')} {wanted}"
                raise StarError(f"{self._url}: the server samples with {name} {said[name]}", f"Start it with {flag}")
        if said["max_model_len"] < self._context:
            what = f"{self._url}: the server reads at most {said['max_model_len']} tokens, limits.context is {self._context}"
            raise StarError(what, f"Start it with --max-model-len {self._context}, or lower limits.context")

    def rest(self) -> None:
        """The server's memory is its own."""

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _answer(self, request: Request) -> Sampled:
        body = {
            "prompt": request.ids,
            "max_tokens": request.limit,
            "stop_token_ids": [request.end],
            "ignore_eos": True,  # the end of a turn is the renderer's alone
            "temperature": request.temperature,
            "top_p": request.top_p,
            "seed": request.seed,
            "logprobs": self._likeliest,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,  # else ids of equal text would share a place
            # What a model's own generation settings would change unasked:
            "top_k": 0,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }
        try:
            return _sampled(self._ask("/v1/completions", body, PASSING), self._likeliest)
        except urllib.error.HTTPError as error:
            fix = "Correct limits or rollouts, or start the server with other settings"
            raise StarError(f"{self._url} refuses a turn (HTTP {error.code} {refusal(error)})", fix) from None
        except (KeyError, IndexError, TypeError, ValueError):
            fix = "It takes vLLM 0.32, whose completions return token ids"
            raise StarError(f"{self._url}: the answer is no whole turn of token ids with log-probabilities", fix) from None

    def _ask(self, path: str, body: Mapping[str, Any], passing: frozenset[int] = frozenset()) -> Any:
        """The JSON value that the server answers. Raises HTTPError for a status that is not among the `passing`, StarError if
        no try had an answer."""
        data, reason = json.dumps(body).encode(), ""
        for tried in range(self._tries):
            if tried:
                time.sleep(min(LONGEST_WAIT, self._wait_seconds * 2 ** (tried - 1) * random.uniform(0.5, 1.5)))
            try:
                return json.loads(post(self._url + path, data, self._call_seconds) or b"null")
            except urllib.error.HTTPError as error:
                if error.code not in passing:
                    raise
                reason = f"HTTP {error.code} {refusal(error)}"
            except (OSError, HTTPException) as error:
                reason = str(getattr(error, "reason", error)) or type(error).__name__
        raise StarError(f"{self._url} does not answer: {reason} ({self._tries} tries)", "Start it, then run the command again")


def _sampled(reply: Any, likeliest: int) -> Sampled:
    """The one choice of a completion. Raises KeyError, IndexError, TypeError or ValueError if it lacks something."""
    choice = reply["choices"][0]
    found = choice["logprobs"]
    ids, logprobs = tuple(map(int, choice["token_ids"])), tuple(map(float, found["token_logprobs"]))
    # The sampled id stands among the likeliest, even where it is none of them.
    rows = tuple(tuple(sorted(map(float, row.values()), reverse=True)[:likeliest]) for row in found["top_logprobs"])
    if not len(ids) == len(logprobs) == len(rows):
        raise ValueError("ids and log-probabilities do not match")
    return Sampled(ids, logprobs, rows, FINISH[choice["finish_reason"]])
