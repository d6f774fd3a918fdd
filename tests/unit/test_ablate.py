"""Ablations put runs side by side. If this breaks, a variant trains from another checkpoint, under other settings than it says,
or a run that failed vanishes from the table."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from star import ablate, cli
from star.ablate import Measured, Study, chains, find, read, shipped_files, table, tables
from star.errors import DataError, UsageError
from star.options import Ablating
from star.progress import silent
from star.recipe import load

STUDY = Study(
    "demo", {"grpo": {"rl.algo": {"name": "grpo"}}, "hard": {"rl.algo": {"name": "arpo", "advantage": "hard"}}}, [3, 4],
    {"eval.transfer": False},
)  # fmt: skip
SHIPPED = sorted((shipped_files() / "ablations").glob("*.yaml"))


def test_variants_share_all_up_to_sft(tmp_path: Path) -> None:
    found = chains(STUDY, tmp_path, 4)
    assert list(found) == ["shared-4", "grpo-4", "hard-4"]
    assert [line[0] for line in found["shared-4"]] == ["run", "eval"] and found["shared-4"][0][-2:] == ["--until", "sft"]
    for name in ("grpo", "hard"):
        train, measure = found[f"{name}-4"]
        assert (train[0], measure[0], measure[-2:]) == ("rl", "eval", ["--checkpoint", "rl"])
        for line in (train, measure):
            assert line[line.index("--from") + 1] == str(tmp_path / "shared-4")
            assert line[line.index("--run") + 1] == str(tmp_path / f"{name}-4")
            assert line[line.index("--seed") + 1] == "4"


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_studies_are_what_they_say(path: Path, tmp_path: Path) -> None:
    """Each variant is a recipe, and no two are the same."""
    study, seen = read(path.stem), list[Any]()
    for name, chain in chains(study, tmp_path, 0).items():
        line = chain[0]
        sets = [line[place + 1] for place, word in enumerate(line) if word == "--set"]
        recipe = load(cli.find(study.base), sets)
        if not name.startswith("shared-"):
            wanted = study.variants[name.removesuffix("-0")]
            assert all(getattr(recipe.rl, key.removeprefix("rl.")) == value for key, value in wanted.items())
            assert recipe not in seen
            seen.append(recipe)


def test_make_targets_exist_for_the_studies() -> None:
    for name in ("algorithms", "rewards"):
        assert find(name) in SHIPPED
        done = subprocess.run(["make", "-n", f"ablate-{name}"], cwd=shipped_files().parent, capture_output=True, text=True)
        assert done.returncode == 0 and f"star ablate {name}" in done.stdout


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("base: demo\n", DataError, "variants"),
        ("base: demo\nvariants: {}\n", UsageError, "needs variants and seeds"),
        ("base: demo\nvariants: {a: {}}\nseeds: []\n", UsageError, "needs variants and seeds"),
    ],
)
def test_a_study_that_is_none_is_refused(tmp_path: Path, text: str, kind: type[Exception], message: str) -> None:
    (tmp_path / "study.yaml").write_text(text)
    with pytest.raises(kind, match=message):
        read(str(tmp_path / "study.yaml"))


def test_names_and_seeds_are_checked() -> None:
    with pytest.raises(UsageError, match="no study of this name"):
        read("algorithm")
    with pytest.raises(UsageError, match="not numbers"):
        read("algorithms", "0;1")
    assert read("algorithms", "7,8").seeds == [7, 8]


STAR = """
import json, sys
from pathlib import Path
words = sys.argv[3:]
run = Path(words[words.index("--run") + 1])
if "broken" in run.name:
    print("error: it is broken. Mend it")
    sys.exit(1)
run.mkdir(exist_ok=True)
with (run / "words.jsonl").open("a") as file:
    file.write(json.dumps(words) + chr(10))
"""
"""Stands for python -m star: notes how it was called."""


def test_a_run_that_fails_is_told_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "star.py").write_text(STAR)
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path / "star.py"} "$@"\n')
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(ablate.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "study.yaml").write_text("base: demo\nseeds: [1, 2]\nvariants: {fine: {}, broken: {}}\n")
    result = ablate.ablate(Ablating(str(tmp_path / "study.yaml"), tmp_path / "runs", jobs=2), silent)
    assert result.failed == {f"broken-{seed}": "it is broken. Mend it" for seed in (1, 2)}
    assert [title for title, _, _ in tables(result)] == ["Success on the validation queries", "\nFailed runs"]
    for name in ("shared-1", "shared-2", "fine-1", "fine-2"):
        lines = (tmp_path / "runs" / name / "words.jsonl").read_text().splitlines()
        assert len(lines) == 2 and name in lines[0]
    assert json.loads((tmp_path / "runs" / "ablation.json").read_text())["failed"] == result.failed


def test_the_table_is_over_seeds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = {("sft", 3): 0.25, ("sft", 4): 0.5, ("grpo", 3): 0.5, ("grpo", 4): 0.75}

    def measured(directory: Path, variant: str) -> Measured:
        seed = int(directory.name[-1])
        share = shares.get((variant, seed))
        row = {"n": 100, "success": share, "mode": "strict"}
        passes = {"greedy": row} if share is not None else {}
        learning = [(50.0 * seed, 0.25), (100.0 * seed, 0.75)]
        return Measured(passes, ["it fell"], 100.0 * seed, 1.5, learning) if variant == "grpo" else Measured(passes)

    monkeypatch.setattr(ablate, "_measured", measured)
    sft, grpo = table(STUDY, tmp_path)
    assert (sft.variant, sft.success, sft.n, sft.notes, sft.tool_calls) == ("sft", 0.375, 200, [], None)
    assert (grpo.tool_calls, grpo.at_equal_calls, grpo.minutes) == (350.0, 0.75, 1.5)
    assert sft.at_equal_calls is None
    assert grpo.successes == {3: 0.5, 4: 0.75} and grpo.success == 0.625
    assert 0.55 < grpo.interval[0] < 0.625 < grpo.interval[1] < 0.70
    assert grpo.notes == ["seed 3: it fell", "seed 4: it fell"]


@pytest.mark.parametrize(
    ("budget", "success"),
    [(100.0, 0.7), (99.0, 0.6), (84.0, 0.3), (39.0, 0.1), (9.0, None)],
    ids=["all", "two", "one", "far", "none"],
)
def test_success_at_equal_calls_is_that_of_the_last_batches_within(budget: float, success: float | None) -> None:
    one = Measured(learning=[(10.0, 0.1), (40.0, 0.2), (80.0, 0.3), (90.0, 0.6), (100.0, 0.8)])
    assert one.success_within(budget) == (None if success is None else pytest.approx(success))
