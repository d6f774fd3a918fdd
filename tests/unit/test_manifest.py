"""An entry in the manifest is a promise: the work is finished and its bytes are known. If this breaks, results lie."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from star.errors import DataError, ManifestError
from star.manifest import Entry, Job, Run, Work
from star.settings import Recipe
from star.stage import fingerprint

RECIPE = Recipe(name="small")


def job(stage: str, takes: dict[str, str | None] | None = None, **config: object) -> Job:
    return Job(stage, ["star", stage], config, takes or {}, seed=0)


def write(kind: str, text: str = "a\n") -> Callable[[Work], None]:
    def body(work: Work) -> None:
        work.make(kind, f"{kind}.txt").write_text(text)
        work.rows(kind, 1)
        work.metrics["loss"] = float("nan")

    return body


def copy(source: str, kind: str) -> Callable[[Work], None]:
    def body(work: Work) -> None:
        work.make(kind, f"{kind}.txt").write_text(work.take(source).read_text() + kind)

    return body


def model(work: Work) -> None:
    directory = work.make("model", "model")
    (directory / "part").mkdir(parents=True, exist_ok=True)
    (directory / "part" / "weights.bin").write_bytes(b"12345678")
    (directory / "config.json").write_text("{}")


def forbidden(work: Work) -> None:
    raise AssertionError("this stage is up to date and must not run")


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.open(tmp_path / "run", RECIPE)


def chain(run: Run, text: str = "a\n") -> tuple[Entry, Entry]:
    first = run.perform(job("first", lr=1), write("rows", text))
    return first, run.perform(job("second", {"rows": "first"}), copy("rows", "more"))


def test_opening_a_new_run_leaves_nothing_behind(tmp_path: Path) -> None:
    Run.open(tmp_path / "run", RECIPE)
    assert list(tmp_path.iterdir()) == []


def test_a_finished_stage_is_recorded_with_its_lineage(run: Run) -> None:
    first, second = chain(run)
    assert first.fresh and second.fresh
    assert sorted(p.name for p in run.directory.iterdir() if not p.name.startswith(".")) == [
        "first",
        "manifest.json",
        "recipe.json",
        "second",
    ]
    stored = json.loads((run.directory / "manifest.json").read_text())["stages"]["second"]
    assert stored["inputs"][0]["artifact"]["sha256"] == stored_hash(run, "first")
    assert stored["command"] == ["star", "second"]
    assert {"python", "star"} <= stored["versions"].keys()
    assert "fresh" not in stored
    assert first.outputs[0].path == "first/rows.txt"
    assert (first.outputs[0].bytes, first.outputs[0].rows, first.outputs[0].files) == (2, 1, None)
    assert first.metrics == {"loss": "nan"}
    assert run.path("second", "more").read_text() == "a\nmore"
    assert run.entries() == {"first": replace(first, fresh=False), "second": replace(second, fresh=False)}


def stored_hash(run: Run, stage: str) -> str:
    return run.entries()[stage].outputs[0].sha256


def test_equal_work_is_not_done_twice(run: Run) -> None:
    first, _ = chain(run)
    again = Run.open(run.directory, RECIPE).perform(job("first", lr=1), forbidden)
    assert not again.fresh
    assert again == replace(first, fresh=False)


def test_staleness_follows_from_hashes(run: Run) -> None:
    chain(run)
    assert [s.state for s in run.status()] == ["done", "done"]
    jobs = [job("first", lr=2), job("second", {"rows": "first"}), job("third")]
    assert [(s.state, s.why) for s in run.status(jobs)] == [
        ("stale", "lr changed"),
        ("stale", "first is stale"),
        ("missing", ""),
    ]
    assert run.perform(job("first", lr=2), write("rows")).fresh, "other settings are other work"
    assert [s.state for s in run.status()] == ["done", "done"], "but equal bytes leave the next stage as it is"
    run.perform(job("first", lr=3), write("rows", "b\n"))
    assert [(s.state, s.why) for s in run.status()] == [("done", ""), ("stale", "rows of first changed")]
    assert run.perform(job("second", {"rows": "first"}), copy("rows", "more")).fresh
    assert run.path("second", "more").read_text() == "b\nmore"


def test_a_missing_input_is_refused_with_the_fix_and_leaves_nothing(run: Run) -> None:
    with pytest.raises(ManifestError, match=r"needs rows, which stage first has not made .* Run: star run .* first"):
        run.perform(job("second", {"rows": "first"}), forbidden)
    assert not run.directory.exists()


def test_a_tampered_input_is_refused_with_the_fix(run: Run) -> None:
    chain(run)
    (run.directory / "first" / "rows.txt").write_text("b\n")
    with pytest.raises(ManifestError, match=r"first/rows.txt was changed after it was written. Remake it: star first"):
        run.perform(job("second", {"rows": "first"}), forbidden)
    assert [s.state for s in run.status()] == ["tampered", "stale"]
    assert run.perform(job("first", lr=1), write("rows")).fresh, "remaking mends it"
    assert [s.state for s in run.status()] == ["done", "done"]


def test_a_deleted_input_is_refused_with_the_fix(run: Run) -> None:
    chain(run)
    shutil.rmtree(run.directory / "first")
    with pytest.raises(ManifestError, match=r"first/rows.txt is missing. Remake it: star first"):
        run.perform(job("third", {"rows": "first"}), forbidden)
    assert [s.state for s in run.status()] == ["missing", "stale"]


def test_directories_are_checked_by_size_and_hashed_on_demand(run: Run) -> None:
    entry = run.perform(job("train"), model)
    assert (entry.outputs[0].bytes, entry.outputs[0].files) == (10, 2)
    (run.directory / "train" / "model" / "part" / "weights.bin").write_bytes(b"87654321")
    assert [s.state for s in run.status()] == ["done"]
    assert [s.state for s in run.verify()] == ["tampered"]
    (run.directory / "train" / "model" / "part" / "weights.bin").write_bytes(b"1")
    assert [s.state for s in run.status()] == ["tampered"]
    with pytest.raises(ManifestError, match="train/model was changed"):
        run.perform(job("use", {"model": None}), forbidden)


def test_several_artifacts_of_one_kind_are_told_apart_by_label(run: Run) -> None:
    run.perform(job("one"), write("rows", "1"))
    run.perform(job("two"), write("rows", "2"))

    def body(work: Work) -> None:
        work.make("both", "both").write_text(work.take("one/rows").read_text() + work.take("two/rows").read_text())

    run.perform(job("three", {"one/rows": "one", "two/rows": "two"}), body)
    assert run.path("three", "both").read_text() == "12"
    with pytest.raises(ManifestError, match="2 stages have made"):
        run.perform(job("four", {"rows": None}), forbidden)
    with pytest.raises(ManifestError, match="stage one has no artifact 'row'. It has: rows"):
        run.path("one", "row")


def half(work: Work) -> None:
    (work.directory / "half").write_text("half")
    raise KeyboardInterrupt


def test_an_interrupted_stage_resumes_only_as_the_same_job(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyboardInterrupt):
        run.perform(job("first", lr=1), half)
    assert [(s.stage, s.state) for s in run.status([job("first", lr=1)])] == [("first", "partial")]

    def rest(work: Work) -> None:
        assert work.resuming and (work.directory / "half").exists()
        (work.directory / "half").unlink()
        work.make("rows", "rows.txt").write_text("whole")

    assert run.perform(job("first", lr=1), rest).resumed

    with pytest.raises(KeyboardInterrupt):
        run.perform(job("first", lr=2), half)

    def fresh(work: Work) -> None:
        assert not work.resuming and not (work.directory / "half").exists()
        work.make("rows", "rows.txt").write_text("new")

    with caplog.at_level(logging.WARNING):
        assert not run.perform(job("first", lr=3), fresh).resumed
    assert "first: its unfinished work differs in config.lr" in caplog.text
    assert not (run.directory / "first" / "half").exists()

    def found(work: Work) -> None:
        assert work.resuming and (work.directory / "half").exists()
        work.make("rows", "rows.txt").write_text("new")

    assert run.perform(job("first", lr=2), found).resumed
    assert not list(run.directory.glob("*.partial"))


def test_unfinished_work_outlives_slips(run: Run, tmp_path: Path) -> None:
    """Two commands with other settings, of which one is stopped and one fails, cost a night's work nothing."""
    with pytest.raises(KeyboardInterrupt):
        run.perform(job("first", lr=1), half)
    with pytest.raises(KeyboardInterrupt):
        run.perform(job("first", lr=2), half)
    with pytest.raises(DataError):
        run.perform(job("first", lr=3), failing)
    assert len(list(run.directory.glob("first.*.partial"))) == 2
    assert run.entries() == {}

    def rest(work: Work) -> None:
        assert work.resuming and (work.directory / "half").exists()
        work.make("rows", "rows.txt").write_text("whole")

    assert run.perform(job("first", lr=1), rest).resumed
    other = Run.open(tmp_path / "other", RECIPE, ancestor=run.directory)
    with pytest.raises(KeyboardInterrupt):
        other.perform(job("first", lr=2), half)
    assert other.perform(job("first", lr=1), forbidden).adopted
    assert other.perform(job("first", lr=2), rest).resumed


