"""Official metrics with honest denominators and intervals."""

from __future__ import annotations

import math
from typing import Any

import pytest

from star.metrics import paired_difference, report, wilson
from star.types import Query, Score

COMMON = [f"c{n}" for n in range(8)]


def query(name: str, difficulty: str = "easy", days: int = 3, **wishes: object) -> Query:
    return Query(name, "text", {"local_constraint": wishes}, difficulty, days, "train")


def score(name: str, failed: int = 0, counts: bool = True, delivered: bool = True, **hard: Any) -> Score:
    commonsense: dict[str, bool | None] = {key: index >= failed for index, key in enumerate(COMMON)}
    return Score(name, "strict", commonsense, hard or {"valid_cost": True}, counts, delivered=delivered)


def test_wilson_against_published_values() -> None:
    rate = wilson(81, 263)
    assert (rate.passed, rate.n) == (81, 263)
    assert rate.value == pytest.approx(0.30798, abs=1e-5)
    assert (rate.low, rate.high) == pytest.approx((0.2553, 0.3662), abs=1e-4)


@pytest.mark.parametrize(("passed", "n"), [(0, 1), (1, 1), (0, 45), (45, 45), (1, 1000), (0, 0)])
def test_wilson_stays_within_bounds(passed: int, n: int) -> None:
    rate = wilson(passed, n)
    assert 0 <= rate.low <= rate.value <= rate.high <= 1
    assert math.isfinite(rate.value)


def test_a_report_counts_every_query() -> None:
    queries = {
        "a": query("a", "easy", 3),
        "b": query("b", "hard", 5, cuisine=["Indian"], transportation="no flight"),
        "c": query("c", "hard", 7, cuisine=None),
    }
    scores = [score("a"), score("b", failed=1, valid_cost=True, valid_cuisine=False, valid_transportation=True)]
    result = report(scores, queries, run="r", split="train", mode="strict")
    rates = {name: (rate.passed, rate.n) for name, rate in result.metrics.items()}
    assert rates == {
        "delivery": (2, 3),
        "commonsense_micro": (15, 24),
        "commonsense_macro": (1, 3),
        "hard_micro": (3, 5),
        "hard_macro": (1, 3),
        "success": (1, 3),
    }
    assert result.n == 3
    assert list(result.by_difficulty) == ["easy", "hard"]
    assert list(result.by_days) == ["3", "5", "7"]
    assert result.by_difficulty["hard"]["success"].n == 2
    assert result.by_days["7"]["hard_micro"].n == 1


def test_hard_constraints_of_an_incomplete_plan_earn_nothing() -> None:
    result = report([score("a", counts=False)], {"a": query("a")}, run="r", split="s", mode="strict")
    assert result.metrics["hard_micro"].passed == result.metrics["hard_macro"].passed == 0
    assert result.metrics["commonsense_macro"].passed == 1


def test_an_undelivered_plan_keeps_its_denominators() -> None:
    silent = score("a", failed=8, counts=False, delivered=False, valid_cost=False, valid_cuisine=False, valid_room_type=None)
    result = report([silent], {"a": query("a", cuisine=["x"])}, run="r", split="s", mode="strict")
    assert (result.metrics["hard_micro"].passed, result.metrics["hard_micro"].n) == (0, 2)
    assert result.metrics["commonsense_micro"].n == 8
    assert result.metrics["delivery"].value == 0


def test_several_scores_of_a_query_all_count() -> None:
    result = report([score("a"), score("a", failed=2)], {"a": query("a")}, run="r", split="s", mode="strict")
    assert (result.n, result.metrics["success"].passed) == (2, 1)


def test_a_score_of_no_query_is_refused() -> None:
    with pytest.raises(ValueError, match="not in the split"):
        report([score("z")], {"a": query("a")}, run="r", split="s", mode="strict")


def test_paired_difference() -> None:
    before = [score(str(n), failed=n % 2) for n in range(10)]
    after = [score(str(n), failed=0) for n in range(10)]
    mean, low, high = paired_difference(before, after)
    spread = 1.959964 * math.sqrt(10 / 9 * 0.25 / 10)
    assert (mean, low, high) == pytest.approx((0.5, 0.5 - spread, 0.5 + spread))
    assert paired_difference(after, before)[0] == -0.5
    assert paired_difference(after, after) == (0.0, 0.0, 0.0)


def test_paired_difference_uses_shared_queries_only() -> None:
    assert paired_difference([score("a", failed=1), score("b")], [score("a"), score("c")])[0] == 1.0
    with pytest.raises(ValueError, match="share no query"):
        paired_difference([score("a")], [score("b")])
