"""What samples the turns of a model: transformers, vLLM in this process, or a vLLM server (`rl.rollouts`, `eval.rollouts`).

The classes of the plugin table hold settings only. What a sampler needs is imported when it opens a model, since each needs
other packages.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from star.errors import StarError
from star.plugins import build, load, need
from star.policies.drawing import Draws, Tokens
from star.policies.engine import Engine, EnginePolicy
from star.protocols import Policy
from star.train.ranks import rank


@dataclass(frozen=True)
class Source:
    """The model that is sampled from."""

    path: str
    """Its checkpoint: a directory, or a name on the hub."""
    renderer: Tokens
    vocabulary: int
    """Ids the model knows."""
    context: int
    """Tokens of the longest conversation."""
    model: Callable[[], Any]
    """The model in this process; in training it is the one that learns."""
    bf16: bool = False
    """Sample in bfloat16, whatever the weights are kept in."""


class Sampler(Protocol):
    """Gives out policies over one model."""

    def policy(self, draws: Draws) -> Policy: ...

    def update(self, weights: Iterable[tuple[str, Any]]) -> None:
        """Sample from these weights from now on. No turn is under way."""

    def rest(self) -> None:
        """Leave the memory of the device to training until the next update."""

    def close(self) -> None:
        """Free everything; its policies sample no more, and the process may have lost its connection to others."""


@dataclass
class Own:
    """Samples from the model in this process, whose weights are the latest by themselves."""

    source: Source

    def policy(self, draws: Draws) -> Policy:
        policy: Policy = load("star.policies.hf:HFPolicy")(self._model, self.source.renderer, draws, self.source.bf16)
        return policy

    @cached_property
    def _model(self) -> Any:
        return self.source.model()

    def update(self, weights: Iterable[tuple[str, Any]]) -> None:
        """There is nothing to take over."""

    def rest(self) -> None:
        """The model stays where it is trained."""

    def close(self) -> None:
        """The model is the trainer's."""


@dataclass
class Copied:
    """Samples from an engine that has a copy of the model."""

    source: Source
    engine: Engine

    def policy(self, draws: Draws) -> Policy:
        return EnginePolicy(self.engine, self.source.renderer, self.source.vocabulary, draws)

    def update(self, weights: Iterable[tuple[str, Any]]) -> None:
        self.engine.update((name, tensor.bfloat16() if self.source.bf16 else tensor) for name, tensor in weights)

    def rest(self) -> None:
        self.engine.rest()

    def close(self) -> None:
        self.engine.close()


@dataclass
class Shared(Copied):
    """Samples from an engine that all processes ask. It takes over weights from the first of them, for all."""

    def update(self, weights: Iterable[tuple[str, Any]]) -> None:
        if rank() == 0:
            super().update(weights)


def check(spec: Mapping[str, Any], who: str, sharded: bool = False) -> None:
    """Raises StarError for a sampler that cannot work here. `sharded`: no process holds the whole model in training."""
    plugin = build("sampler", spec)
    if sharded and isinstance(plugin, HF):
        # Its layers gather their weights together, so processes that sample unequally often would wait for each other.
        fix = "Set rl.rollouts to vllm, or start a vLLM server and set it to vllm_server"
        raise StarError(f"{who}: hf cannot sample from a model that is in shards over the processes", fix)
    if isinstance(plugin, VLLM):
        need("vllm", f"{who}: vllm")


@dataclass
class HF:
    """transformers, in this process."""

    def open(self, source: Source) -> Sampler:
        return Own(source)


@dataclass
class VLLM:
    """vLLM in each process that trains, on the same device."""

    _: KW_ONLY
    kv_cache_gib: float = 4.0
    """Memory for keys and values."""
    likeliest: int = 20
    """Ids whose log-probabilities an entropy is made of: a lower bound. Compare only entropies of the same number."""

    def __post_init__(self) -> None:
        if self.kv_cache_gib <= 0 or self.likeliest < 1:
            raise ValueError("kv_cache_gib and likeliest are positive")

    def open(self, source: Source) -> Sampler:
        """Raises StarError if vllm is missing or does not take the model."""
        path = _whole(source)
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        engine = load("star.policies.vllm:LocalEngine")(
            path, bf16=source.bf16, context=source.context, likeliest=self.likeliest, kv_cache_gib=self.kv_cache_gib
        )
        return Copied(source, engine)


@dataclass
class VLLMServer:
    """A vLLM server that takes over weights; `star.policies.vllm_server` says how to start it."""

    _: KW_ONLY
    url: str = "http://127.0.0.1:8000"
    """Root of the server. A key comes from OPENAI_API_KEY."""
    directory: str = ""
    """Where weights are handed over; the server must see it. Empty: a temporary directory of this machine."""
    likeliest: int = 20
    """As for vllm; at most what the server allows (--max-logprobs, 20)."""
    concurrency: int = 256
    """Turns under way at a time."""
    call_seconds: float = 600.0
    """How long the server may be silent."""
    tries: int = 6
    wait_seconds: float = 1.0
    """Before the second try, give or take a half; doubled before each further one."""

    def __post_init__(self) -> None:
        self.url = self.url.rstrip("/").removesuffix("/v1")
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"url {self.url!r} is no address of a server, such as http://127.0.0.1:8000")
        if min(self.likeliest, self.concurrency, self.call_seconds, self.tries) <= 0 or self.wait_seconds < 0:
            raise ValueError("likeliest, concurrency, call_seconds and tries are positive, wait_seconds is not negative")

    def open(self, source: Source) -> Sampler:
        """Raises StarError if the server does not answer, cannot take weights, or samples otherwise than training does."""
        path = _whole(source)
        if not Path(path).is_dir():
            raise StarError(f"rollouts: {path!r} is no directory, and a server takes weights from one only", "Download the model")
        engine = load("star.policies.vllm_server:ServerEngine")(source.bf16, source.context, **vars(self))
        if rank() == 0:
            engine.load(path)
        return Shared(source, engine)


def _whole(source: Source) -> str:
    """The path of a checkpoint that stands alone."""
    if (Path(source.path) / "adapter_config.json").is_file():
        raise StarError(f"{source.path} holds an adapter without its model", "Merge it, or sample with rollouts: hf")
    return source.path
