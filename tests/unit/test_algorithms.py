"""Algorithms decide how a group is sampled. If this breaks, ARPO branches elsewhere than its formula says, or a setting
in a recipe does nothing."""

from __future__ import annotations

import random
from typing import Any

import pytest

from star import plugins
from star.algorithms.arpo import ARPO
from star.algorithms.dapo import DAPO
from star.algorithms.grpo import GRPO
from star.errors import UsageError
from star.types import Completion

CERTAIN = Completion("", entropies=(0.1, 0.1))
UNSURE = Completion("", entropies=(0.6, 0.4))


def draw(seed: int = 0) -> random.Random:
    return random.Random(seed)


@pytest.mark.parametrize(("initial", "size", "roots"), [(0.5, 16, 8), (1.0, 8, 8), (0.01, 8, 1), (0.25, 8, 2), (0.5, 2, 1)])
def test_arpo_begins_with_a_share_of_roots(initial: float, size: int, roots: int) -> None:
    assert ARPO(initial=initial).roots(size) == roots


def test_arpo_branches_where_entropy_rose() -> None:
    arpo = ARPO(alpha=0.5, beta=0.2, tau=0.5)
    assert arpo.forks([CERTAIN, UNSURE], 8, draw()) == 1
    assert arpo.forks([UNSURE, CERTAIN], 8, draw()) == 0
    assert arpo.forks([CERTAIN, CERTAIN], 8, draw()) == 0, "P must exceed tau"
    assert ARPO(alpha=0.5, beta=0.2, tau=0.59).forks([CERTAIN, UNSURE], 8, draw()) == 0, "P is 0.5 + 0.2 * 0.4"
    assert ARPO(alpha=0.5, beta=0.2, tau=0.57).forks([CERTAIN, UNSURE], 8, draw()) == 1
    assert ARPO(alpha=0.6, beta=0.0).forks([UNSURE, CERTAIN], 8, draw()) == 1, "alpha alone"


def test_arpo_never_exceeds_what_is_left() -> None:
    arpo = ARPO(ways=3)
    assert [arpo.forks([CERTAIN, UNSURE], left, draw()) for left in (5, 3, 2, 0)] == [3, 3, 2, 0]


def test_arpo_looks_at_the_first_tokens_only() -> None:
    late = Completion("", entropies=(0.1, 0.1, 0.9, 0.9))
    assert ARPO(probe=2).forks([CERTAIN, late], 8, draw()) == 0
    assert ARPO(probe=4).forks([CERTAIN, late], 8, draw()) == 1
    assert ARPO().forks([CERTAIN, Completion("")], 8, draw()) == 0, "nothing said is no rise"


def test_arpo_may_toss_a_coin() -> None:
    coin = ARPO(alpha=0.3, beta=0.5, coin=True)
    tosses = [coin.forks([CERTAIN, UNSURE], 8, draw(seed)) for seed in range(1000)]
    assert tosses == [coin.forks([CERTAIN, UNSURE], 8, draw(seed)) for seed in range(1000)]
    assert 430 < sum(tosses) < 570, "P is 0.3 + 0.5 * 0.4"
    assert not any(ARPO(alpha=0.0, beta=0.0, coin=True).forks([CERTAIN, UNSURE], 8, draw(seed)) for seed in range(50))


def test_the_reference_rule_sums_and_looks_one_turn_earlier() -> None:
    rule = ARPO(compat="reference", beta=0.5)
    calm = [CERTAIN, CERTAIN, UNSURE]
    tosses = [rule.forks(calm, 8, draw(seed)) for seed in range(1000)]
    assert 430 < sum(tosses) < 570, "the last turn does not count: P is alpha"
    risen = [rule.forks([CERTAIN, UNSURE, CERTAIN], 8, draw(seed)) for seed in range(1000)]
    assert 870 < sum(risen) < 930, "P is 0.5 + 0.5 * (1.0 - 0.2), a sum over two tokens"
    assert rule.forks([CERTAIN, Completion("", entropies=(9.0,)), CERTAIN], 0, draw()) == 0


@pytest.mark.parametrize(("tokens", "earned"), [(0, 0.0), (60, 0.0), (70, -0.25), (80, -0.5), (100, -1.0), (500, -1.0)])
def test_dapo_punishes_length_softly(tokens: int, earned: float) -> None:
    assert DAPO(soft_limit=100, soft_cache=40).penalty(tokens) == pytest.approx(earned)
    assert DAPO().penalty(tokens) == 0.0


def test_dapo_takes_the_papers_share_as_cache() -> None:
    assert DAPO(soft_limit=20480).penalty(16384) == 0.0
    assert DAPO(soft_limit=20480).penalty(16384 + 2048) == pytest.approx(-0.5)


@pytest.mark.parametrize("algorithm", [GRPO(), DAPO()])
def test_grpo_and_dapo_start_every_rollout_at_the_query(algorithm: GRPO | DAPO) -> None:
    assert algorithm.roots(8) == 8
    assert algorithm.forks([CERTAIN, UNSURE], 8, draw()) == 0


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "arpo", "coin": True, "tau": 0.7}, "tau would have no effect"),
        ({"name": "arpo", "initial": 0.0}, "initial"),
        ({"name": "arpo", "initial": 1.5}, "initial"),
        ({"name": "arpo", "ways": 0}, "ways"),
        ({"name": "arpo", "probe": 0}, "probe"),
        ({"name": "arpo", "advantage": "firm"}, "advantage"),
        ({"name": "grpo", "refill": 1}, "no setting 'refill'"),
        ({"name": "grpo", "loss": "ppo"}, "loss"),
        ({"name": "dapo", "refill": -1}, "refill"),
        ({"name": "dapo", "soft_cache": 10}, "soft_cache has no effect"),
        ({"name": "dapo", "soft_limit": 10, "soft_cache": 11}, "between 1 and soft_limit"),
        ({"name": "dapo", "soft_limit": 0}, "between 1 and soft_limit"),
        ({"name": "arpo", "initial": 1.0, "beta": 0.3}, "beta would have no effect with initial: 1"),
        ({"name": "arpo", "compat": "reference", "ways": 2, "coin": True}, "ways and coin would have no effect with compat"),
        ({"name": "arpo", "compat": "verl"}, "compat"),
        ({"name": "dapo", "loss": "grpo"}, "no setting 'loss'"),
        ({"name": "dapo", "beta": 0.2}, "no setting 'beta'"),
    ],
)
def test_what_has_no_effect_or_no_sense_is_refused(spec: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plugins.build("algorithm", spec)


def test_settings_reach_the_loss() -> None:
    assert GRPO(clip_low=0.1, clip_high=0.3, loss="grpo", scale="none").settings() == {
        "loss_type": "grpo",
        "epsilon": 0.1,
        "epsilon_high": 0.3,
        "scale_rewards": "none",
    }
    for algorithm in (DAPO(clip_low=0.1), ARPO(clip_low=0.1)):
        assert algorithm.settings()["epsilon"] == 0.1 and algorithm.settings()["loss_type"] == "dapo"
