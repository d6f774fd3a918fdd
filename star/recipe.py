"""The recipe of a run: every setting, declared once, with its unit and its default."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from star.types import Mode

Spec = dict[str, Any]
"""A plugin and its own settings: {"name": "arpo", "beta": 0.2}."""


@dataclass(frozen=True, slots=True)
class Synth:
    """Query counts of each split, and the teacher that plays the training queries."""

    train: int = 600
    """Queries for SFT trajectories."""
    rl: int = 256
    """Queries for RL, disjoint from the others."""
    dev: int = 64
    """Queries on which RL picks its best checkpoint."""
    validation: int = 256
    """Held-out queries of `star eval --split validation`."""
    teacher: Spec = field(default_factory=lambda: {"name": "expert"})
    mode: Mode = "strict"
    """Judge mode that a trajectory must pass to be kept."""


@dataclass(frozen=True, slots=True)
class Lora:
    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: list[str] | Literal["all-linear"] = "all-linear"


@dataclass(frozen=True, slots=True)
class Tiny:
    """Size of the embedded Qwen2 that is trained from random weights (`sft.model: tiny`)."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 320
    vocabulary: int = 2000
    """At most this many tokens."""


@dataclass(frozen=True, slots=True)
class Sft:
    model: str = "tiny"
    """"tiny" for the embedded model, else a model directory or a name on the Hugging Face Hub."""
    tiny: Tiny = field(default_factory=Tiny)
    lora: Lora | None = None
    """None trains all weights."""
    epochs: float = 4.0
    steps: int | None = None
    """Optimizer steps; overrides `epochs`."""
    batch: int = 32
    """Conversations per optimizer step over all processes."""
    micro_batch: int = 8
    """Conversations per forward pass and process."""
    lr: float = 5e-6
    optimizer: Literal["adamw", "muon"] = "adamw"
    """"muon": Muon on hidden matrices, AdamW on the rest."""
    muon_lr: float = 0.02
    schedule: Literal["cosine", "linear", "constant", "warmup_stable_decay"] = "cosine"
    warmup: float = 0.1
    """Share of the steps."""
    decay: float = 0.5
    """Share of the steps in which warmup_stable_decay decays."""
    weight_decay: float = 0.0
    clip: float = 1.0
    max_tokens: int = 20480
    """Longer conversations are dropped and counted, never cut."""
    bf16: bool = False
    gradient_checkpointing: bool = False
    save_steps: int = 100


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a rollout ends."""

    turns: int = 60
    turn_tokens: int = 4096
    """Sampled tokens in one turn."""
    context: int = 32768
    """Tokens of the whole conversation."""


@dataclass(frozen=True, slots=True)
class Rl:
    algo: Spec = field(default_factory=lambda: {"name": "grpo"})
    reward: Spec = field(default_factory=lambda: {"name": "sum"})
    mode: Mode = "strict"
    """Judge mode of the reward."""
    group: int = 8
    """Rollouts per query (M)."""
    queries: int = 32
    """Queries per optimizer step, over all processes."""
    epochs: float = 5.0
    steps: int | None = None
    """Optimizer steps; overrides `epochs`."""
    updates: int = 1
    """Optimizer steps per batch of rollouts."""
    micro_batch: int = 8
    """Rollouts per forward pass and process."""
    lr: float = 2e-6
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: float = 0.0
    clip: float = 1.0
    kl: float = 0.0
    temperature: float = 1.0
    lora: Lora | None = None
    limits: Limits = field(default_factory=lambda: Limits(context=30720))
    eval_steps: int = 10
    """Every so many steps the dev queries are played greedily; the best checkpoint is kept. 0 keeps the last."""
    save_steps: int = 10
    bf16: bool = False
    gradient_checkpointing: bool = False


@dataclass(frozen=True, slots=True)
class Eval:
    mode: Mode = "strict"
    temperature: float = 1.0
    """Of the sampled pass; the greedy pass is at 0."""
    top_p: float = 1.0
    limits: Limits = field(default_factory=Limits)
    batch: int = 128
    """Episodes in flight."""
    transfer: bool = False
    """Also measure success with tools that answer from a world of another seed, and with tools switched off."""


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str = "run"
    seed: int = 0
    world: Spec = field(default_factory=lambda: {"name": "travel"})
    synth: Synth = field(default_factory=Synth)
    sft: Sft = field(default_factory=Sft)
    rl: Rl = field(default_factory=Rl)
    eval: Eval = field(default_factory=Eval)
