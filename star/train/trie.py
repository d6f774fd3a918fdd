"""Rows that share prefixes as one packed sequence in which every shared token stands once.

The rows of a group share their prompt always, and with forks far more. Sorted by their ids, each row adds to a radix tree
only what it does not share with the row before it: its strand. Strands lie one after the other, and a token's position is its
depth. Whatever hangs from a strand lies behind it without gaps, so a token's ancestors are few runs of tokens: `Crossing` says
which run of tokens attends to which run of keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import torch


class Crossing(NamedTuple):
    """Tokens [begin, end) descend from all of the tokens [first, last) of one strand."""

    begin: int
    end: int
    first: int
    last: int


@dataclass(frozen=True)
class Trie:
    """The packed rows. U tokens, B rows of at most T tokens."""

    ids: torch.Tensor
    """(U,)"""
    positions: torch.Tensor
    """(U,) depth of each token."""
    parents: torch.Tensor
    """(U,) where the token before each token lies; -1 at a root."""
    places: torch.Tensor
    """(B, T) where each token of each row lies; 0 on padding."""
    strands: tuple[tuple[int, int], ...]
    """[begin, end) of each strand, in order, without gaps."""
    crossings: tuple[Crossing, ...]
    """Each token's ancestors outside its strand, once."""
    tokens: int
    """Tokens of all rows, shared ones counted as often as they occur."""

    @property
    def sharing(self) -> float:
        """How often a token is used on average (1 means that nothing is shared)."""
        return self.tokens / max(1, len(self.ids))


def pack(input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Trie:
    """The trie of a padded batch (B, T); padding stands on the left, on the right, or on both sides."""
    mask = attention_mask.bool().cpu()
    rows = [ids[held] for ids, held in zip(input_ids.cpu(), mask, strict=True)]
    listed = [row.tolist() for row in rows]
    order = sorted(range(len(rows)), key=listed.__getitem__)
    places = torch.zeros(input_ids.shape, dtype=torch.long)
    lengths, forks, parents = list[int](), list[int](), list[torch.Tensor]()
    before = place = torch.empty(0, dtype=torch.long)
    total = 0
    for index in order:
        row = rows[index]
        shared = _shared(before, row)
        place = torch.cat([place[:shared], torch.arange(total, total + len(row) - shared)])
        places[index, mask[index]] = place
        if len(row) > shared:
            forks.append(shared)
            parents.append(torch.nn.functional.pad(place, (1, 0), value=-1)[shared : len(row)])
            lengths.append(len(row) - shared)
        total += len(row) - shared
        before = row
    device = input_ids.device
    ids = torch.zeros(total, dtype=torch.long)
    ids[places[mask]] = torch.cat(rows)
    above = torch.cat(parents) if parents else place
    positions = torch.zeros(total, dtype=torch.long)
    positions[places[mask]] = (mask.cumsum(1) - 1)[mask]
    begins = [0, *accumulate(lengths)]
    strands = tuple(pairwise(begins))
    return Trie(
        ids.to(device), positions.to(device), above.to(device), places.to(device), strands,
        _crossings(strands, forks, [int(above[begin]) for begin in begins[:-1]]), sum(map(len, rows)),
    )  # fmt: skip


def _shared(one: torch.Tensor, other: torch.Tensor) -> int:
    """Length of the common prefix."""
    size = min(len(one), len(other))
    differ = (one[:size] != other[:size]).nonzero()
    return int(differ[0]) if len(differ) else size


def _crossings(strands: Sequence[tuple[int, int]], forks: Sequence[int], parents: Sequence[int]) -> tuple[Crossing, ...]:
    """`forks`: depth at which each strand leaves its parent; `parents`: the token it leaves from."""
    found: dict[tuple[int, int], Crossing] = {}
    above: list[int] = []
    for number, (begin, _) in enumerate(strands):
        while above and forks[above[-1]] >= forks[number]:
            above.pop()
        above.append(number)
        if parents[number] < 0:
            continue
        end = next((strands[n][0] for n in range(number + 1, len(strands)) if forks[n] <= forks[number]), strands[-1][1])
        first = next(b for b, e in strands if b <= parents[number] < e)
        key = (first, parents[number] + 1)
        begun = found[key].begin if key in found else begin
        found[key] = Crossing(begun, end, *key)
    return tuple(found.values())


def regrouped(batches: Sequence[dict[str, Any]], size: int) -> list[dict[str, Any]]:
    """The rows of equally large batches dealt out again, so that rows of a group, and those that share most, lie side by side.

    "row" holds the number of each row before it was shuffled; groups are runs of `size`. Groups come in the order of their
    first rows.
    """
    whole = {name: _joined([batch[name] for batch in batches]) for name in batches[0]}
    groups = (whole["row"] // size).tolist()
    ids = torch.cat([whole["prompt_ids"], whole["completion_ids"]], dim=1).tolist()
    order = sorted(range(len(ids)), key=lambda row: (groups.index(groups[row]), ids[row]))
    share = len(order) // len(batches)
    return [
        {name: _rows(value, order[start : start + share]) for name, value in whole.items()}
        for start in range(0, len(order), share)
    ]  # fmt: skip


def _joined(values: list[Any]) -> Any:
    """One field of several batches: rows are joined, what is not by rows is the same in all."""
    first = values[0]
    if isinstance(first, list):
        return [item for value in values for item in value]
    return torch.cat(values) if isinstance(first, torch.Tensor) and first.ndim else first


def _rows(value: Any, chosen: list[int]) -> Any:
    if isinstance(value, list):
        return [value[row] for row in chosen]
    return value[chosen] if isinstance(value, torch.Tensor) and value.ndim else value
