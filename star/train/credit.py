"""Credit: how the reward of a rollout becomes the advantage of each of its tokens. Pure functions of small tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from star.types import Trajectory


def segment_ids(group: Sequence[Trajectory], segments: Sequence[Sequence[int]], first: int) -> list[list[int]]:
    """A number for each token of each row that equals another row's where both hold the very same sampled turn.

    `segments` gives the turn of each token; numbers start at `first`. A fork shares the turns before `forked_at`.
    """
    by_id: Mapping[str, Trajectory] = {row.id: row for row in group}
    numbers: dict[tuple[str, int], int] = {}
    result = []
    for row, turns in zip(group, segments, strict=True):
        owners = {turn: _owner(row, turn, by_id) for turn in set(turns)}
        result.append([numbers.setdefault((owners[turn], turn), first + len(numbers)) for turn in turns])
    return result


def _owner(row: Trajectory, turn: int, by_id: Mapping[str, Trajectory]) -> str:
    """Id of the rollout that first sampled a turn."""
    while row.parent is not None and row.forked_at is not None and turn < row.forked_at:
        row = by_id[row.parent]
    return row.id


def shared_mean(advantages: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """ARPO's hard advantage: each token gets the mean advantage of the rows that share its segment.

    `advantages` (B,), `segments` (B, T) with -1 on padding; returns (B, T). Each row counts once per segment.
    """
    result = advantages[:, None].expand_as(segments).clone()
    rows = torch.arange(segments.shape[0], device=segments.device)[:, None].expand_as(segments)
    held = segments >= 0
    pairs = torch.stack([segments[held], rows[held]]).unique(dim=1)
    size = int(segments.max()) + 1
    total = advantages.new_zeros(size).index_add_(0, pairs[0], advantages[pairs[1]])
    count = advantages.new_zeros(size).index_add_(0, pairs[0], torch.ones_like(pairs[0], dtype=advantages.dtype))
    result[held] = (total / count.clamp(min=1))[segments[held]]
    return result