def failing(work: Work) -> None:
    raise DataError("queries.jsonl:3: torn")


def test_a_stage_that_fails_before_it_writes_leaves_nothing(run: Run) -> None:
    with pytest.raises(DataError):
        run.perform(job("first"), failing)
    assert not (run.directory / "first.partial").exists()
    assert run.entries() == {}
    assert Run.open(run.directory, RECIPE).entries() == {}


def test_a_declared_output_must_exist(run: Run) -> None:
    with pytest.raises(ManifestError, match="ended without its rows"):
        run.perform(job("first"), lambda work: work.metrics.update(path=str(work.make("rows", "rows.txt"))))
    assert run.entries() == {}


def test_only_declared_inputs_can_be_taken(run: Run) -> None:
    with pytest.raises(KeyError, match="does not declare"):
        run.perform(job("first"), lambda work: print(work.take("rows")))


def test_a_run_of_another_recipe_is_refused(run: Run) -> None:
    chain(run)
    other = replace(RECIPE, name="big", seed=3, world={"name": "travel", "size": 2})
    with pytest.raises(ManifestError, match=r"another recipe; it differs in name, seed, world.size. Choose another"):
        Run.open(run.directory, other)
    changed = replace(RECIPE, eval=replace(RECIPE.eval, in_flight=7))
    assert Run.open(run.directory, changed).recipe == changed
    assert Run.open(run.directory).recipe == RECIPE, "the snapshot follows only when a stage is done"


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ManifestError, match="exists, but is not a run directory"):
        Run.open(tmp_path, RECIPE)
    with pytest.raises(ManifestError, match="is not a run directory"):
        Run.open(tmp_path / "none")
    with pytest.raises(ManifestError, match="is not a run directory"):
        Run.open(tmp_path / "new", RECIPE, ancestor=tmp_path / "none")


