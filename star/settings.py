"""Every setting of a recipe, declared once, with its unit and its default."""

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
    samples: int = 1
    """Tries at each query; the best is kept: accepted by the judge, then the shortest."""
    max_queries: int | None = None
    """Play only so many of the training queries."""
    mode: Mode = "strict"
    """Judge mode that a trajectory must pass to be kept."""


@dataclass(frozen=True, slots=True)
class Lora:
    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: list[str] | Literal["all-linear"] = "all-linear"


@dataclass(frozen=True, slots=True)
class Launch:
    """The processes of a training. Batches are counted over all of them."""

    processes: int | None = None
    """None: one a CUDA device, and one where there is none."""
    accelerate: str | None = None
    """A configuration of accelerate: ddp, fsdp2 or zero3, or the path of a file; None: plain data parallelism."""


@dataclass(frozen=True, slots=True)
class Tiny:
    """Size of the embedded Qwen2 that is trained from random weights (`sft.model: tiny`)."""

    hidden: int = 128
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    intermediate: int = 320
    vocabulary: int = 2400
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
    """Compute in bfloat16. Weights that are trained are kept in float32, and the checkpoint that is left is bfloat16."""
    gradient_checkpointing: bool = False
    save_steps: int = 100
    launch: Launch = field(default_factory=Launch)


@dataclass(frozen=True, slots=True)
class Limits:
    """Where a rollout ends."""

    turns: int = 60
    turn_tokens: int = 4096
    """Sampled tokens in one turn."""
    context: int = 32768
    """Tokens of the whole conversation."""
    tool_seconds: float = 60.0
    """A tool that takes longer ends its rollout, as an error."""


@dataclass(frozen=True, slots=True)
class Rl:
    algo: Spec = field(default_factory=lambda: {"name": "grpo"})
    reward: Spec = field(default_factory=lambda: {"name": "sum"})
    mode: Mode = "strict"
    """Judge mode of the reward."""
    group: int = 8
    """Rollouts per query (M)."""
    queries: int = 32
    """Queries per batch of rollouts, over all processes."""
    epochs: float = 5.0
    steps: int | None = None
    """Optimizer steps; overrides `epochs`."""
    updates: int = 1
    """Optimizer steps that a batch of rollouts is split into."""
    micro_batch: int = 8
    """Rollouts per forward pass and process."""
    trie: Literal["auto", "off"] = "auto"
    """"auto" computes what rollouts of a forward pass share only once, where that pays and the model allows it. The loss and its
    gradient are the same; groups then stay together in forward passes and in the optimizer steps of `updates`."""
    lr: float = 2e-6
    optimizer: Literal["adamw", "muon"] = "adamw"
    """As `sft.optimizer`."""
    muon_lr: float = 1e-3
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    warmup: float = 0.0
    clip: float = 1.0
    freeze_embeddings: bool = False
    """Train all but the token embeddings (and the head, where it is tied to them). Adam moves the rows of tokens that hardly
    occur as far as any other; in a small model with a large vocabulary that is noise."""
    kl: float = 0.0
    temperature: float = 1.0
    lora: Lora | None = None
    limits: Limits = field(default_factory=lambda: Limits(context=30720))
    mask: list[Literal["turns", "tokens"]] = field(default_factory=lambda: ["turns", "tokens"])
    """Stops whose rollouts leave the loss and stay in the baseline of their group: STAR masks both limits. A model that runs in
    circles learns from `turns` only while that is not masked."""
    rollouts: Spec = field(default_factory=lambda: {"name": "hf"})
    """What samples the turns: hf (transformers), vllm (in each process) or vllm_server (see `star.train.samplers`)."""
    in_flight: int = 256
    """Rollouts sampled at a time, in whole groups."""
    eval_steps: int = 10
    """Every so many steps the dev queries are played greedily; the best checkpoint is kept. 0 keeps the last."""
    save_steps: int = 10
    max_gap: float = 0.1
    """Mean distance of the sampler's and the trainer's log-probabilities a token at which RL stops: beyond it the rollouts are
    not the policy's own. In float32 it is about 1e-6, in bfloat16 about 1e-2."""
    patience: int = 20
    """Batches in a row without a group of different rewards at which RL stops: it would learn nothing."""
    report_to: list[Literal["tensorboard", "wandb", "trackio"]] = field(default_factory=list)
    """Trackers that get every figure as well; each must be installed."""
    bf16: bool = False
    """Compute in bfloat16. Weights that are trained are kept in float32, and the checkpoint that is left is bfloat16."""
    gradient_checkpointing: bool = False
    tool_failure_rate: float | None = None
    """Share of tool calls that fail while RL plays (STAR, environment stability); None: that of the world."""
    probe: int = 0
    """Rollouts of each query before training; what is solved always or never (see `drop`) is left out. 0 trains on all."""
    drop: list[Literal["always", "never"]] = field(default_factory=lambda: ["always", "never"])
    """Which queries the probe leaves out."""
    recorded: str | None = None
    """A file of rollouts to train on instead of playing: the `groups.jsonl` of `star rl --rollouts-only`."""
    launch: Launch = field(default_factory=Launch)


@dataclass(frozen=True, slots=True)
class Eval:
    mode: Mode = "strict"
    temperature: float = 1.0
    """Of the sampled pass; the greedy pass is at 0."""
    top_p: float = 1.0
    limits: Limits = field(default_factory=Limits)
    rollouts: Spec = field(default_factory=lambda: {"name": "hf"})
    in_flight: int = 128
    """Episodes sampled at a time."""
    bf16: bool = False
    """Load and compute in bfloat16."""
    transfer: bool = False
    """Also measure what a trained checkpoint does in a world of another seed, and with tools switched off."""


@dataclass(frozen=True, slots=True)
class Recipe:
    name: str = "run"
    seed: int = 0
    world: Spec = field(default_factory=lambda: {"name": "travel"})
    synth: Synth = field(default_factory=Synth)
    sft: Sft = field(default_factory=Sft)
    rl: Rl = field(default_factory=Rl)
    eval: Eval = field(default_factory=Eval)
