"""What every world promises. If this breaks, the judge refuses the known answer, a model can read the hidden truth, or a
run cannot be repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from star import plugins
from star.errors import StarError, UsageError
from star.policies.expert import ExpertPolicy
from star.records import to_json
from star.rollout import Group, Rollout
from star.settings import Limits
from star.types import MODES, Completion, Query, Turn

SPLITS = ("train", "rl", "dev", "validation")
SMALL = {"cities": 10, "restaurants": 8, "hotels": 5, "sights": 4}
LARGE = {"cities": 30, "restaurants": 20, "hotels": 12, "sights": 8, "flights": 3}
EMBEDDED: dict[str, list[dict[str, Any]]] = {
    "travel": [
        {"days": [3], "size": {"cities": 8, "restaurants": 6, "hotels": 4, "sights": 4, "flights": 2}},
        {"days": [3, 5, 7], "size": SMALL, "seed": 1},
        {"days": [5], "size": LARGE, "seed": 2, "mix": [0, 0, 1]},
        {"days": [7], "size": LARGE, "seed": 3},
        {"days": [3, 5], "size": SMALL, "tool_failure_rate": 0.3},
        {"days": [3, 7], "size": SMALL, "phrasing": "varied", "seed": 4},
    ]
}
"""Settings under which a world is examined; a world of the table has at least one."""
CASES = [(name, case) for name in plugins.TABLE["world"] for case in EMBEDDED[name]]


def label(value: object) -> str:
    return value if isinstance(value, str) else "-".join(f"{key}_{item}" for key, item in dict(value).items() if key != "size")  # type: ignore[call-overload]


def build(name: str, case: dict[str, Any]) -> Any:
    return plugins.build("world", {"name": name, **case})


def examine(world: Any, queries: list[Query]) -> None:
    """Let the expert play every query, and ask the judge in every mode."""
    rollout = Rollout(ExpertPolicy(world), world, Limits(), world.score)
    for group in rollout.run([Group(query, 1, query.id) for query in queries]):
        row = group[0]
        query = next(query for query in queries if query.id == row.query_id)
        assert row.stop == "answer", f"{query.text}: {row.error or row.turns[-1]}"
        assert not any(turn.error for turn in row.turns)
        for mode in MODES:
            score = world.score(query, row.answer, mode)
            assert score.success, f"{mode}: {query.text}: {score.reasons}"


@pytest.mark.parametrize(("name", "case"), CASES, ids=label)
def test_the_judge_accepts_the_expert(name: str, case: dict[str, Any]) -> None:
    world = build(name, case)
    queries = [query for split in SPLITS for query in world.queries(split, 2 if case["size"] == LARGE else 6, 5)]
    assert {query.days for query in queries} == set(case["days"])
    examine(world, queries)


def test_an_expert_that_makes_mistakes_mends_them() -> None:
    """Half its calls go wrong in every way there is, some tools fail on purpose, and it arrives all the same."""
    world = plugins.build(
        "world", {"name": "travel", "days": [3, 5], "mistakes": 0.5, "tool_failure_rate": 0.1, "varied_order": True}
    )
    rollout = Rollout(ExpertPolicy(world), world, Limits(), world.score)
    rows = [row for rows in rollout.run([Group(q, 1, q.id) for q in world.queries("train", 40, 0)]) for row in rows]
    assert all(row.score is not None and row.score.success for row in rows)
    turns = [turn for row in rows for turn in row.turns]
    errors = Counter(turn.error for turn in turns if turn.error)
    assert {"unknown_tool", "bad_arguments", "bad_json"} <= set(errors) and any(turn.fault for turn in turns)
    calls = sum(turn.call is not None or turn.error is not None for turn in turns)
    assert 0.15 < errors.total() / calls < 0.45
    texts = [tuple(turn.call.name for turn in row.turns if turn.call) for row in rows]
    assert len({names[-3:] for names in texts}) > 3, "the order varies"


def test_a_season_holds_all_trips_and_flights() -> None:
    world = plugins.build("world", {"name": "travel", "days": [3], "size": {"cities": 4, "month": "2022-02", "season": 9}})
    days = {f"2022-02-{day:02d}" for day in range(1, 10)}
    dates = {date for query in world.queries("train", 60, 0) for date in query.facts["date"]}
    assert dates == days, "all of it is used"
    flown = {row.date for route in world.tables.flight_routes() for day in days for row in world.tables.flights(*route, day)}
    assert flown == days and not world.tables.flights(*next(iter(world.tables.flight_routes())), "2022-02-10")
    examine(world, world.queries("train", 10, 1))


@pytest.mark.parametrize("size", [{"season": 2}, {"season": 32}, {"month": "2022-02", "season": 29}, {"month": "March"}])
def test_a_season_that_cannot_be_is_refused(size: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"world\.size"):
        plugins.build("world", {"name": "travel", "days": [3], "size": size}).queries("train", 1, 0)
    with pytest.raises(UsageError, match="season"):
        plugins.build("world", {"name": "travel", "days": [5], "size": {"season": 4}}).queries("train", 1, 0)


def test_mistakes_are_the_same_each_time() -> None:
    def texts() -> list[str]:
        world = plugins.build("world", {"name": "travel", "days": [3], "mistakes": 0.3, "varied_order": True})
        rollout = Rollout(ExpertPolicy(world), world, Limits(), world.score)
        rows = rollout.run([Group(query, 1, query.id) for query in world.queries("train", 5, 0)])
        return [turn.completion.text for group in rows for row in group for turn in row.turns]

    assert texts() == texts()


@pytest.mark.slow
def test_the_judge_accepts_the_expert_on_the_real_tables(shared: Path) -> None:
    world = plugins.build("world", {"name": "travel", "database": str(shared / "travelplanner")})
    examine(world, world.queries("validation", 4, 0))


@pytest.mark.parametrize(("name", "case"), CASES[:2], ids=label)
@pytest.mark.parametrize(
    "answer", [None, "", "I do not know.", "[]", "[null]", "{}", "[{}, {}, {}]", "[1e999]", "NaN", "[" * 5000]
)
def test_silence_and_garbage_score_and_do_not_raise(name: str, case: dict[str, Any], answer: str | None) -> None:
    world = build(name, case)
    query = world.queries("validation", 1, 0)[0]
    for mode in MODES:
        score = world.score(query, answer, mode)
        assert not score.success
        assert score.query_id == query.id and score.mode == mode
        assert len(score.commonsense) == 8 and len(score.hard) == 5
        to_json(score)


def truth(query: Query) -> list[str]:
    """Keys of the facts that never stand in a request."""
    return [key for key in query.facts if "_" in key]


@pytest.mark.parametrize(("name", "case"), CASES, ids=label)
def test_episodes_show_no_facts(name: str, case: dict[str, Any]) -> None:
    world = build(name, case)
    for query in world.queries("train", 4, 0):
        env = world.open(query, "k/0")
        assert env.prompt[-1].content == query.text and env.prompt == env.fork().prompt
        shown = "".join(message.content for message in env.prompt) + repr(env)
        assert not any(key in shown for key in truth(query))
        assert query.id not in "".join(message.content for message in env.prompt)


@pytest.mark.parametrize(("name", "case"), [case for case in CASES if case[1]["size"] != LARGE], ids=label)
def test_queries_depend_on_split_and_seed(name: str, case: dict[str, Any]) -> None:
    long = {split: build(name, case).queries(split, 8, 3) for split in SPLITS}
    world = build(name, case)
    for split in reversed(SPLITS):
        assert world.queries(split, 5, 3) == long[split][:5], "a shorter list is the beginning of a longer one"
        assert world.queries(split, 5, 4) != long[split][:5]
        assert len({query.id for query in long[split]}) == len({query.text for query in long[split]}) == 8
        assert {query.split for query in long[split]} == {split}
        assert not any(query.difficulty not in query.facts["level"] for query in long[split])
    with pytest.raises(UsageError, match="unknown split"):
        world.queries("test", 1, 0)


def trips(queries: list[Query]) -> set[str]:
    return {json.dumps({**query.facts, "budget": None, "level": None}, sort_keys=True) for query in queries}


def test_splits_share_no_trip_whatever_the_seed() -> None:
    world = build(*CASES[0])
    found: dict[str, set[str]] = {split: set() for split in SPLITS}
    for split in SPLITS:
        for seed in range(3):
            found[split] |= trips(world.queries(split, 60, seed))
    assert len(found["train"]) > 100
    for split in SPLITS:
        assert not any(found[split] & found[other] for other in SPLITS if other != split)


SCRIPT = """
import json, sys
from star import plugins
from star.records import to_json
world = plugins.build("world", json.loads(sys.argv[1]))
for split in ("train", "validation"):
    for query in world.queries(split, 6, 0):
        print(to_json(query), world.expert(query)([]))