def test_a_torn_manifest_is_named(run: Run) -> None:
    chain(run)
    (run.directory / "manifest.json").write_text('{"stages": {')
    with pytest.raises(DataError, match=r"manifest.json:1: not JSON"):
        Run.open(run.directory, RECIPE)


def test_ancestors_are_shared_if_they_did_the_same_work(run: Run, tmp_path: Path) -> None:
    first, _ = chain(run)
    run.perform(job("train"), model)
    other = Run.open(tmp_path / "ablation", replace(RECIPE, name="ablation"), ancestor=run.directory)
    shared = other.perform(job("first", lr=1), forbidden)
    assert shared.adopted == str(run.directory)
    assert shared.outputs == first.outputs
    assert other.path("first", "rows").stat().st_ino == run.path("first", "rows").stat().st_ino
    other.perform(job("train"), forbidden)
    assert other.perform(job("second", {"rows": "first"}, lr=9), copy("rows", "more")).adopted is None
    assert [s.state for s in Run.open(other.directory).verify()] == ["done", "done", "done"]


def test_all_equal_ancestors_are_shared_at_once(run: Run, tmp_path: Path) -> None:
    jobs = [job("first", lr=1), job("second", {"rows": "first"}, lr=2)]
    run.perform(jobs[0], write("rows"))
    run.perform(jobs[1], copy("rows", "more"))
    other = Run.open(tmp_path / "ablation", replace(RECIPE, name="ablation"), ancestor=run.directory)
    other.share([jobs[0], job("second", {"rows": "first"}, lr=9)])
    assert list(other.entries()) == ["first"], "work that would differ is left to its room"
    other.share(jobs)
    assert [entry.adopted for entry in other.entries().values()] == [str(run.directory)] * 2


