"""Certified queries: feasible, new, said in words that read back. If this breaks, models are asked for the impossible, or are
tested on what they were trained on."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from star.cli import main
from star.policies.expert import ExpertPolicy
from star.recipe import build_world, find, load
from star.records import to_json
from star.rollout import Group, Rollout
from star.settings import Limits
from star.types import Query
from star.worlds.travel.certified import Row, Sampler, Wanted, key_of
from star.worlds.travel.checks import judge
from star.worlds.travel.database import Database
from star.worlds.travel.extract import Extractor
from star.worlds.travel.facts import Trip
from star.worlds.travel.generate import Size, generate
from star.worlds.travel.world import TravelWorld

WORLD = Database(generate(Size(cities=16, restaurants=12, hotels=6, sights=6), 3))
REAL = pytest.param("real", marks=pytest.mark.slow)


@pytest.fixture
def tables(request: pytest.FixtureRequest) -> Database:
    if request.param == "embedded":
        return WORLD
    shared: Path = request.getfixturevalue("shared")
    return Database.open(shared / "travelplanner")


def draw(database: Database, count: int, seed: int = 0, **wanted: Any) -> list[Row]:
    return list(itertools.islice(Sampler(database, Wanted(**wanted), seed).rows(), count))


def key(row: Row) -> str:
    return key_of(Trip.of(row.query))


@pytest.mark.parametrize("tables", ["embedded", REAL], indirect=True)
def test_every_query_is_feasible_and_says_what_it_means(tables: Database) -> None:
    rows = draw(tables, 120)
    reader = Extractor(tables.states)
    for row in rows:
        trip = Trip.of(row.query)
        assert reader.says(row.query["query"], trip)
        for mode in ("strict", "official"):
            score = judge(row.query, row.plan, tables, mode)
            assert score.success, (mode, score.reasons, row.query)
            assert score.total_cost is not None and row.cost - 1 < score.total_cost <= row.cost
        assert row.cheapest <= row.cost <= row.query["budget"]
        assert 1.05 <= row.slack <= 8 and row.slack == round(row.query["budget"] / row.cheapest, 4)
        wishes = sum(bool(wish) for wish in row.query["local_constraint"].values())
        assert wishes == {"easy": 0, "medium": 1, "hard": 3}[row.query["level"]]
    assert len({key(row) for row in rows}) == len({row.id for row in rows}) == 120
    assert {row.query["days"] for row in rows} == {3, 5, 7}
    flying = Counter(any("Flight" in str(day["transportation"]) for day in row.plan) for row in rows)
    assert min(flying[True], flying[False]) > 10, "trips by air and by road"


def test_a_longer_list_starts_with_the_shorter_and_seeds_differ() -> None:
    assert draw(WORLD, 20)[:8] == draw(WORLD, 8)
    assert not {key(row) for row in draw(WORLD, 20)} & {key(row) for row in draw(WORLD, 20, 1)}


def test_mix_and_slack_are_kept() -> None:
    rows = draw(WORLD, 30, mix=(0, 0, 1), slack=(1.0, 1.1), days=(3,))
    assert {row.query["level"] for row in rows} == {"hard"} and {row.query["days"] for row in rows} == {3}
    assert all(1 <= row.slack <= 1.1 for row in rows)


WORDS = ["synth", "queries", "--set", "world.size.cities=16", "--set", "world.days=[3, 5]"]


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_command_draws_into_a_file_that_star_score_accepts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl"
    assert main([*WORDS, "--count", "30", "--out", str(first), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["queries"] == 30 and told["drawn"] == 30 + sum(told["dropped"].values())
    assert main([*WORDS, "--count", "30", "--out", str(second), "--disjoint-from", str(first), "--mix", "1:0:0"]) == 0
    assert "30 queries" in capsys.readouterr().out
    trips = [{key_of(Trip.of(row["query"])) for row in read(path)} for path in (first, second)]
    assert not trips[0] & trips[1]
    assert {row["query"]["level"] for row in read(second)} == {"easy"}
    judged = ["score", str(first), "--recipe", "demo", "--set", "world.size.cities=16", "--mode", "all", "--json"]
    assert main(judged) == 0
    reports = json.loads(capsys.readouterr().out)["reports"]
    assert [report["metrics"]["success"]["value"] for report in reports] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--count", "3"], "need both"),
        (["--count", "3", "--out", "x", "--mix", "1:2"], "3 numbers"),
        (["--count", "3", "--out", "x", "--mix", "0:0:0"], "no weight"),
        (["--count", "3", "--out", "x", "--slack", "0.5:2"], "LOW"),
        (["--count", "3", "--out", "x", "--run", "r"], "no effect"),
        (["--count", "3", "--out", "x", "--database", "d", "--recipe", "demo"], "no effect"),
        (["--count", "3", "--out", "x", "--disjoint-from", "missing.jsonl"], "no such file"),
    ],
)
def test_wrong_wishes_are_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["synth", "queries", *words]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "x").exists()


def test_the_demo_asks_and_is_shown_what_it_always_was() -> None:
    """The tiny model learns from few forms: neither the queries of the demo nor the words of its expert may drift."""
    world = build_world(load(find("demo")))
    digest = hashlib.sha256()
    for split in ("train", "rl", "dev", "validation"):
        for query in world.queries(split, 40, 0):
            digest.update((to_json(query) + world.expert(query)([])).encode())
    assert digest.hexdigest()[:16] == "c38dcf31d154ea10"


def test_the_expert_plays_certified_queries_however_tight() -> None:
    world = TravelWorld(size={"cities": 16, "restaurants": 12, "hotels": 6, "sights": 6}, seed=3)
    for row in draw(WORLD, 40, slack=(1.0, 1.02)):
        text = row.query["query"]
        query = Query(row.id, text, row.query, row.query["level"], row.query["days"], "train")
        rows = Rollout(ExpertPolicy(world), world, Limits(), world.score).run([Group(query, 1, row.id)])[0]
        assert rows[0].score is not None and rows[0].score.success, rows[0].score
