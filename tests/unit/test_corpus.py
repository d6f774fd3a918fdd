"""What is said of a dataset is true of it. If this breaks, somebody trains on something else than the card describes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from star.cli import main
from star.corpus import MEASURES, spread, statistics, tables, variety
from star.manifest import Input, Run
from star.recipe import load
from star.records import read_jsonl, write_json
from star.types import Completion, Query, Trajectory, Turn

Star = Callable[..., tuple[int, str, str]]
QUERIES = {name: Query(name, "text", {}, level, days, "train") for name, level, days in (("a", "easy", 3), ("b", "hard", 5))}


def row(name: str, turns: list[Completion], **other: object) -> Trajectory:
    return Trajectory(f"t/{name}/0", name, "p", (), tuple(map(Turn, turns)), "answer", **other)  # type: ignore[arg-type]


def test_spread() -> None:
    assert spread([]) == {}
    assert spread([1, 2, 6]) == {"least": 1, "median": 2, "mean": 3.0, "greatest": 6, "deviation": 2.16}


def test_variety_counts_sequences_inside_a_text() -> None:
    assert variety([]) == {"texts": 0, "different": 0, "words": 0}
    found = variety(["To be or not to be.", "Be!", "Be!"])
    assert found == {"texts": 3, "different": 2, "words": 8, "distinct_1": 4 / 8, "distinct_2": 4 / 5, "distinct_3": 1.0}


@pytest.mark.parametrize(
    ("completions", "by", "tokens"),
    [
        ([Completion("x", tokens=3), Completion("y", tokens=0)], "the teacher's server", 3),
        ([Completion("x", token_ids=(5, 6)), Completion("y", token_ids=(7,))], "the teacher's tokenizer", 3),
        ([Completion("x", tokens=3), Completion("y")], None, None),
        ([Completion("x"), Completion("y")], None, None),
        ([Completion("x", token_ids=(5, 6)), Completion("y", tokens=1)], None, None),
    ],
)
def test_tokens_are_counted_by_the_teacher_or_not_at_all(completions: list[Completion], by: str | None, tokens: int) -> None:
    rows = [row("a", completions)]
    found = statistics(rows, rows, QUERIES)
    assert found.get("tokens_counted_by") == by
    assert found.get("tokens_said", {}).get("greatest") == tokens


def test_failures_are_counted_by_their_reasons() -> None:
    played = [row("a", [Completion("")], error=f"HTTP\n{number // 4}") for number in range(100)]
    found = statistics(played, [], QUERIES)
    assert len(found["failed_for"]) == 10 and "HTTP 3" in found["failed_for"] and set(found["failed_for"].values()) == {4}
    assert (found["accepted"], found["kept"], found["rejected_for"]) == (0, 0, {"unjudged": 100})
    assert found["by_difficulty"] == {"easy": {"queries": 1, "kept": 0}} and found["turns"] == {}


@pytest.fixture
def star(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Star:
    monkeypatch.chdir(tmp_path)
    Path("small.yaml").write_text(
        "name: small\nworld: {name: travel, size: {cities: 9}, mistakes: 0.2, varied_order: true}\n"
        "synth: {train: 60, rl: 2, dev: 2, validation: 2}\n"
    )

    def star(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return star


def test_the_expert_is_always_accepted_and_its_dataset_is_shown(star: Star) -> None:
    assert star("synth", "--recipe", "small.yaml")[0] == 0
    code, out, err = star("synth", "stats", "--run", "runs/small", "--json")
    assert code == 0, err
    found = json.loads(out)
    assert found["kept"] == found["accepted"] == found["queries"] == 60
    rows = read_jsonl(Path("runs/small/trajectories/trajectories.jsonl"), Trajectory)
    assert found["turns"]["greatest"] == max(len(row.turns) for row in rows)
    assert found["thoughts"]["texts"] == sum(len(row.turns) for row in rows)
    assert 0 < found["thoughts"]["distinct_1"] < found["thoughts"]["distinct_3"] < 1
    assert found["errors"].keys() == {"bad_json", "unknown_tool", "bad_arguments"} and found["failed_for"] == {}
    assert "learner" not in found and "tokens_said" not in found
    code, out, _ = star("synth", "stats", "--run", "runs/small")
    assert code == 0 and "60 kept of 60 tries at 60 queries" in out and "tokens counted by: nobody yet" in out
    assert all(word in out for word in ("easy", "7 days", "tool calls", "distinct-2", "unknown_tool"))


def test_a_run_without_a_dataset_is_refused(star: Star) -> None:
    assert star("synth", "queries", "--recipe", "small.yaml")[0] == 0
    code, _, err = star("synth", "stats", "--run", "runs/small")
    assert code == 1 and "trajectories is not finished" in err


def test_tokens_of_the_learner_are_those_of_sft_on_this_dataset(star: Star) -> None:
    assert star("synth", "--recipe", "small.yaml")[0] == 0
    run = Run.open(Path("runs/small"), load(Path("small.yaml")))
    entries = run.entries()
    made = entries["trajectories"]
    counted = {"tokens": spread([10, 20]), "trained_tokens": spread([1, 2])}
    metrics = {"conversation": counted}
    sft = replace(
        made,
        stage="sft",
        config={"sft": {"model": "tiny"}},
        metrics=metrics,
        inputs=[Input("dataset", "trajectories", made.output("dataset"))],
    )
    manifest = json.loads(Path("runs/small/manifest.json").read_text())
    manifest["stages"]["sft"] = sft.stored()
    write_json(Path("runs/small/manifest.json"), manifest)
    found = json.loads(star("synth", "stats", "--run", "runs/small", "--json")[1])
    assert found["learner"] == {"tokenizer": "tiny", **counted}
    shown = [(head, rows) for _, head, rows in tables(found)]
    names = [line[0] for head, rows in shown if "median" in head for line in rows]
    assert {MEASURES["tokens"], MEASURES["trained_tokens"]} <= set(names)
    assert any("the tokenizer of tiny, after SFT" in title for title, _, _ in tables(found))
    assert star("synth", "trajectories", "--recipe", "small.yaml", "--max-queries", 50)[0] == 0
    assert "learner" not in json.loads(star("synth", "stats", "--run", "runs/small", "--json")[1]), "of another dataset"
