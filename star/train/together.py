"""What the processes of a training do together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from accelerate import Accelerator, PartialState
from accelerate.utils import DistributedType, gather_object
from transformers import TrainingArguments
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from star.errors import StarError
from star.train.ranks import size

T = TypeVar("T")
Arguments = TypeVar("Arguments", bound=TrainingArguments)


def one_device(args: Arguments) -> Arguments:
    """A process trains on the device of its number. One that trains alone would spread its batches over all that it sees."""
    args._n_gpu = min(args.n_gpu, 1)
    return args


def sharded(accelerator: Accelerator) -> bool:
    """Whether no process holds the whole model: FSDP, or DeepSpeed's third stage."""
    stage = getattr(accelerator.state.deepspeed_plugin, "zero_stage", 0)
    return bool(accelerator.distributed_type == DistributedType.FSDP or stage == 3)


def check(accelerator: Accelerator) -> None:
    """Raises StarError if the processes of a training do not know of each other: each would train on its part alone."""
    if accelerator.num_processes != size():
        what = f"{size()} processes were started, and accelerate connects {accelerator.num_processes} of them"
        raise StarError(what, "Correct the accelerate configuration, or do without one")


def alone() -> None:
    """From here on this process works without the others: models that it loads are whole, and its own."""
    unset_hf_deepspeed_config()


def wait() -> None:
    """Until all processes are here."""
    if size() > 1:
        PartialState().wait_for_everyone()


def gathered(values: Sequence[T]) -> list[T]:
    """What all processes have, in the order of their numbers. All must ask at the same point of their work."""
    return list(gather_object(list(values))) if size() > 1 else list(values)
