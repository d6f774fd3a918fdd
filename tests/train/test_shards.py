"""Weights of models in shards are those of whole models. If this breaks, a sampler gets pieces of a model in training, or the
processes of a training wait for each other for ever."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, init_device_mesh

from star.settings import Lora
from star.train import model as models
from star.train import shards


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Any]:
    """A group of one process."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    distributed.destroy_process_group()


def adapted(model: Any, lora: bool) -> Any:
    if not lora:
        return model
    torch.manual_seed(0)
    model = models.lora(model, Lora(rank=2, alpha=4))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    return model


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
def test_torchs_shards_are_put_together(group: Any, student: Any, lora: bool) -> None:
    plain = dict(models.weights(student))
    wanted = dict(models.weights(adapted(copy.deepcopy(student), lora)))
    spread = adapted(student, lora)
    for layer in spread.get_decoder().layers if not lora else spread.get_base_model().get_decoder().layers:
        fully_shard(layer, mesh=group)
    fully_shard(spread, mesh=group)
    assert shards.in_shards(spread)
    found = dict(models.weights(spread))
    assert found.keys() == wanted.keys() and not any(isinstance(tensor, DTensor) for tensor in found.values())
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, wanted[name])
    assert lora is any(not torch.equal(found[name], tensor) for name, tensor in plain.items())


def test_deepspeeds_shards_are_whole_while_they_are_read(student: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away from the gathering context, DeepSpeed's parameters are empty and all look alike."""
    wanted = {name: tensor.clone() for name, tensor in models.weights(student)}
    homes = {parameter: parameter.data for parameter in student.parameters()}
    for number, parameter in enumerate(student.parameters()):
        parameter.ds_id, parameter.data = number, torch.empty(0)

    @contextmanager
    def gathered(spread: list[Any]) -> Iterator[None]:
        for parameter in spread:
            parameter.data = homes[parameter].clone()
        yield
        for parameter in spread:
            parameter.data.zero_()
            parameter.data = torch.empty(0)

    module: Any = ModuleType("deepspeed.runtime.zero.partition_parameters")
    module.GatheredParameters = gathered
    monkeypatch.setitem(sys.modules, module.__name__, module)
    assert shards.in_shards(student)
    found = dict(models.weights(student))
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in wanted.items())
