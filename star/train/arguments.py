"""The recipe of RL in TRL's words."""

from __future__ import annotations

from pathlib import Path

import torch
from trl import GRPOConfig

from star.errors import UsageError
from star.protocols import Algorithm
from star.settings import Rl
from star.train.ranks import size
from star.train.together import one_device
from star.train.trackers import PROJECT


def steps(rl: Rl, groups: int) -> int:
    """Optimizer steps over so many groups an epoch."""
    return rl.steps or max(1, round(groups / rl.queries * rl.epochs)) * rl.updates


def passes(rl: Rl, processes: int) -> int:
    """Forward passes of one process over its part of a batch. Raises UsageError unless that is whole groups in whole passes."""
    share, odd = divmod(rl.queries, processes)
    if odd or share * rl.group % rl.micro_batch:
        whole = f"{rl.queries} queries of {rl.group} rollouts on {processes} processes"
        fix = "rl.queries must be a multiple of the processes, and rl.micro_batch divide the rollouts of each"
        raise UsageError(f"{whole} are not whole groups in whole passes of rl.micro_batch = {rl.micro_batch}", fix)
    return share * rl.group // rl.micro_batch


def config(rl: Rl, algorithm: Algorithm, groups: int, seed: int, directory: Path, title: str | None = None) -> GRPOConfig:
    """`groups`: queries, or recorded groups, of an epoch. A batch of rollouts is split into `updates` steps, and a process
    plays and trains on whole groups. `title`: the name of the run for trackers."""
    micros = passes(rl, size())
    total = steps(rl, groups)
    args = GRPOConfig(
        output_dir=str(directory),
        max_steps=total,
        num_generations=rl.group,
        per_device_train_batch_size=rl.micro_batch,
        gradient_accumulation_steps=max(1, micros // rl.updates),
        steps_per_generation=micros,
        max_completion_length=rl.limits.context,
        learning_rate=rl.lr,
        lr_scheduler_type=rl.schedule,
        warmup_steps=round(rl.warmup * total),
        max_grad_norm=rl.clip,
        beta=rl.kl,
        temperature=rl.temperature,
        bf16=rl.bf16,
        activation_checkpointing=rl.gradient_checkpointing,
        save_steps=rl.save_steps,
        logging_steps=1,
        report_to=[name for name in rl.report_to if name != "tensorboard"],  # its callback is ours
        run_name=title,
        project=PROJECT,
        seed=seed,
        data_seed=seed,
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
        use_cpu=not torch.cuda.is_available(),
        **algorithm.settings(),
    )
    return one_device(args)
