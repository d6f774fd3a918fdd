"""The whole way through the command line, as a user walks it. If this breaks, a room no longer fits the next one, a killed
run cannot go on, or bad input leaves half-written work."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.walk

Star = Callable[..., subprocess.CompletedProcess[str]]
Kill = Callable[..., None]

EXACT = {
    "queries": ["queries-train", "queries-rl", "queries-dev", "queries-validation", "world"],
    "trajectories": ["trajectories", "dataset"],
    "sft": ["base", "sft-checkpoint"],
    "rl": ["rl-checkpoint", "rollouts"],
    "eval-rl": ["predictions", "trajectories-greedy", "trajectories-sampled", "scores", "report"],
}
"""Artifacts that an interrupted run leaves bit by bit as an uninterrupted one does. Logs hold seconds and differ."""


def stages(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "manifest.json").read_text())["stages"]
    return found


def hashes(run: Path, stage: str) -> dict[str, str]:
    made = {artifact["kind"]: artifact["sha256"] for artifact in stages(run)[stage]["outputs"]}
    return {kind: made[kind] for kind in EXACT[stage]}


def test_the_walk_ends_with_a_report(whole: Path, good: Star) -> None:
    found = stages(whole)
    assert list(found) == ["queries", "trajectories", "sft", "rl", "eval-base", "eval-sft", "eval-rl", "report"]
    assert found["trajectories"]["metrics"]["kept"] == found["trajectories"]["metrics"]["played"] == 60
    assert found["rl"]["metrics"]["steps"] == 8
    steps = [row for row in json.loads((whole / "rl" / "log.json").read_text())["steps"] if "grad_norm" in row]
    assert sum(row["grad_norm"] > 0 for row in steps) > 4, "there was something to learn"
    assert "<html" in next((whole / "report").glob("*.html")).read_text()[:200]
    figures = json.loads(good("report", "whole", "--json").stdout)
    for checkpoint in ("base", "sft", "rl"):
        for name in ("greedy", "sampled"):
            row = figures[checkpoint][name]
            assert row["n"] == 6 and {"delivery", "commonsense_micro", "hard_macro", "success", "success_interval"} <= set(row)
    states = json.loads(good("status", "whole", "--verify", "--json").stdout)["stages"]
    assert {state["state"] for state in states} == {"done"}


def test_every_episode_is_a_row(whole: Path) -> None:
    for name in ("greedy", "sampled"):
        rows = [json.loads(line) for line in (whole / "eval-rl" / f"{name}.jsonl").read_text().split("\n") if line]
        assert len(rows) == 6 and all(row["score"]["mode"] == "strict" for row in rows)
    rollouts = [json.loads(line) for line in (whole / "rl" / "rollouts.jsonl").read_text().split("\n") if line]
    assert {row["step"] for row in rollouts} == set(range(8))


@pytest.mark.parametrize("algorithm", ["dapo", "arpo"])
def test_every_algorithm_trains(whole: Path, good: Star, algorithm: str) -> None:
    good("rl", "-r", "mini.yaml", "--run", algorithm, "--from", "whole", "--algo", algorithm, "--set", "rl.steps=2")
    found = stages(whole.parent / algorithm)
    assert found["sft"]["adopted"] == "whole" and found["rl"]["metrics"]["steps"] == 2
    assert found["rl"]["config"]["rl"]["algo"]["name"] == algorithm


def test_a_killed_walk_goes_on_and_ends_with_the_same_bytes(place: Path, whole: Path, good: Star, kill: Kill) -> None:
    walk, cut = ("run", "mini.yaml", "--run", "cut"), place / "cut"
    for stage, sign in (
        ("sft", "trainer/checkpoint-8/files.json"),
        ("rl", "trainer/checkpoint-4/files.json"),
        ("eval-rl", "journal-sampled.jsonl"),
    ):
        kill(f"cut/{stage}.partial/{sign}", *walk)
        assert stage not in stages(cut) and not (cut / stage).exists()
        assert (cut / f"{stage}.partial").is_dir()
    done = good(*walk)
    assert "eval-rl: resuming" in done.stderr and "rl: up to date" in done.stderr
    assert all(stages(cut)[stage]["resumed"] for stage in ("sft", "rl", "eval-rl"))
    assert not list(cut.glob("*.partial")) and not list(cut.rglob("*journal*"))
    for stage in EXACT:
        assert hashes(cut, stage) == hashes(whole, stage), stage


DRY = """
import json, sys
from star import cli
code = cli.main(sys.argv[1:])
print(json.dumps([code, sorted({m.partition(".")[0] for m in sys.modules})]))
"""


@pytest.mark.parametrize("stage", ["synth", "sft", "rl", "eval", "run"])
def test_a_dry_run_loads_nothing_heavy(place: Path, environment: dict[str, str], stage: str) -> None:
    words = [sys.executable, "-c", DRY, stage, "-r", "mini.yaml", "--run", "dry", "--dry-run"]
    done = subprocess.run(words, cwd=place, env=environment, check=True, capture_output=True, text=True)
    code, loaded = json.loads(done.stdout.splitlines()[-1])
    assert code == 0 and "settings:" in done.stdout
    assert not {"torch", "transformers", "trl", "datasets", "peft", "accelerate", "numpy"} & set(loaded)
    assert not (place / "dry").exists()


def snapshot(place: Path) -> dict[str, int]:
    return {str(path.relative_to(place)): path.stat().st_size for path in place.rglob("*") if path.name != ".lock"}


@pytest.mark.usefixtures("whole")
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["sft", "-r", "mini.yaml", "--set", "sft.lrr=1"], 2, "--set sft.lrr: unknown key"),
        (["rl", "-r", "mini.yaml", "--algo", "ppo"], 2, "unknown algorithm 'ppo'"),
        (["sft", "-r", "none.yaml"], 2, "none.yaml: no such recipe file"),
        (["eval", "-r", "mini.yaml", "--split", "test"], 2, "--split test"),
        (["sft", "-r", "mini.yaml", "--run", "other", "--model", "broken"], 1, "cannot load the model 'broken'"),
        (["sft", "-r", "mini.yaml", "--run", "whole", "--seed", "9"], 1, "holds the run of another recipe"),
        (["score", "torn.jsonl", "--queries", "whole/queries/validation.jsonl", "-r", "mini.yaml"], 1, "torn.jsonl:2"),
        (["score", "none.jsonl", "--queries", "whole/queries/validation.jsonl", "-r", "mini.yaml"], 1, "none.jsonl"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_is_one_line(place: Path, command: Star, words: list[str], code: int, message: str) -> None:
    (place / "broken").mkdir(exist_ok=True)
    (place / "broken" / "config.json").write_text("{")
    (place / "torn.jsonl").write_text('{"query_id": "validation-00000", "answer": null}\n{"query_id": "vali')
    if "other" in words:
        command("synth", "-r", "mini.yaml", "--run", "other")
    before = snapshot(place)
    done = command(*words)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == code, done.stderr
    assert len(errors) == 1 and message in errors[0], done.stderr
    assert "Traceback" not in done.stderr and done.stdout == ""
    assert snapshot(place) == before, "nothing half-written"


def test_a_tampered_or_torn_artifact_is_refused(place: Path, good: Star, command: Star) -> None:
    good("synth", "queries", "-r", "mini.yaml", "--run", "torn")
    queries = place / "torn" / "queries" / "train.jsonl"
    queries.write_text(queries.read_text()[:-30])
    before = snapshot(place)
    done = command("synth", "trajectories", "-r", "mini.yaml", "--run", "torn")
    assert done.returncode == 1
    assert "train.jsonl was changed after it was written" in done.stderr and "Remake it" in done.stderr
    assert snapshot(place) == before
