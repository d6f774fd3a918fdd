"""RL: a thin subclass of trl.GRPOTrainer that plays groups through THE rollout loop.

TRL keeps the loss, the group baseline and the optimisation; ours are the rollouts, the masks (tool tokens and, by default,
rollouts that ran into a limit leave the loss), the reward weights of the moment, and per-token advantages where an algorithm
asks for them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, Trainer
from trl import GRPOTrainer

from star import plugins
from star.policies.drawing import Draws
from star.protocols import Algorithm, Policy, Reward, World
from star.rewards import COMPONENTS, components, value
from star.rollout import Rollout
from star.settings import Rl
from star.train import model as models
from star.train import samplers, telemetry, together
from star.train.arguments import config, steps
from star.train.credit import segment_ids, shared_mean
from star.train.optimizer import muon
from star.train.order import EpochSampler
from star.train.playing import Groups, GroupSource, Live, Recorded
from star.train.samplers import Sampler, Source
from star.train.scoring import compact, token_scores
from star.train.together import gathered
from star.train.tokens import Flat, Renderer
from star.train.trie import regrouped
from star.train.trie_scoring import Tries
from star.types import Query, Score, Trajectory

NARROW = ("prompt_ids", "prompt_mask")
WIDE = (
    "completion_ids",
    "completion_mask",
    "tool_mask",
    "sampling_per_token_logps",
    "old_per_token_logps",
    "ref_per_token_logps",
    "advantages",
)
"""Rows of a batch that are padded on the left, and on the right."""


@dataclass(frozen=True)
class Setup:
    """What RL needs beside the model."""

    settings: Rl
    world: World
    judge: Callable[[Query, str | None], Score]
    algorithm: Algorithm
    reward: Reward
    renderer: Renderer
    queries: Sequence[Query]
    seed: int
    recorded: Recorded | None = None
    """Groups to train on instead of playing `queries`."""
    checkpoint: str = ""
    """Where the model comes from; samplers that have a copy of it open it there."""
    title: str | None = None
    """The name of the run for trackers."""


def component(name: str) -> Callable[..., list[float]]:
    """A TRL reward function for one component of the score."""

    def reward(trajectory: Sequence[Trajectory], **_: Any) -> list[float]:
        return [components(row.score if row.stop == "answer" else None)[name] for row in trajectory]

    reward.__name__ = name
    return reward


def overlong(algorithm: Algorithm) -> Callable[..., list[float]]:
    """A TRL reward function: what the algorithm takes from each rollout for its length."""

    def overlong(trajectory: Sequence[Trajectory], **_: Any) -> list[float]:
        return [_penalty(algorithm, row) for row in trajectory]

    return overlong


def _penalty(algorithm: Algorithm, row: Trajectory) -> float:
    penalty: Callable[[int], float] | None = getattr(algorithm, "penalty", None)
    return penalty(sum(len(turn.completion.token_ids) for turn in row.turns)) if penalty else 0.0


class StarGRPOTrainer(GRPOTrainer):
    """GRPOTrainer whose rollouts come from a world."""

    def __init__(self, model: Any, setup: Setup, directory: Path, **kwargs: Any) -> None:
        self.setup = setup
        self.source: GroupSource = setup.recorded or self._live()
        self._asked: list[int] = []
        self._segments: list[list[int]] = []
        self._looked_at: torch.Tensor | None = None
        self._scored: torch.Tensor | None = None
        self._tries = Tries(setup.settings.trie == "auto")
        self._step_context = ExitStack()
        self._generating = self._updating = 0.0
        self._buffered_inputs: list[dict[str, Any]] | None = None
        self.kept: list[dict[str, Any]] = []
        """Best and worst trajectory of each batch of rollouts since the last time they were taken."""
        os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")  # rollout_func is pinned by the version range
        super().__init__(
            model=model,
            args=config(setup.settings, setup.algorithm, len(self.source), setup.seed, directory, setup.title),
            reward_funcs=[*(component(name) for name in COMPONENTS), overlong(setup.algorithm)],
            train_dataset=_dataset(self.source),
            processing_class=setup.renderer.tokenizer,
            rollout_func=_play,
            **kwargs,
        )
        self.remove_callback(PrinterCallback)
        together.check(self.accelerator)
        self._check_groups()

    def _check_groups(self) -> None:
        local = self.args.per_device_train_batch_size * self.args.steps_per_generation
        if local % self.num_generations:
            raise ValueError(f"{local} rollouts a process do not hold whole groups of {self.num_generations}")

    def create_optimizer(self, model: Any = None) -> Any:
        rl = self.setup.settings
        if rl.optimizer == "adamw" or self.optimizer is not None:
            return super().create_optimizer(model)
        self.optimizer: Any = muon(self.model, self.accelerator, muon_lr=rl.muon_lr, lr=rl.lr, weight_decay=0.0)
        return self.optimizer

    def _get_train_sampler(self, dataset: Dataset | None = None) -> EpochSampler:
        return EpochSampler(
            data_source=self.train_dataset if dataset is None else dataset,
            mini_repeat_count=self.num_generations,
            batch_size=self.args.generation_batch_size // self.num_generations,
            repeat_count=self.num_iterations * self.args.steps_per_generation,
            seed=self.args.seed,
        )

    @property
    def progress(self) -> float:
        """Share of training that is done, 0-1: a pure function of the step."""
        return self.state.global_step / max(1, self.state.max_steps)

    @cached_property
    def sampler(self) -> Sampler:
        """What samples rollouts; opened when the first are asked for."""
        s, model = self.setup, self.accelerator.unwrap_model(self.model)
        spec = s.settings.rollouts
        samplers.check(spec, "rl.rollouts", together.sharded(self.accelerator))
        vocabulary = model.config.get_text_config().vocab_size
        context = s.settings.limits.context
        source = Source(s.checkpoint, s.renderer, vocabulary, context, lambda: model, s.settings.bf16)
        sampler: Sampler = plugins.build("sampler", spec).open(source)
        return sampler

    def close(self) -> None:
        """Let go of what sampled rollouts."""
        if "sampler" in vars(self):
            self.sampler.close()

    def rest(self) -> None:
        """Leave the memory of the device to training."""
        if "sampler" in vars(self):
            self.sampler.rest()

    def policy(self, temperature: float, seed: int, name: str = "rl") -> Policy:
        """The model in training, as it is now, as a policy."""
        s = self.setup
        self._hand_over()
        forking = s.algorithm.roots(self.num_generations) < self.num_generations
        patience = 0.0 if forking else Draws.patience  # forks must not depend on what else is in flight
        return self.sampler.policy(Draws(s.settings.limits, temperature, seed=seed, name=name, patience=patience))

    def _hand_over(self) -> None:
        """Have the sampler take over the weights as they are."""
        weights = models.weights(self.accelerator.unwrap_model(self.model))
        self.sampler.update(weights)
        for _ in weights:
            """What the sampler left must be taken as well, since processes put shards together."""
        together.wait()

    def rollout(self, policy: Policy, algorithm: Algorithm | None) -> Rollout:
        s = self.setup
        return Rollout(policy, s.world, s.settings.limits, s.judge, algorithm, s.settings.in_flight)

    def _live(self) -> Live:
        s = self.setup
        return Live(
            s.queries,
            s.settings.group,
            s.algorithm,
            lambda: self.rollout(self.policy(s.settings.temperature, s.seed), s.algorithm),
            self.value,
            self._log_metric,
            s.seed,
        )

    def narrow(self, queries: Sequence[Query]) -> None:
        """Train on these queries only; before training has begun."""
        self.setup = replace(self.setup, queries=queries)
        self.source = self._live()
        self.args.max_steps = steps(self.setup.settings, len(queries))
        self.args.warmup_steps = round(self.setup.settings.warmup * self.args.max_steps)
        self.train_dataset = _dataset(self.source)

    def play(self) -> Groups:
        """The groups of the current batch, in the order in which TRL asked for them."""
        groups = self.source.groups(self._asked[:: self.num_generations], self.state.global_step)
        self.rest()
        return groups

    def value(self, row: Trajectory) -> float:
        """The reward of a rollout at this moment of training."""
        earned = value(self.setup.reward, row.score if row.stop == "answer" else None, self.progress)
        return earned + _penalty(self.setup.algorithm, row)

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._asked = [row["group"] for row in inputs]
        weights = self.setup.reward.weights(self.progress)
        self.reward_weights = torch.tensor([*(weights[name] for name in COMPONENTS), 1.0], dtype=torch.float32)
        begun = time.perf_counter()
        output: dict[str, Any] = super()._generate_and_score_completions(inputs)
        self._generating += time.perf_counter() - begun
        self._metrics["train"]["seconds/generation"].append(time.perf_counter() - begun)
        output["row"] = torch.arange(len(inputs))
        if self.source.recorded:
            output["old_per_token_logps"] = output["sampling_per_token_logps"]
        below = getattr(self.setup.algorithm, "negative", 1.0)
        output["advantages"] = torch.where(output["advantages"] < 0, output["advantages"] * below, output["advantages"])
        if getattr(self.setup.algorithm, "advantage", "soft") == "hard":
            width = output["completion_ids"].shape[1]
            padded = [row + [-1] * (width - len(row)) for row in self._segments]
            segments = torch.tensor(padded, device=output["advantages"].device)
            output["advantages"] = shared_mean(output["advantages"], segments)
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        """TRL's loss; only notes first which tokens it will look at."""
        self._looked_at = inputs["completion_mask"] * inputs["tool_mask"]
        loss: torch.Tensor = super()._compute_loss(model, inputs)
        self._compare(inputs, self._looked_at)
        self._looked_at = None
        return loss

    def _compare(self, inputs: dict[str, Any], mask: torch.Tensor) -> None:
        """Measure the distance of sampler and trainer while the policy is still the one that played."""
        sampled, fresh = inputs.get("sampling_per_token_logps"), self._step % self.args.steps_per_generation
        if sampled is None or self._scored is None or fresh >= self.args.gradient_accumulation_steps:
            return
        mean, most = telemetry.over_all(*telemetry.gap(self._scored, sampled, mask))
        # Not _log_metric: what that is given shows up with the next batch of rollouts only.
        self._metrics["train"]["sampling/logprob_gap"].append(mean)
        self._metrics["train"]["sampling/logprob_gap_max"].append(most)
        if not self.source.recorded or self.state.global_step == 0:  # recorded rollouts lag behind from then on
            telemetry.check_gap(mean, self.setup.settings.max_gap)

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: torch.Tensor,
        attention_mask: torch.Tensor,
        logits_to_keep: int,
        batch_size: int | None = None,
        **kwargs: Any,
    ) -> Any:
        """TRL's scores; through tries, or at the asked positions only, where that gives the same values for less."""
        size = max(batch_size or 0, self.num_generations)
        if batch_size and len(input_ids) > size and self._tries.serve(model):
            chunks = zip(input_ids.split(size), attention_mask.split(size), strict=True)
            parts = [
                self._get_per_token_logps_and_entropies(model, *chunk, logits_to_keep, batch_size, **kwargs) for chunk in chunks
            ]
            return torch.cat([part[0] for part in parts]), None, None
        looked_at = attention_mask[:, -logits_to_keep:] if self._looked_at is None else self._looked_at
        asked = torch.nn.functional.pad(looked_at, (input_ids.shape[1] - logits_to_keep, 0)).bool()
        context = self._step_context if torch.is_grad_enabled() else None
        with self.accelerator.autocast():
            found = self._tries.scores(model, input_ids, attention_mask, asked, self.temperature, context)
            if found is None and self._looked_at is not None and compact(model):
                found = token_scores(model, input_ids, attention_mask, asked, self.temperature)
        if found is None:
            scored = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, batch_size, **kwargs
            )
            self._scored = scored[0].detach()
            return scored
        self._scored = found[0][:, -logits_to_keep:].detach()
        return found[0][:, -logits_to_keep:], found[1][:, -logits_to_keep:], None

    def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """TRL's; the model attends through its trie until the backward pass is over, which may run layers again."""
        begun, before = time.perf_counter(), self._generating
        with self._step_context:
            loss: torch.Tensor = super().training_step(*args, **kwargs)
        self._updating += time.perf_counter() - begun - (self._generating - before)
        if self.accelerator.sync_gradients:
            self._metrics["train"]["seconds/update"].append(self._updating)
            self._updating = 0.0
        return loss

    def _prepare_inputs(self, generation_batch: Any) -> Any:
        """Keep groups together in micro-batches where tries are used, and cut a micro-batch down to its own longest row.

        TRL has just shuffled the rows of all groups. The shuffle still decides the order of the groups, and without tries
        the order of rows is TRL's. The loss sees neither padding nor the order of the rows of one optimizer step.
        """
        before = self._buffered_inputs
        inputs = super()._prepare_inputs(generation_batch)
        if self._buffered_inputs is not None and self._buffered_inputs is not before and self._tries.serve(self.model_wrapped):
            self._buffered_inputs = regrouped(self._buffered_inputs, self.num_generations)
            inputs = self._buffered_inputs[self._step % len(self._buffered_inputs)]
        return trimmed(inputs)

    def tell(self, figures: dict[str, float]) -> None:
        """Log figures of this moment at once, beside those that TRL collects until the step is over."""
        due = self.control.should_log
        Trainer.log(self, figures)
        self.control.should_log = due

    def note(self, groups: Groups) -> None:
        """Log what the batch of rollouts was like, and keep its best and worst trajectory."""
        for name, figure in telemetry.over_processes(telemetry.of_rollouts(groups, self.setup.settings.mask)):
            self._log_metric(name, figure)
        own = sorted((row for group in groups for row in group), key=self.value)
        ordered = sorted(gathered([own[0], own[-1]]), key=self.value)
        for label, row in (("worst", ordered[0]), ("best", ordered[-1])):
            self.kept.append({"step": self.state.global_step, "label": label, "reward": self.value(row), "trajectory": row})


