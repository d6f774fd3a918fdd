"""Signs of collapse. If this breaks, a run goes on for a night with a model that is dead."""

from __future__ import annotations

from typing import Any

import pytest

from star.errors import CollapseError
from star.train.watch import check_signal, collapses, signs

FINE = {"rollout/masked": 0.1, "rollout/stop_format": 0.05, "rollout/entropy": 0.4, "frac_reward_zero_std": 0.3}


def history(**last: float) -> list[dict[str, Any]]:
    """Five steps as they should be, then three with other values."""
    return [dict(FINE) for _ in range(5)] + [{**FINE, **{k.replace("__", "/"): v for k, v in last.items()}} for _ in range(3)]


def test_a_healthy_run_shows_nothing() -> None:
    assert signs(history(), {0: {"value": 0.4}, 10: {"value": 0.3}}) == {}
    assert signs([], {}) == {}


@pytest.mark.parametrize(
    ("name", "rows", "words"),
    [
        ("masked", history(rollout__masked=0.95), "95% of the rollouts run into a limit"),
        ("format", history(rollout__stop_format=0.6), "60% of the rollouts end in a turn that is no action"),
        ("entropy", history(rollout__entropy=0.03), "fell from 0.4 to 0.03"),
    ],
)
def test_each_sign_is_told_in_words(name: str, rows: list[dict[str, Any]], words: str) -> None:
    found = signs(rows, {})
    assert list(found) == [name] and words in found[name]
    assert signs([*rows[:-2], FINE, FINE], {}) == {}, "one bad batch is no collapse"


def test_a_fall_on_the_dev_queries_is_told() -> None:
    assert "fell from 40.0% to 19.0%" in signs(history(), {0: {"value": 0.4}, 5: {"value": 0.5}, 10: {"value": 0.19}})["dev"]
    assert signs(history(), {0: {"value": 0.0}, 10: {"value": 0.0}}) == {}


def test_a_collapse_that_passed_is_kept_with_the_results() -> None:
    rows = [{**row, "step": step} for step, row in enumerate([*history(rollout__stop_format=0.6), *history()], 1)]
    dev = {0: {"value": 0.4}, 9: {"value": 0.1}, 16: {"value": 0.4}}
    broken, fell = collapses(rows, dev)
    assert broken.startswith("step 8, passed: 60% of the rollouts end in a turn")
    assert fell.startswith("step 9, passed: success on the dev queries fell from 40.0% to 10.0%")
    assert collapses(rows, {0: {"value": 0.4}, 16: {"value": 0.1}})[1].startswith("step 16: success")
    assert collapses(rows[8:], {0: {"value": 0.4}}) == []


def test_a_run_without_signal_stops() -> None:
    dull = history(frac_reward_zero_std=1.0)
    check_signal(dull, 4)
    with pytest.raises(CollapseError, match="no group of the last 3 batches"):
        check_signal(dull, 3)
