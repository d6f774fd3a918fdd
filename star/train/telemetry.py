"""What a batch of rollouts was like, as numbers that show a collapse while it happens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import torch

from star.errors import StarError
from star.train.together import gathered
from star.types import Stop, Trajectory, Turn

STOPS: tuple[Stop, ...] = ("answer", "turns", "tokens", "format", "error")
FIRST = 10
"""Tokens after a tool's reply over which ARPO and we measure entropy."""


def of_rollouts(groups: Sequence[Sequence[Trajectory]], masked: Sequence[str]) -> Iterator[tuple[str, float]]:
    """(name, value) pairs. Shares are of rollouts; turns, calls, tokens and errors are means a rollout; entropies are means a
    token, in units of ln V. What a fork shares with its parent counts once."""
    rows = [row for group in groups for row in group]
    stops = Counter(row.stop for row in rows)
    for stop in STOPS:
        yield f"rollout/stop_{stop}", stops[stop] / len(rows)
    yield "rollout/masked", sum(row.stop in masked for row in rows) / len(rows)
    yield "rollout/turns", sum(len(row.turns) for row in rows) / len(rows)
    own = _own(rows)
    yield "rollout/tool_calls", tool_calls(rows) / len(rows)
    yield "rollout/tokens", sum(len(turn.completion.token_ids) for _, turn in own) / len(rows)
    yield "rollout/errors", sum(turn.error is not None and turn.fault is None for _, turn in own) / len(rows)
    yield "rollout/faults", sum(turn.fault is not None for _, turn in own) / len(rows)
    forks = [row.forked_at for row in rows if row.parent is not None and row.forked_at is not None]
    yield "rollout/forks", len(forks) / len(groups)
    if forks:
        yield "rollout/fork_turn", sum(forks) / len(forks)
    entropies = [value for _, turn in own for value in turn.completion.entropies]
    after = [value for number, turn in own if number for value in turn.completion.entropies[:FIRST]]
    for name, values in (("entropy", entropies), ("entropy_after_tool", after)):
        if values:
            yield f"rollout/{name}", sum(values) / len(values)


def tool_calls(rows: Sequence[Trajectory]) -> int:
    """Calls that rollouts made; what a fork shares with its parent counts once."""
    return sum(turn.call is not None for _, turn in _own(rows))


def _own(rows: Sequence[Trajectory]) -> list[tuple[int, Turn]]:
    """The turns of rollouts that are not those of a parent, each with its number."""
    return [(number, turn) for row in rows for number, turn in enumerate(row.turns) if number >= (row.forked_at or 0)]


def over_processes(figures: Iterable[tuple[str, float]]) -> list[tuple[str, float]]:
    """Each figure as the mean over the processes that have it."""
    found: dict[str, list[float]] = {}
    for name, value in gathered(list(figures)):
        found.setdefault(name, []).append(value)
    return [(name, sum(values) / len(values)) for name, values in found.items()]


def gap(ours: torch.Tensor, sampled: torch.Tensor, mask: torch.Tensor) -> tuple[float, float]:
    """Mean and greatest distance of the log-probabilities (rows, tokens) that the trainer computes and the sampler recorded."""
    found = (ours - sampled).abs()[mask.bool()]
    return (float(found.mean()), float(found.max())) if found.numel() else (0.0, 0.0)


def over_all(mean: float, most: float) -> tuple[float, float]:
    """The mean of the means and the greatest of the greatest distances of all processes."""
    every = gathered([(mean, most)])
    return sum(value for value, _ in every) / len(every), max(value for _, value in every)


def check_gap(mean: float, limit: float) -> None:
    """Stop a run that would learn from rollouts of another policy than the one in training."""
    if mean > limit:
        raise StarError(
            f"sampler and trainer differ by {mean:.3g} in log-probability a token, over rl.max_gap = {limit:g}",
            "The rollouts are not the policy's own: what samples them (rl.rollouts) has other weights, as where it did not take "
            "over the latest step, another precision or another temperature; or raise rl.max_gap",
        )
