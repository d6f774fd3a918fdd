"""RL whose model lies in shards over two processes and whose rollouts come from one vLLM server. If this breaks, large models
cannot be trained: the server's weights are old, or one process's rollouts are another's."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.walk,
    pytest.mark.vllm,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM: make test-vllm"),
]
Star = Callable[..., subprocess.CompletedProcess[str]]
Serve = Callable[[Path, int], AbstractContextManager[str]]


def steps(run: Path) -> list[dict[str, Any]]:
    return [row for row in json.loads((run / "rl" / "log.json").read_text())["steps"] if "grad_norm" in row]


def test_shards_and_whole_models_share_a_server(place: Path, wide: Path, good: Star, in_shards: Star, vllm_server: Serve) -> None:
    """The server begins with the untrained weights, so that only what it is handed can agree."""
    with vllm_server(wide / "sft" / "base", 900) as url:
        sampler = ("--set", f'rl.rollouts={{name: vllm_server, url: "{url}"}}')
        words = ("-r", "wide.yaml", "--from", "wide", *sampler, "--set", "rl.steps=3", "--set", "rl.eval_steps=2")
        good("rl", *words, "--run", "wide-two", "--processes", "2")
        done = in_shards("rl", *words, "--run", "wide-shards", "--processes", "2")
    assert done.returncode == 0 and "its parameters are sharded" in done.stderr, done.stderr
    whole, shards = steps(place / "wide-two"), steps(place / "wide-shards")
    assert len(whole) == len(shards) == 3
    for one, other in zip(whole, shards, strict=True):
        assert max(row["sampling/logprob_gap_max"] for row in (one, other)) < 1e-3
        assert one["grad_norm"] > 0 and other["grad_norm"] == pytest.approx(one["grad_norm"], rel=1e-3)
        assert other["reward"] == pytest.approx(one["reward"], rel=1e-5)


def test_each_process_has_an_engine_of_its_own(place: Path, wide: Path, good: Star, in_shards: Star) -> None:
    """vLLM in the processes that train takes over whole weights, and those that lie in shards, and samples what a server does."""
    sampler = ("--set", "rl.rollouts={name: vllm, kv_cache_gib: 0.1}")
    words = ("rl", "-r", "wide.yaml", "--from", "wide", *sampler, "--set", "rl.steps=3", "--set", "rl.eval_steps=2")
    good(*words, "--run", "inside-one")
    good(*words, "--run", "inside-two", "--processes", "2")
    done = in_shards(*words, "--run", "inside-shards", "--processes", "2")
    assert done.returncode == 0 and "its parameters are sharded" in done.stderr, done.stderr
    one, whole, shards = (steps(place / name) for name in ("inside-one", "inside-two", "inside-shards"))
    assert len(one) == len(whole) == len(shards) == 3
    for rows in zip(one, whole, shards, strict=True):
        assert max(row["sampling/logprob_gap_max"] for row in rows) < 1e-3
        assert rows[0]["grad_norm"] > 0
        for row in rows[1:]:
            assert row["grad_norm"] == pytest.approx(rows[0]["grad_norm"], rel=1e-3)
            assert row["reward"] == pytest.approx(rows[0]["reward"], rel=1e-5)
