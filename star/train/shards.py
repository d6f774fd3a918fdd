"""Models whose parameters are spread over processes: torch's shards (FSDP2) and DeepSpeed's (ZeRO-3)."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from star.plugins import load


def in_shards(model: Any) -> bool:
    """Whether parameters of a model are spread over processes, or not there at all."""
    return any(isinstance(p, DTensor) or hasattr(p, "ds_id") or p.device.type == "meta" for p in model.parameters())


def together(parameters: Iterable[torch.Tensor]) -> AbstractContextManager[None]:
    """While it lasts, those parameters that DeepSpeed spread are whole in every process. All processes must do it."""
    spread = [parameter for parameter in parameters if hasattr(parameter, "ds_id")]
    if not spread:
        return nullcontext()
    found: AbstractContextManager[None] = load("deepspeed.runtime.zero.partition_parameters:GatheredParameters")(spread)
    return found


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor that outlasts `together`; torch's shards are put together, for which all processes must ask."""
    if isinstance(tensor, DTensor):
        full: torch.Tensor = tensor.full_tensor()
        return full
    return tensor.detach().clone() if hasattr(tensor, "ds_id") else tensor.detach()