def _dataset(source: GroupSource) -> Dataset:
    return Dataset.from_list([{"prompt": source.prompt(number), "group": number} for number in range(len(source))])


def _play(_: list[str], trainer: StarGRPOTrainer) -> dict[str, Any]:
    """TRL's rollout function: one row per prompt, groups together and in order."""
    begun = time.perf_counter()
    groups = trainer.play()
    trainer._log_metric("seconds/rollouts", time.perf_counter() - begun)
    rows = [row for group in groups for row in group]
    flats = [trainer.setup.renderer.flatten(row) for row in rows]
    trainer.note(groups)
    masked = trainer.setup.settings.mask
    flats = [replace(f, mask=[0] * len(f.mask)) if r.stop in masked else f for r, f in zip(rows, flats, strict=True)]
    trainer._segments = _number(groups, flats)
    return {
        "prompt_ids": [flat.prompt_ids for flat in flats],
        "completion_ids": [flat.completion_ids for flat in flats],
        "logprobs": [flat.logprobs for flat in flats],
        "env_mask": [flat.mask for flat in flats],
        "trajectory": rows,
    }


def _number(groups: Groups, flats: list[Flat]) -> list[list[int]]:
    """Segment numbers of all rows; no number is used in two groups."""
    result: list[list[int]] = []
    start = 0
    for group in groups:
        turns = [flat.segments for flat in flats[len(result) : len(result) + len(group)]]
        numbered = segment_ids(group, turns, start)
        result += numbered
        start = 1 + max(number for row in numbered for number in row)
    return result


def trimmed(batch: dict[str, Any]) -> dict[str, Any]:
    """A micro-batch without the columns that are padding in every row."""
    left = int(batch["prompt_mask"].any(dim=0).nonzero()[0])
    right = int(batch["completion_mask"].any(dim=0).nonzero()[-1]) + 1
    cut = {name: batch[name][:, left:] for name in NARROW}
    cut |= {n: batch[n][:, :right] for n in WIDE if isinstance(batch.get(n), torch.Tensor) and batch[n].ndim == 2}
    return {**batch, **cut}