print(world.names(), to_json(world.summary()), world.open(query, "k").prompt)
"""


@pytest.mark.parametrize(("name", "case"), CASES[1:2], ids=label)
def test_nothing_depends_on_the_hash_seed(name: str, case: dict[str, Any]) -> None:
    def once(seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(Path(plugins.__file__).parents[1])}
        words = [sys.executable, "-c", SCRIPT, json.dumps({"name": name, **case})]
        return subprocess.run(words, check=True, capture_output=True, text=True, env=environment).stdout

    outputs = {once(seed) for seed in ("0", "1", "77")}
    assert len(outputs) == 1 and len(outputs.pop()) > 1000


def play(env: Any, world: Any, query: Query, turns: int) -> list[Turn]:
    expert, done = world.expert(query), list[Turn]()
    for _ in range(turns):
        text = expert(done)
        step = env.step(text)
        done.append(Turn(Completion(text), step.observation, step.call, step.error, step.fault))
    return done


@pytest.mark.parametrize(("name", "case"), CASES, ids=label)
def test_a_fork_goes_its_own_way(name: str, case: dict[str, Any]) -> None:
    world = build(name, case)
    query = world.queries("train", 1, 0)[0]
    env, other = world.open(query, "k/0"), world.open(query, "k/0")
    play(env, world, query, 2)
    play(other, world, query, 2)
    fork = env.fork()
    garbage = "<tool_call>{</tool_call>"
    assert env.step(garbage) == fork.step(garbage) == other.step(garbage)
    call = '<tool_call>{"name": "SearchCity", "arguments": {"state": "Ohio"}}</tool_call>'
    heard = [fork.step(call) for _ in range(6)]
    assert [env.step(call) for _ in range(6)] == heard == [other.step(call) for _ in range(6)]


WORLDS = [(world, world.queries("train", 1, 0)[0]) for world in (build(n, EMBEDDED[n][0]) for n in plugins.TABLE["world"])]


@given(text=st.text(max_size=60) | st.sampled_from(["<think>", "<answer></answer>", "<tool_call>[]</tool_call>"]))
@settings(max_examples=50)
def test_an_episode_takes_whatever_a_model_writes(text: str) -> None:
    for world, query in WORLDS:
        step = world.open(query, "k").step(text)
        assert (step.observation is None) != (step.stop is None)


@pytest.mark.parametrize("name", plugins.TABLE["world"])
def test_faults_are_injected_at_their_rate_and_apart_from_errors(name: str) -> None:
    world = build(name, {**EMBEDDED[name][0], "tool_failure_rate": 0.5})
    query = world.queries("train", 1, 0)[0]
    call = '<tool_call>{"name": "SearchCity", "arguments": {"state": "Ohio"}}</tool_call>'
    env = world.open(query, "k/0")
    steps = [env.step(call) for _ in range(60)]
    assert 15 < sum(step.fault is not None for step in steps) < 45
    assert not any(step.error for step in steps)
    off = build(name, {**EMBEDDED[name][0], "tools_off": True}).open(query, "k/0").step(call)
    assert off.fault == "tools_off" and "switched off" in str(off.observation)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"days": [4]}, "3, 5 or 7"),
        ({"days": []}, "3, 5 or 7"),
        ({"mix": [1, 1]}, "three weights"),
        ({"mix": [0, 0, 0]}, "three weights"),
        ({"tool_failure_rate": 1.0}, "between 0 and 1"),
        ({"size": {"towns": 3}}, "The settings are"),
        ({"size": {"cities": 1000}}, "an embedded world has"),
        ({"size": {"cities": 8}, "database": "x"}, "no effect"),
    ],
)
def test_wrong_settings_are_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        _ = build("travel", setting).tables


def test_a_world_too_small_for_its_queries_says_so() -> None:
    world = build("travel", {"days": [7], "size": {"cities": 3}})
    with pytest.raises(StarError, match="no new feasible train query"):
        world.queries("train", 5, 0)