def test_a_tampered_ancestor_is_not_shared(run: Run, tmp_path: Path) -> None:
    chain(run)
    (run.directory / "first" / "rows.txt").write_text("b\n")
    other = Run.open(tmp_path / "ablation", RECIPE, ancestor=run.directory)
    assert other.perform(job("first", lr=1), write("rows")).adopted is None


SCRIPT = """
import os, sys
from pathlib import Path
from star.manifest import Job, Run
from star.settings import Recipe

run = Run.open(Path(sys.argv[1]), Recipe(name="small"))
steps = [int(sys.argv[2])]
for name in ("replace", "fsync"):
    def wrapped(*arguments, real=getattr(os, name)):
        steps[0] -= 1
        if steps[0] == 0:
            os._exit(9)
        return real(*arguments)
    setattr(os, name, wrapped)

def body(work):
    work.make("rows", "rows.txt").write_text(sys.argv[3])

run.perform(Job("first", ["star", "first"], {"text": sys.argv[3]}, {}, 0), body)
"""


def test_a_process_killed_at_any_moment_leaves_the_old_state_or_the_new(run: Run) -> None:
    def attempt(moment: int, text: str) -> int:
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(run.directory), str(moment), text]
        return subprocess.run(command, check=False, cwd=Path(__file__).parents[2]).returncode

    assert attempt(0, "old") == 0
    old = run.entries()["first"]
    seen, moment = set(), 0
    while True:
        moment += 1
        code = attempt(moment, "new")
        again = Run.open(run.directory, RECIPE)
        entry = again.entries()["first"]
        assert again.path("first", "rows").read_text() == entry.config["text"]
        assert [s.state for s in again.verify()] == ["done"]
        assert not [p for p in run.directory.iterdir() if p.suffix in {".old", ".tmp"}]
        seen.add(entry.config["text"])
        if entry.config["text"] == "new":
            attempt(0, "old")
            assert Run.open(run.directory, RECIPE).entries()["first"].outputs == old.outputs
        if code == 0:
            break
        assert code == 9
    assert seen == {"old", "new"}
    assert moment > 5


def test_a_second_writer_is_refused_at_once(run: Run, tmp_path: Path) -> None:
    script = """
    import sys
    from pathlib import Path
    from star.manifest import Job, Run
    from star.settings import Recipe

    def body(work):
        work.make("rows", "rows.txt").write_text("x")
        print("writing", flush=True)
        sys.stdin.read()

    Run.open(Path(sys.argv[1]), Recipe(name="small")).perform(Job("slow", ["star"], {}, {}, 0), body)
    """
    writer = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), str(run.directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    )
    with writer:
        assert writer.stdout is not None and writer.stdin is not None
        assert writer.stdout.readline() == b"writing\n"
        again = Run.open(run.directory, RECIPE)
        with pytest.raises(ManifestError, match=rf"another process is writing this run \(process {writer.pid}\)"):
            again.perform(job("first"), forbidden)
        assert [s.state for s in again.status([job("slow")])] == ["partial"]
        writer.kill()
    assert again.perform(job("first"), write("rows")).fresh, "the lock of a dead process is free"


def test_a_stage_cannot_start_another(run: Run) -> None:
    with pytest.raises(ManifestError, match="One stage at a time"):
        run.perform(job("first"), lambda work: run.perform(job("second"), forbidden) and None)


def test_nothing_is_hidden_in_environment(run: Run) -> None:
    before = dict(os.environ)
    chain(run)
    assert dict(os.environ) == before


def test_fingerprints_depend_on_all_that_decides_the_outcome(run: Run) -> None:
    base = job("first", lr=1)
    prints = {
        fingerprint(j, []) for j in (base, replace(base, stage="x"), replace(base, config={"lr": 2}), replace(base, seed=1))
    }
    assert len(prints) == 4
    assert fingerprint(base, []) == fingerprint(replace(base, command=["other"]), [])
