"""Rewards: weightings of the judge's score. Pure functions of a score and of training progress.

Formulas: STAR (arXiv 2603.21972, reward design). A trajectory without a readable plan earns 0 in every component.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from star.protocols import Reward
from star.types import Score

COMPONENTS = ("cs_micro", "cs_macro", "hard_micro", "hard_macro", "success")
ALL = dict.fromkeys(COMPONENTS, 1.0)


def components(score: Score | None) -> dict[str, float]:
    """The five parts that rewards weigh, each in 0-1; all 0 for no score or no readable plan."""
    if score is None or not score.delivered:
        return dict.fromkeys(COMPONENTS, 0.0)
    values = (score.commonsense_micro, score.commonsense_macro, score.hard_micro, score.hard_macro, score.success)
    return dict(zip(COMPONENTS, map(float, values), strict=True))


def value(reward: Reward, score: Score | None, progress: float) -> float:
    """The reward of a score at a share `progress` (0-1) of training."""
    parts = components(score)
    return sum(weight * parts[name] for name, weight in reward.weights(progress).items())


def _only(*names: str) -> dict[str, float]:
    return {name: float(name in names) for name in COMPONENTS}


@dataclass(frozen=True, slots=True)
class Sum:
    """cs_micro + cs_macro + hard_micro + hard_macro + success, 0-5."""

    name: str = "sum"

    def weights(self, progress: float) -> dict[str, float]:
        return dict(ALL)


@dataclass(frozen=True, slots=True)
class Macro:
    """cs_macro + hard_macro + success, 0-3."""

    name: str = "macro"

    def weights(self, progress: float) -> dict[str, float]:
        return _only("cs_macro", "hard_macro", "success")


@dataclass(frozen=True, slots=True)
class Success:
    """1 for a plan that meets every constraint, else 0."""

    name: str = "success"

    def weights(self, progress: float) -> dict[str, float]:
        return _only("success")


@dataclass(frozen=True, slots=True)
class Curriculum:
    """SUM, then MACRO, then SUCCESS; with five epochs the defaults are STAR's epochs 1-2, 3-4 and 5."""

    name: str = "curriculum"
    macro_from: float = 0.4
    success_from: float = 0.8

    def __post_init__(self) -> None:
        if not 0 <= self.macro_from <= self.success_from <= 1:
            raise ValueError(f"0 <= macro_from ({self.macro_from}) <= success_from ({self.success_from}) <= 1 must hold")

    def weights(self, progress: float) -> dict[str, float]:
        if progress < self.macro_from:
            return dict(ALL)
        return Macro().weights(progress) if progress < self.success_from else Success().weights(progress)


PLANNER_R1: tuple[dict[str, float], ...] = (ALL, _only("cs_macro", "hard_macro", "success"), _only("success"))


@dataclass(frozen=True, slots=True)
class Staged:
    """Any weights of the components, stage by stage; stages share training equally.

    The default is Planner-R1's (arXiv 2509.25779): all components, then macro and success, then success alone. One stage of
    large micro weights is a dense reward, in which each broken constraint costs the same whatever else is broken.
    """

    name: str = "staged"
    stages: tuple[dict[str, float], ...] = field(default=PLANNER_R1, hash=False)

    def __post_init__(self) -> None:
        if not self.stages:
            raise ValueError("stages: at least one is needed, e.g. [{success: 1}]")
        for stage in self.stages:
            strange = sorted(set(stage) - set(COMPONENTS))
            if strange:
                raise ValueError(f"stages: {strange[0]!r} is none of {', '.join(COMPONENTS)}")
            if min(stage.values(), default=0.0) < 0 or not any(stage.values()):
                raise ValueError(f"stages: {dict(stage)} needs weights of at least 0, one of them above 0")

    def weights(self, progress: float) -> dict[str, float]:
        stage = self.stages[min(int(progress * len(self.stages)), len(self.stages) - 1)]
        return {name: float(stage.get(name, 0.0)) for name in COMPONENTS}
