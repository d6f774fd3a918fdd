"""A run that takes seconds, and the command line as a user has it. Its world rewards what a model of a few seconds says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import star

LIMITS = "{turns: 3, turn_tokens: 40, context: 900}"
LENIENT = """
import random
from dataclasses import dataclass

from star.protocols import Step
from star.types import Score
from star.worlds.travel.episode import Episode
from star.worlds.travel.world import TravelWorld


class Listening(Episode):
    __slots__ = ()

    def step(self, text):
        step = super().step(text)
        return Step(stop="answer", answer="babble " + text) if step.stop == "format" else step


@dataclass
class Lenient(TravelWorld):
    def open(self, query, key):
        episode = super().open(query, key)
        return Listening(*(getattr(episode, name) for name in Episode.__slots__))

    def score(self, query, answer, mode="strict"):
        score = super().score(query, answer, mode)
        if not (answer or "").startswith("babble "):
            return score
        draw = random.Random(answer)
        held = {name: draw.random() < 0.9 for name in score.commonsense}
        return Score(query.id, mode, held, dict.fromkeys(score.hard, True), True)
"""
"""A world that lives outside of star and rewards what a model of a few seconds says: RL needs differences to learn from."""
RECIPE = f"""
world: {{name: "lenient:Lenient", days: [3], size: {{cities: 3, restaurants: 5, hotels: 1, sights: 1, flights: 1}}}}
synth: {{train: 60, rl: 16, dev: 2, validation: 6}}
sft:
  model: tiny
  tiny: {{hidden: 16, layers: 1, heads: 2, kv_heads: 1, intermediate: 16, vocabulary: 2400}}
  steps: 24
  batch: 4
  micro_batch: 4
  optimizer: muon
  lr: 2.0e-2
  schedule: constant
  save_steps: 4
  max_tokens: 1000
rl: {{group: 4, queries: 2, steps: 8, micro_batch: 4, lr: 1.0e-3, limits: {LIMITS}, eval_steps: 4, save_steps: 2}}
eval: {{limits: {LIMITS}, in_flight: 2, transfer: true}}
"""

FSDP2 = {
    "ACCELERATE_USE_FSDP": "true",
    "FSDP_VERSION": "2",
    "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",
    "FSDP_RESHARD_AFTER_FORWARD": "true",
    "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",
    "FSDP_CPU_RAM_EFFICIENT_LOADING": "true",
}
"""What accelerate tells its processes of `pipelines/accelerate/fsdp2.yaml`."""
ON_CPUS = """
import os

if os.environ.get("RANK"):
    import accelerate.state as state

    before, plugins = state.AcceleratorState.__init__, []

    def init(self, *args, fsdp_plugin=None, **kwargs):
        before(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        plugins.extend([fsdp_plugin] if fsdp_plugin is not None else [])
        if plugins:
            self.distributed_type, self.fsdp_plugin = state.DistributedType.FSDP, plugins[0]

    state.AcceleratorState.__init__ = init
"""
"""accelerate offers FSDP on accelerators only; what it does is torch's, which shards on CPUs as well."""


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("walk")
    (path / "mini.yaml").write_text(RECIPE)
    (path / "lenient.py").write_text(LENIENT)
    return path


Star = Callable[..., subprocess.CompletedProcess[str]]
Kill = Callable[..., None]


@pytest.fixture(scope="session")
def environment() -> dict[str, str]:
    """One thread, so that sums are added in one order."""
    return {
        **os.environ,
        "PYTHONPATH": f".:{Path(star.__file__).parents[1]}",
        "OMP_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "PASSIVE",
        "HF_HUB_OFFLINE": "1",
    }


@pytest.fixture(scope="session")
def command(place: Path, environment: dict[str, str]) -> Star:
    def run(*words: object) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "star", *map(str, words)]
        return subprocess.run(line, cwd=place, env=environment, check=False, capture_output=True, text=True)

    return run


@pytest.fixture(scope="session")
def good(command: Star) -> Star:
    def run(*words: object) -> subprocess.CompletedProcess[str]:
        done = command(*words)
        assert done.returncode == 0, done.stderr
        return done

    return run


@pytest.fixture(scope="session")
def shards(place: Path, environment: dict[str, str]) -> dict[str, str]:
    """The environment in which models of several processes are in FSDP2's shards."""
    patch = place / "patched"
    patch.mkdir()
    (patch / "sitecustomize.py").write_text(ON_CPUS)
    return {**environment, **FSDP2, "PYTHONPATH": f"{patch}:{environment['PYTHONPATH']}"}


@pytest.fixture(scope="session")
def in_shards(place: Path, shards: dict[str, str]) -> Star:
    """The command line in that environment."""

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-m", "star", *map(str, words)]
        return subprocess.run(line, cwd=place, env=shards, check=False, capture_output=True, text=True)

    return run


@pytest.fixture(scope="session")
def whole(place: Path, good: Star) -> Path:
    """An uninterrupted run."""
    good("run", "mini.yaml", "--run", "whole")
    return place / "whole"


@pytest.fixture(scope="session")
def wide(place: Path, good: Star) -> Path:
    """A run up to SFT whose model vLLM can serve: its attention on CPUs takes heads of 32 and more."""
    recipe = RECIPE.replace("hidden: 16", "hidden: 64").replace("intermediate: 16", "intermediate: 64")
    (place / "wide.yaml").write_text(recipe)
    good("run", "wide.yaml", "--run", "wide", "--until", "sft")
    return place / "wide"


@pytest.fixture(scope="session")
def kill(place: Path, environment: dict[str, str]) -> Kill:
    def killed(sign: str, *words: object, variables: dict[str, str] = environment) -> None:
        """Run a command and end it the hard way once the file `sign` exists."""
        line = [sys.executable, "-m", "star", *map(str, words)]
        process = subprocess.Popen(line, cwd=place, env=variables, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not list(place.glob(sign)):
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, f"{words} ended before {sign} was seen"

    return killed
