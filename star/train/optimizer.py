"""Muon on hidden matrices and AdamW on the rest, as one optimizer that the Trainer can schedule and checkpoint.

torch.optim.Muon orthogonalises in bfloat16, which processors without native support emulate some fifty times slower than
float32; this one works in the dtype of the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedType
from torch import nn

from star.errors import StarError

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Quintic Newton-Schulz iteration of Muon (Jordan et al. 2024)."""
ROUNDS = 5


def orthogonalise(matrix: torch.Tensor) -> torch.Tensor:
    """Nearest (semi-)orthogonal matrix, approximately: singular values end near 1. Shape (rows, columns) is kept."""
    a, b, c = COEFFICIENTS
    wide = matrix.T if matrix.shape[0] > matrix.shape[1] else matrix
    x = wide / (wide.norm() + 1e-7)
    for _ in range(ROUNDS):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def muon(model: nn.Module, accelerator: Accelerator, *, muon_lr: float, lr: float, weight_decay: float) -> MuonAdamW:
    """The optimizer of a model's trained weights. Raises StarError under DeepSpeed, which gives optimizers flat pieces of weights
    instead of matrices."""
    if accelerator.distributed_type == DistributedType.DEEPSPEED:
        fix = "Set optimizer to adamw, or train with ddp or fsdp2"
        raise StarError("optimizer: muon needs whole matrices, and DeepSpeed gives it flat pieces of them", fix)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return MuonAdamW(named, muon_lr=muon_lr, lr=lr, weight_decay=weight_decay)


class MuonAdamW(torch.optim.Optimizer):
    """Muon (2-D weights inside the layers) beside AdamW (embeddings, norms, biases, heads); a group says which it is.

    Each group keeps its own base rate under a shared schedule. Muon's step is scaled by sqrt(max(1, rows / columns)).
    """

    def __init__(
        self, named: Iterable[tuple[str, nn.Parameter]], *, muon_lr: float, lr: float, weight_decay: float,
        momentum: float = 0.95,
    ) -> None:  # fmt: skip
        hidden: list[nn.Parameter] = []
        rest: list[nn.Parameter] = []
        for name, parameter in named:
            (hidden if parameter.ndim == 2 and ".layers." in name else rest).append(parameter)
        groups = [{"params": hidden, "lr": muon_lr, "muon": True}, {"params": rest, "lr": lr, "muon": False}]
        shared = {"lr": lr, "weight_decay": weight_decay, "momentum": momentum, "betas": (0.9, 0.999), "eps": 1e-8}
        super().__init__([group for group in groups if group["params"]], shared)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            update = self._muon if group["muon"] else self._adamw
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.mul_(1 - group["lr"] * group["weight_decay"])
                    update(parameter, parameter.grad, group)
        return loss

    def _muon(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        buffer = state.setdefault("momentum", torch.zeros_like(parameter))
        buffer.lerp_(gradient, 1 - group["momentum"])
        direction = orthogonalise(gradient.lerp(buffer, group["momentum"]))
        scale = max(1.0, parameter.shape[0] / parameter.shape[1]) ** 0.5
        parameter.add_(direction, alpha=-group["lr"] * scale)

    def _adamw(self, parameter: torch.Tensor, gradient: torch.Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        first = state.setdefault("first", torch.zeros_like(parameter))
        second = state.setdefault("second", torch.zeros_like(parameter))
        step = state.setdefault("step", torch.zeros((), dtype=torch.float32))
        step += 1
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        rise, spread = 1 - beta1 ** step.item(), 1 - beta2 ** step.item()
        parameter.addcdiv_(first, (second / spread).sqrt_().add_(group["eps"]), value=-group["lr"] / rise)
