"""Signs of collapse, from the log of a run: each is told as soon as it shows, and kept with the results."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import TrainerCallback

from star.errors import CollapseError

logger = logging.getLogger(__name__)

ROWS = 3
"""Steps in a row of which a sign is a mean: one bad batch is no collapse."""

Row = Mapping[str, Any]


def signs(history: Sequence[Row], dev: Mapping[int, Row]) -> dict[str, str]:
    """Name of each sign of collapse that shows now -> what it is, in words. `history` holds TRL's rows of all steps."""
    found: dict[str, str] = {}
    cut, broken = _now(history, "rollout/masked"), _now(history, "rollout/stop_format")
    if cut is not None and cut > 0.9:
        found["masked"] = f"{cut:.0%} of the rollouts run into a limit and teach nothing: raise rl.limits, or mask fewer stops"
    if broken is not None and broken > 0.5:
        found["format"] = f"{broken:.0%} of the rollouts end in a turn that is no action: more SFT, or a smaller rl.lr"
    first, now = _start(history, "rollout/entropy"), _now(history, "rollout/entropy")
    if first is not None and now is not None and now < first / 10:
        found["entropy"] = f"the entropy of the policy fell from {first:.2g} to {now:.2g}: it no longer explores; lower rl.lr"
    values = [float(dev[step]["value"]) for step in sorted(dev)]
    if len(values) > 1 and values[-1] < values[0] / 2:
        found["dev"] = (
            f"success on the dev queries fell from {values[0]:.1%} to {values[-1]:.1%}; the best checkpoint is kept: lower rl.lr"
        )
    return found


def collapses(history: Sequence[Row], dev: Mapping[int, Row]) -> list[str]:
    """Every sign of a run that has ended, with the step at which it first showed, and whether it went away again."""
    found: dict[str, tuple[int, str]] = {}
    for number, row in enumerate(history, 1):
        step = int(row["step"])
        for name, words in signs(history[:number], {at: dev[at] for at in dev if at <= step}).items():
            found.setdefault(name, (step, words))
    last = signs(history, dev)
    return [f"step {step}{'' if name in last else ', passed'}: {words}" for name, (step, words) in found.items()]


def check_signal(history: Sequence[Row], patience: int) -> None:
    """Raise CollapseError if no group of the last `patience` batches had two different rewards."""
    shares = [float(row["frac_reward_zero_std"]) for row in history if "frac_reward_zero_std" in row][-patience:]
    if len(shares) == patience and min(shares) == 1.0:
        raise CollapseError(
            f"no group of the last {patience} batches had two different rewards, so nothing can be learned from them",
            "The model succeeds always or never: other queries (rl.probe), another reward, more SFT; or raise rl.patience",
        )


def _values(history: Sequence[Row], name: str) -> list[float]:
    return [float(row[name]) for row in history if row.get(name) is not None]


def _start(history: Sequence[Row], name: str) -> float | None:
    values = _values(history, name)[:ROWS]
    return sum(values) / ROWS if len(values) == ROWS else None


def _now(history: Sequence[Row], name: str) -> float | None:
    values = _values(history, name)[-ROWS:]
    return sum(values) / ROWS if len(values) == ROWS else None


class Watch(TrainerCallback):
    """Warns of each sign once, and stops a run that learns nothing."""

    def __init__(self, dev: Callable[[], Mapping[int, Row]], patience: int) -> None:
        self._dev, self._patience = dev, patience
        self._told: set[str] = set()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name, words in signs(state.log_history, self._dev()).items():
            if name not in self._told:
                logger.warning("step %d: %s", state.global_step, words)
            self._told.add(name)
        check_signal(state.log_history, self._patience)
