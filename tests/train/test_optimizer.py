"""Muon beside AdamW. If this breaks, the embedded model does not learn in its minutes, or a resumed run goes elsewhere."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from star.settings import Sft, Tiny
from star.train import tiny
from star.train.optimizer import MuonAdamW, orthogonalise


@pytest.mark.parametrize("shape", [(16, 16), (8, 24), (24, 8), (1, 5)])
def test_muon_orthogonalises(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    result = orthogonalise(matrix)
    assert result.shape == matrix.shape and result.dtype == matrix.dtype
    left, _, right = torch.linalg.svd(matrix, full_matrices=False)
    assert torch.linalg.svdvals(result).min() > 0.6 and torch.linalg.svdvals(result).max() < 1.3
    assert torch.linalg.svdvals(result - left @ right).max() < 0.5, "the nearest orthogonal matrix"
    assert torch.allclose(orthogonalise(1000 * matrix), result, atol=1e-4), "the size of a gradient does not matter"


def test_a_zero_gradient_is_no_direction() -> None:
    assert not orthogonalise(torch.zeros(4, 6)).any()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 6)) for _ in range(2)])
        self.head = nn.Linear(6, 9)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def named(net: Net) -> list[tuple[str, nn.Parameter]]:
    return [(f"model.{name}", parameter) for name, parameter in net.named_parameters()]


def build() -> tuple[Net, MuonAdamW]:
    torch.manual_seed(0)
    net = Net()
    return net, MuonAdamW(named(net), muon_lr=0.05, lr=0.01, weight_decay=0.1)


def steps(net: Net, optimizer: MuonAdamW, first: int, count: int) -> list[float]:
    losses = []
    for step in range(first, first + count):
        ids = torch.randint(0, 9, (8, 4), generator=torch.Generator().manual_seed(step))
        loss = nn.functional.cross_entropy(net(ids).flatten(0, 1), ((ids + 1) % 9).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def test_hidden_matrices_go_to_muon_and_the_rest_to_adamw() -> None:
    net, optimizer = build()
    muon, adamw = optimizer.param_groups
    assert {p.ndim for p in muon["params"]} == {2} and len(muon["params"]) == 4
    assert (muon["lr"], adamw["lr"]) == (0.05, 0.01)
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(net.parameters()))
    assert any(p is net.embed.weight for p in adamw["params"]) and any(p is net.head.weight for p in adamw["params"])


def test_it_learns_and_repeats_itself() -> None:
    losses = steps(*build(), 0, 40)
    assert losses[-1] < 0.3 * losses[0]
    assert steps(*build(), 0, 40) == losses


def test_the_adamw_half_is_torchs() -> None:
    net, optimizer = build()
    twin = copy.deepcopy(net)
    reference = torch.optim.AdamW(twin.head.parameters(), lr=0.01, weight_decay=0.1)
    for step in range(5):
        for module, own in ((net, optimizer), (twin, reference)):
            draw = torch.Generator().manual_seed(step)
            for parameter in module.head.parameters():
                parameter.grad = torch.randn(parameter.shape, generator=draw)
            own.step()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(net.head.parameters(), twin.head.parameters(), strict=True))


def test_a_stored_state_goes_on_as_if_nothing_had_happened(tmp_path: Any) -> None:
    net, optimizer = build()
    steps(net, optimizer, 0, 7)
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "state.pt")
    expected = steps(net, optimizer, 7, 7)
    stored = torch.load(tmp_path / "state.pt", weights_only=True)
    other, fresh = build()
    other.load_state_dict(stored["net"])
    fresh.load_state_dict(stored["optimizer"])
    assert steps(other, fresh, 7, 7) == expected
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), other.parameters(), strict=True))


def test_a_schedule_scales_both_rates() -> None:
    _, optimizer = build()
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5)
    assert [group["lr"] for group in optimizer.param_groups] == [0.025, 0.005]
    assert schedule.base_lrs == [0.05, 0.01]


def test_the_embedded_model_has_both_kinds(renderer: Any) -> None:
    model = tiny.model(Tiny(hidden=16, layers=2, heads=2, kv_heads=1, intermediate=16), renderer.tokenizer, 0)
    settings = Sft()
    optimizer = MuonAdamW(model.named_parameters(), muon_lr=settings.muon_lr, lr=settings.lr, weight_decay=0.0)
    assert len(optimizer.param_groups[0]["params"]) == 2 * 7, "four of attention and three of the feed-forward part, a layer"
    again = tiny.model(Tiny(hidden=16, layers=2, heads=2, kv_heads=1, intermediate=16), renderer.tokenizer, 0)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True)), "built from a seed"
