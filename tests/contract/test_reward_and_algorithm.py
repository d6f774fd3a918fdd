"""What every reward and every algorithm promises. If this breaks, training cannot use a plugin that a recipe names."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest

from star import plugins
from star.rewards import COMPONENTS, value
from star.types import Completion, Score

REWARDS = list(plugins.TABLE["reward"])
ALGORITHMS = list(plugins.TABLE["algorithm"])
SHARES = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]


def score(held: int) -> Score:
    return Score("q", "strict", {f"c{i}": i < held for i in range(8)}, {f"h{i}": i < held - 3 for i in range(5)}, held > 2)


@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_weighs_every_component(name: str) -> None:
    reward = plugins.build("reward", {"name": name})
    assert reward.name == name
    for progress in SHARES:
        weights = reward.weights(progress)
        assert list(weights) == list(COMPONENTS)
        assert all(weight >= 0 for weight in weights.values()) and weights["success"] > 0
        weights["success"] = -1.0
        assert reward.weights(progress)["success"] > 0, "a caller cannot change a reward"


@pytest.mark.parametrize("name", REWARDS)
@pytest.mark.parametrize("progress", SHARES)
def test_a_better_plan_never_earns_less(name: str, progress: float) -> None:
    reward = plugins.build("reward", {"name": name})
    earned = [value(reward, None, progress), *(value(reward, score(held), progress) for held in range(9))]
    assert earned == sorted(earned) and earned[0] == 0 < earned[-1]


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("size", [2, 3, 8, 16])
def test_an_algorithm_keeps_the_budget(name: str, size: int) -> None:
    algorithm = plugins.build("algorithm", {"name": name})
    assert algorithm.name == name
    assert 1 <= algorithm.roots(size) <= size
    first, later = Completion("", entropies=(0.1,)), Completion("", entropies=(0.9,))
    for left in (1, 2, size):
        for pair in ((first, later), (later, first), (Completion(""), Completion(""))):
            assert 0 <= algorithm.forks(pair, left, random.Random(0)) <= left


@pytest.mark.parametrize("name", ALGORITHMS)
def test_an_algorithm_names_its_loss(name: str) -> None:
    settings = plugins.build("algorithm", {"name": name}).settings()
    assert {"loss_type", "epsilon", "epsilon_high", "scale_rewards"} == set(settings)
    settings.clear()
    assert plugins.build("algorithm", {"name": name}).settings()


@pytest.mark.parametrize(("kind", "name"), [(k, n) for k in ("reward", "algorithm") for n in plugins.TABLE[k]])
def test_a_plugin_is_its_own_frozen_configuration(kind: str, name: str) -> None:
    plugin: Any = plugins.build(kind, {"name": name})
    assert plugins.build(kind, dataclasses.asdict(plugin)) == plugin
    assert hash(plugin) == hash(plugins.build(kind, {"name": name}))
