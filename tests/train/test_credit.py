"""Credit for shared turns. If this breaks, ARPO's hard advantage rewards a turn for rollouts it is no part of."""

from __future__ import annotations

import pytest
import torch

from star.train.credit import segment_ids, shared_mean
from star.types import Completion, Trajectory, Turn


def row(name: str, parent: str | None = None, forked_at: int | None = None) -> Trajectory:
    return Trajectory(name, "q", "p", (), (Turn(Completion("")),), "answer", parent=parent, forked_at=forked_at)


def test_a_fork_shares_the_turns_before_it() -> None:
    group = [row("g/0"), row("g/1"), row("g/2", "g/0", 1), row("g/3", "g/2", 2), row("g/4", "g/2", 1)]
    turns = [[0, 0, 1, 2], [0, 1], [0, 0, 1, 2], [0, 0, 1, 2], [0, 0, 1]]
    numbers = segment_ids(group, turns, 10)
    assert min(map(min, numbers)) == 10
    root, other, fork, late, early = numbers
    assert fork[:2] == root[:2] == late[:2] == early[:2], "the turn before the fork is the parent's"
    assert late[2] == fork[2] and late[3] != fork[3], "a fork of a fork shares what it shares with its parent"
    assert early[2] not in (fork[2], root[2]), "a fork at a turn that was itself forked is no copy of it"
    assert not set(other) & {number for numbers in (root, fork, late, early) for number in numbers}
    assert len({*root, *other, *fork, *late, *early}) == 3 + 2 + 2 + 1 + 1


def test_a_shared_segment_gets_the_mean_of_its_rows() -> None:
    advantages = torch.tensor([3.0, 1.0, -4.0])
    segments = torch.tensor([[0, 0, 1, 1], [0, 2, 2, -1], [3, 3, -1, -1]])
    result = shared_mean(advantages, segments)
    assert result.shape == (3, 4)
    assert result[0].tolist() == [2.0, 2.0, 3.0, 3.0], "each row counts once, however many tokens it has there"
    assert result[1, :3].tolist() == [2.0, 1.0, 1.0]
    assert result[2, :2].tolist() == [-4.0, -4.0]


def test_without_forks_hard_is_soft() -> None:
    advantages = torch.tensor([0.5, -0.5])
    segments = torch.tensor([[0, 1, 2], [3, 4, -1]])
    assert torch.equal(shared_mean(advantages, segments), advantages[:, None].expand(2, 3))


def test_hard_and_soft_give_the_same_gradient_under_a_token_level_loss() -> None:
    """The sum over the rows that share a token is the same whether each has its own advantage or all have the mean."""
    draw = torch.Generator().manual_seed(0)
    group = [row("g/0"), row("g/1", "g/0", 1), row("g/2", "g/0", 2), row("g/3")]
    turns = [[0, 0, 1, 1, 2], [0, 0, 1, 1, 1], [0, 0, 1, 1, 2], [0, 1, 1, 2, 2]]
    segments = torch.tensor(segment_ids(group, turns, 0))
    advantages = torch.randn(4, generator=draw)
    unique = torch.randn(int(segments.max()) + 1, 5, generator=draw)

    def gradient(weights: torch.Tensor) -> torch.Tensor:
        table = unique.clone().requires_grad_()
        logprobs = table[segments, torch.arange(5).expand(4, 5)]
        (weights * logprobs).sum().backward()
        assert table.grad is not None
        return table.grad

    soft, hard = gradient(advantages[:, None].expand(4, 5)), gradient(shared_mean(advantages, segments))
    assert hard.norm() > 0 and torch.allclose(soft, hard, atol=1e-6)
    assert not torch.allclose(advantages[:, None].expand(4, 5), shared_mean(advantages, segments))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_group_without_forks_has_numbers_of_its_own(rows: int) -> None:
    numbers = segment_ids([row(f"g/{index}") for index in range(rows)], [[0, 0, 1]] * rows, 0)
    assert len({number for row_numbers in numbers for number in row_numbers}) == 2 * rows
