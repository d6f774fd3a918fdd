"""Supervised fine-tuning: an adapter over trl.SFTTrainer on pre-tokenised ids and labels."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import PrinterCallback, TrainerCallback
from trl import SFTConfig, SFTTrainer

from star.errors import DataError, UsageError
from star.settings import Sft
from star.train.checkpoints import finish, trained
from star.train.model import seeded
from star.train.optimizer import muon
from star.train.ranks import size
from star.train.scoring import compact, token_scores
from star.train.together import check, one_device, wait
from star.train.tokens import Renderer
from star.types import Example


def rows(examples: Sequence[Example], renderer: Renderer, max_tokens: int) -> tuple[list[dict[str, list[int]]], int]:
    """Training rows, and how many conversations were dropped for being longer than `max_tokens`."""
    rendered = [renderer.example(example.messages) for example in examples]
    kept = [{"input_ids": ids, "labels": labels} for ids, labels in rendered if len(ids) <= max_tokens]
    if not kept:
        longest = max((len(ids) for ids, _ in rendered), default=0)
        raise DataError(
            f"no conversation of {len(examples)} fits {max_tokens} tokens (the longest has {longest})",
            "Raise sft.max_tokens, or synthesise more queries",
        )
    return kept, len(rendered) - len(kept)


class _Progress(TrainerCallback):
    def __init__(self, report: Callable[[int, int, str], None]) -> None:
        self._report = report

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        loss = (logs or {}).get("loss")
        self._report(state.global_step, state.max_steps, f"loss {loss:.3f}" if loss is not None else "")


class StarSFTTrainer(SFTTrainer):
    """SFTTrainer with the optimizer of the recipe."""

    def __init__(self, *args: Any, settings: Sft, **kwargs: Any) -> None:
        self._settings = settings
        super().__init__(*args, **kwargs)

    def create_optimizer(self, model: Any = None) -> Any:
        s = self._settings
        if s.optimizer == "adamw" or self.optimizer is not None:
            return super().create_optimizer(model)
        rates = {"muon_lr": s.muon_lr, "lr": s.lr, "weight_decay": s.weight_decay}
        self.optimizer: Any = muon(self.model, self.accelerator, **rates)
        return self.optimizer

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Mean negative log-probability of the labelled tokens of the whole step."""
        if return_outputs or not compact(model):
            return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)
        asked = inputs["labels"] != -100
        with self.accelerator.autocast():
            logprobs, _ = token_scores(model, inputs["input_ids"], inputs["attention_mask"], asked)
        count = asked[:, 1:].sum() if num_items_in_batch is None else num_items_in_batch
        return -logprobs.sum() / count


def passes(settings: Sft, processes: int) -> tuple[int, int]:
    """Conversations of a forward pass, and such passes of one process over its part of a batch. Raises UsageError for a rest."""
    share, odd = divmod(settings.batch, processes)
    micro = min(settings.micro_batch, max(1, share))
    if odd or share % micro:
        what = f"sft.batch = {settings.batch} is not shared by {processes} processes in whole passes of {micro}"
        raise UsageError(what, "It must be a multiple of processes x sft.micro_batch")
    return micro, share // micro


def config(settings: Sft, directory: Path, seed: int, count: int) -> SFTConfig:
    """The recipe in TRL's words; `count` is the number of conversations."""
    micro, accumulate = passes(settings, size())
    steps = settings.steps or max(1, round(count / settings.batch * settings.epochs))
    decay = {"num_decay_steps": round(steps * settings.decay)} if settings.schedule == "warmup_stable_decay" else {}
    args = SFTConfig(
        output_dir=str(directory),
        max_steps=steps,
        per_device_train_batch_size=micro,
        gradient_accumulation_steps=accumulate,
        learning_rate=settings.lr,
        lr_scheduler_type=settings.schedule,
        lr_scheduler_kwargs=decay or None,
        warmup_steps=round(settings.warmup * steps),
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.clip,
        bf16=settings.bf16,
        activation_checkpointing=settings.gradient_checkpointing,
        max_length=None,
        packing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
        save_steps=settings.save_steps,
        logging_steps=max(1, min(10, steps // 10)),
        report_to=[],
        seed=seed,
        data_seed=seed,
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
    )
    return one_device(args)


def train(
    model: Any, renderer: Renderer, data: list[dict[str, list[int]]], settings: Sft, directory: Path, seed: int,
    report: Callable[[int, int, str], None],
) -> tuple[list[dict[str, Any]], int, Path]:  # fmt: skip
    """Train in `directory`, going on from its last checkpoint; return log history, number of steps, last checkpoint."""
    seeded(seed)
    directory.mkdir(parents=True, exist_ok=True)
    trainer = StarSFTTrainer(
        model=model,
        args=config(settings, directory, seed, len(data)),
        train_dataset=Dataset.from_list(data),
        processing_class=renderer.tokenizer,
        callbacks=[_Progress(report)],
        settings=settings,
    )
    trainer.remove_callback(PrinterCallback)
    check(trainer.accelerator)
    finish(trainer, directory)
    wait()
    return list(trainer.state.log_history), int(trainer.state.global_step), trained(trainer)


def discard(directory: Path) -> None:
    """Remove a trainer's scratch directory."""
    shutil.rmtree(directory, ignore_errors=True)
