"""Rewards weigh the judge's verdict. If this breaks, RL climbs another hill than the one the recipe names."""

from __future__ import annotations

import pytest

from star import plugins
from star.errors import UsageError
from star.recipe import load
from star.rewards import COMPONENTS, Curriculum, Macro, Staged, Success, Sum, components, value
from star.types import Score


def score(commonsense: int, hard: int, counts: bool = True, delivered: bool = True) -> Score:
    """A verdict with so many of eight and of five constraints held."""
    return Score(
        "q", "strict", {f"c{i}": i < commonsense for i in range(8)}, {f"h{i}": i < hard for i in range(5)}, counts,
        delivered=delivered,
    )  # fmt: skip


PERFECT = score(8, 5)


def test_a_perfect_plan_earns_everything() -> None:
    assert components(PERFECT) == dict.fromkeys(COMPONENTS, 1.0)
    assert [value(reward, PERFECT, 0.0) for reward in (Sum(), Macro(), Success())] == [5.0, 3.0, 1.0]


def test_parts_are_earned_by_share() -> None:
    assert components(score(6, 5)) == {
        "cs_micro": 0.75,
        "cs_macro": 0.0,
        "hard_micro": 1.0,
        "hard_macro": 1.0,
        "success": 0.0,
    }
    assert value(Sum(), score(8, 4), 0.0) == pytest.approx(1 + 1 + 0.8)
    assert value(Macro(), score(8, 4), 0.0) == 1.0
    assert value(Success(), score(8, 4), 0.0) == 0.0


def test_hard_constraints_earn_nothing_where_they_do_not_count() -> None:
    assert value(Sum(), score(6, 5, counts=False), 0.0) == 0.75


@pytest.mark.parametrize("silence", [None, score(8, 5, delivered=False)])
def test_silence_earns_nothing(silence: Score | None) -> None:
    for reward in (Sum(), Macro(), Success(), Curriculum()):
        assert value(reward, silence, 0.0) == 0.0


def test_what_does_not_apply_is_no_failure() -> None:
    free = Score("q", "strict", {f"c{i}": None for i in range(8)}, {f"h{i}": None for i in range(5)}, True)
    assert value(Sum(), free, 0.0) == 5.0


def test_the_curriculum_follows_progress() -> None:
    reward = Curriculum(macro_from=0.4, success_from=0.8)
    at = {progress: reward.weights(progress) for progress in (0.0, 0.39, 0.4, 0.79, 0.8, 1.0)}
    assert at[0.0] == at[0.39] == Sum().weights(0)
    assert at[0.4] == at[0.79] == Macro().weights(0)
    assert at[0.8] == at[1.0] == Success().weights(0)


@pytest.mark.parametrize("wrong", [{"macro_from": 0.9}, {"success_from": 1.1}, {"macro_from": -0.1}])
def test_a_curriculum_out_of_order_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="macro_from"):
        plugins.build("reward", {"name": "curriculum", **wrong})


def test_stages_share_training_equally() -> None:
    reward = Staged()
    assert reward.weights(0.0) == reward.weights(0.33) == Sum().weights(0)
    assert reward.weights(0.34) == reward.weights(0.66) == Macro().weights(0)
    assert reward.weights(0.67) == reward.weights(1.0) == Success().weights(0)
    dense = Staged(stages=({"cs_micro": 8, "hard_micro": 4},))
    assert value(dense, score(6, 5), 0.9) == 10.0


@pytest.mark.parametrize("stages", ["[]", "[{}]", "[{speed: 1}]", "[{success: -1}]", "[{success: 0}]", "[{success: yes}]", "3"])
def test_stages_without_sense_are_refused(stages: str) -> None:
    with pytest.raises(UsageError, match="stages"):
        load(None, [f"rl.reward={{name: staged, stages: {stages}}}"])


def test_stages_are_written_in_a_recipe() -> None:
    recipe = load(None, ["rl.reward={name: staged, stages: [{cs_micro: 2}, {success: 1}]}"])
    reward = plugins.build("reward", recipe.rl.reward)
    assert reward.weights(0.6)["success"] == 1.0 and reward.weights(0.4)["cs_micro"] == 2.0
