"""Verdict for verdict, the reference modes agree with the published evaluators; strict parts with them on purpose."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from star.metrics import report
from star.types import MODES, Mode, Query, Score
from star.worlds.travel.checks import judge
from star.worlds.travel.database import Database

Row = dict[str, Any]
TRUE_ERRORS = {42: "is_valid_information_in_current_city"}
"""Human plans of the training split with an error that the official evaluator misses: number -> what they break."""


@pytest.fixture(scope="module")
def tables(shared: Path) -> Database:
    return Database.open(shared / "travelplanner")


@pytest.fixture(scope="module")
def rows(shared: Path) -> list[Row]:
    lines = (shared / "parity" / "plans.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def train(shared: Path) -> list[Row]:
    lines = (shared / "travelplanner" / "train.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def expected(name: str, cell: object, row: Row) -> object:
    """The verdict that a recorded cell asks for; where the reference raised, the constraint fails."""
    wishes = row["query"].get("local_constraint")
    if name == "valid_cuisine" and cell is None and isinstance(wishes, dict) and wishes.get("cuisine"):
        return False  # the check returned nothing, and the evaluator raised on that
    return False if cell == "error" else cell


def differences(score: Score, verdicts: Mapping[str, Any], row: Row) -> list[str]:
    mine = {**score.commonsense, **score.hard}
    theirs = {**verdicts["commonsense"], **verdicts["hard"]}
    found = [
        f"{row['id']} {row['mutations']} {name}: {mine[name]}, reference {cell}"
        for name, cell in theirs.items()
        if mine[name] is not expected(name, cell, row)
    ]
    found += [f"{row['id']} {name}: no reason" for name, cell in mine.items() if cell is False and name not in score.reasons]
    if score.total_cost != verdicts["total_cost"]:
        found.append(f"{row['id']} {row['mutations']} cost: {score.total_cost}, reference {verdicts['total_cost']}")
    if score.success is not bool(verdicts["success"]):
        found.append(f"{row['id']} {row['mutations']} success: {score.success}, reference {verdicts['success']}")
    return found


@pytest.mark.parametrize(("mode", "name"), [("official", "official"), ("agent-star", "agent_star")])
def test_every_verdict(mode: Mode, name: str, tables: Database, rows: list[Row]) -> None:
    found: list[str] = []
    for row in rows:
        score = judge(row["query"], row["plan"], tables, mode)
        if row[name]["commonsense"] is None:
            assert not score.delivered
        else:
            found += differences(score, row[name], row)
    assert not found, "\n".join(found[:20])
    assert len(rows) == 1478


def test_official_accepts_every_human_plan(tables: Database, train: list[Row]) -> None:
    queries = {str(row["idx"]): Query(str(row["idx"]), row["query"], row, row["level"], row["days"], "train") for row in train}
    scores = [judge(row, row["plan"], tables, "official", str(row["idx"])) for row in train]
    metrics = report(scores, queries, run="human", split="train", mode="official").metrics
    assert {name: (rate.value, rate.n) for name, rate in metrics.items()} == {
        "delivery": (1.0, 45),
        "commonsense_micro": (1.0, 360),
        "commonsense_macro": (1.0, 45),
        "hard_micro": (1.0, 105),
        "hard_macro": (1.0, 45),
        "success": (1.0, 45),
    }


def test_agent_star_fails_two_thirds_of_the_human_plans(tables: Database, train: list[Row]) -> None:
    passed = sum(judge(row, row["plan"], tables, "agent-star").success for row in train)
    assert passed == 15


def test_strict_names_the_true_errors_of_human_plans(tables: Database, train: list[Row]) -> None:
    failures = {row["idx"]: judge(row, row["plan"], tables) for row in train}
    found = {number: list(score.reasons) for number, score in failures.items() if not score.success}
    assert found == {number: [name] for number, name in TRUE_ERRORS.items()}


@pytest.mark.parametrize("mode", MODES)
def test_denominators_of_the_published_splits(mode: Mode, tables: Database, shared: Path) -> None:
    for file, common, hard in (("train.jsonl", 360, 105), ("validation_queries.jsonl", 1440, 420)):
        lines = (shared / "travelplanner" / file).read_text(encoding="utf-8").splitlines()
        facts = [json.loads(line) for line in lines]
        queries = {str(f["idx"]): Query(str(f["idx"]), f["query"], f, f["level"], f["days"], "x") for f in facts}
        scores = [judge(query.facts, None, tables, mode, name) for name, query in queries.items()]
        for some in (scores, scores[:7], []):
            metrics = report(some, queries, run="none", split="x", mode=mode).metrics
            assert (metrics["commonsense_micro"].n, metrics["hard_micro"].n) == (common, hard)
            assert metrics["success"].passed == metrics["delivery"].passed == 0


WRONGLY_PASSED = (
    "attr_none_nd", "attr_repeat_leading_space", "meal_repeat_ws", "meal_wrong_city_nd", "attr_wrong_city_nd",
    "meal_substring_name", "meal_empty_name", "meal_none_nd", "attr_fake_last_no_semicolon", "acc_one_letter",
    "acc_empty_name", "all_train", "bus", "all_fl_no_number", "tr_swapped", "extra_days", "none_exploit",
    "none_exploit_full", "none_exploit_full_junk", "tr_local_walk_nd", "city_never_leave", "q_dest_other",
)  # fmt: skip


@pytest.mark.parametrize("kind", WRONGLY_PASSED)
def test_strict_fails_what_they_pass_wrongly(kind: str, tables: Database, rows: list[Row]) -> None:
    scores = [judge(row["query"], row["plan"], tables) for row in rows if kind in row["mutations"]]
    assert scores
    assert not any(score.success for score in scores)
