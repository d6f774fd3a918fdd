"""Every refusal is one line: what, where, the fix; with the right exit code, and nothing half-written."""

from __future__ import annotations

import json
import logging
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from star import cli, pipeline
from star.manifest import Entry, Run, Work
from star.records import read_jsonl
from star.settings import Recipe
from star.types import Query

Star = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def recipe() -> Path:
    path = Path("small.yaml")
    path.write_text("world: travel\nsynth: {train: 4}\n")
    return path


@pytest.fixture
def star(capsys: pytest.CaptureFixture[str]) -> Star:
    def star(*words: object) -> tuple[int, str, str]:
        code = cli.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return star


def fake_room(stage: str) -> Callable[..., Entry]:
    """A room that writes its outputs as small files, so that the walk can be driven without training."""

    def room(*arguments: Any, **options: str) -> Entry:
        run, command = arguments[-2:]
        job = pipeline.report_job(run, command) if stage == "report" else None
        if stage == "eval":
            job = pipeline.job(run.recipe, pipeline.evaluation(run.recipe, **options), command)
        job = job or pipeline.job(run.recipe, stage, command)

        def body(work: Work) -> None:
            run.progress(stage, 1, 1, "note")
            found = {s.name: s for s in pipeline.stages(run.recipe)}.get(job.stage)
            for kind in found.makes if found else pipeline.PLAYED:
                work.make(kind, f"{kind}.json").write_text(f"{kind} {sorted(job.takes)}")

        return run.perform(job, body)

    return room


@pytest.fixture
def rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand-ins for the rooms; the manifest, the pipeline and the command line are the real ones."""
    for name, functions in {
        "star.synth": {"queries": fake_room("queries"), "trajectories": fake_room("trajectories")},
        "star.sft": {"sft": fake_room("sft")},
        "star.rl": {"rl": fake_room("rl")},
        "star.eval": {"evaluate": fake_room("eval")},
        "star.report": {
            "report": fake_room("report"),
            "figures": lambda run: FIGURES,
            "table": lambda figures: (["checkpoint"], [[name] for name in figures]),
        },
    }.items():
        module = ModuleType(name)
        module.__dict__.update(functions, check=lambda recipe: None)
        monkeypatch.setitem(sys.modules, name, module)


ROW = {"n": 4, "success": 0.5, "success_interval": [0.2, 0.8], "delivery": 1.0}
FIGURES = {"base": {"greedy": ROW, "sampled": ROW}}


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["sft", "--set", "sft.lrr=1"], 2, "--set sft.lrr: unknown key. Did you mean 'lr'?"),
        (["sft", "--set", "sft.lr=fast"], 2, "--set sft.lr: 'fast' is a wrong value"),
        (["rl", "--algo", "grp"], 2, "--set rl.algo: unknown algorithm 'grp'. Did you mean 'grpo'?"),
        (["rl", "--reward", "none"], 2, "unknown reward 'none'. Known: curriculum, macro, staged, success, sum"),
        (["sft", "-r", "none.yaml"], 2, "none.yaml: no such recipe file"),
        (["sft", "-r", "paper-9b"], 2, "Known: "),
        (["eval", "--split", "test"], 2, "--split test: this split is not for evaluation. Known: dev, validation"),
        (["eval", "--checkpoint", "best"], 2, "--checkpoint best: neither base, sft, rl nor a model directory"),
        (["run", "--until", "rll"], 2, "rll: no such stage. Did you mean 'rl'?"),
        (["run", "small.yaml", "-r", "small.yaml"], 2, "Give one of them"),
        (["synth", "-r", "small.yaml", "queries"], 2, "Put them after it"),
        (["status", "nowhere"], 1, "nowhere: is not a run directory"),
        (["report", "nowhere"], 1, "nowhere: is not a run directory"),
        (["sft", "--from", "nowhere"], 1, "nowhere: is not a run directory"),
        (["rl"], 1, "rl: needs sft-checkpoint, which stage sft has not made"),
        (["sft", "--bogus"], 2, "No such option: --bogus"),
        (["bogus"], 2, "No such command 'bogus'"),
        (["sft", "--seed", "x"], 2, "Invalid value for '--seed'"),
        (["status"], 2, "Missing argument"),
        (["score", "a.jsonl", "--queries", "q.jsonl"], 1, "q.jsonl: no such file"),
        (["score", "nowhere"], 1, "nowhere: no such file"),
        (["data", "info", "nowhere"], 1, "nowhere: no such file or folder. Fetch it: star data fetch"),
        (["data", "build", "--from", "nowhere"], 1, "nowhere: no such folder"),
        (["data", "fetch", "--only", "models"], 2, "--only models: unknown part of the data. Known: database, queries"),
    ],
)
@pytest.mark.usefixtures("rooms")
def test_a_refusal_is_one_line(star: Star, recipe: Path, words: list[str], code: int, message: str) -> None:
    if words[0] in ("sft", "rl", "eval", "run") and not {"-r", "small.yaml"} & set(words):
        words = [words[0], "-r", str(recipe), *words[1:]]
    before = sorted(Path.cwd().rglob("*"))
    got, out, err = star(*words)
    assert (got, out) == (code, "")
    assert err.startswith("error: ") and err.count("\n") == 1, err
    assert message in err
    assert sorted(Path.cwd().rglob("*")) == before, "nothing half-written"


def test_a_torn_recipe_is_named_by_line(star: Star) -> None:
    Path("torn.yaml").write_text("sft: {lr: 1.0\nrl: {")
    code, _, err = star("sft", "-r", "torn.yaml")
    assert code == 2 and "torn.yaml: not valid YAML (line 2" in err


@pytest.mark.usefixtures("rooms")
def test_a_torn_row_is_named_and_leaves_no_stage(star: Star, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def queries(recipe: Recipe, run: Run, command: list[str]) -> Entry:
        def body(work: Work) -> None:
            read_jsonl(Path("rows.jsonl"), Query)

        return run.perform(pipeline.job(recipe, "queries", command), body)

    monkeypatch.setattr(sys.modules["star.synth"], "queries", queries)
    Path("rows.jsonl").write_text('{"id": "q1", "te')
    code, out, err = star("synth", "queries", "-r", recipe)
    assert (code, out) == (1, "")
    assert err.startswith("error: rows.jsonl:1: not a JSON line") and err.count("\n") == 1
    assert not list(Path("runs/small").glob("queries*"))


@pytest.mark.usefixtures("rooms")
def test_the_walk(star: Star, recipe: Path) -> None:
    code, out, err = star("run", recipe, "--json")
    assert code == 0, err
    stages = json.loads(out)["stages"]
    assert [s["stage"] for s in stages] == [s.name for s in pipeline.stages(Recipe())]
    assert all(s["fresh"] for s in stages)
    assert stages[0]["command"] == ["star", "run", "small.yaml", "--json"]
    assert "queries: 1/1  note" in err

    code, out, _ = star("run", recipe, "--json")
    assert not any(s["fresh"] for s in json.loads(out)["stages"]), "all is up to date"
    code, out, _ = star("status", "runs/small", "--verify", "--json")
    assert code == 0 and {s["state"] for s in json.loads(out)["stages"]} == {"done"}
    code, out, _ = star("report", "runs/small")
    assert code == 0 and "base" in out and "report/html.json" in out
    code, out, _ = star("report", "runs/small", "--json")
    assert json.loads(out) == FIGURES


@pytest.mark.usefixtures("rooms")
def test_changed_settings_redo_what_depends_on_them(star: Star, recipe: Path) -> None:
    star("run", recipe)
    code, out, _ = star("run", recipe, "--set", "eval.in_flight=3", "--json")
    assert code == 0
    fresh = {s["stage"] for s in json.loads(out)["stages"] if s["fresh"]}
    assert fresh == {"eval-base", "eval-sft", "eval-rl"}, "equal bytes leave the report as it is"
    _, _, err = star("eval", "--run", "runs/small", "--set", "rl.lr=1.0", "--split", "dev")
    assert "rl is stale (rl.lr changed) and is used as it is" in err
    code, out, _ = star("status", "runs/small")
    assert code == 0 and "stale" in out


@pytest.mark.usefixtures("rooms")
def test_the_run_of_another_recipe_is_refused(star: Star, recipe: Path) -> None:
    star("synth", "-r", recipe)
    before = sorted(Path("runs").rglob("*"))
    code, _, err = star("synth", "-r", recipe, "--seed", "5")
    assert code == 1 and "holds the run of another recipe; it differs in seed. Choose another" in err
    assert err.count("\n") == 1
    assert sorted(Path("runs").rglob("*")) == before


@pytest.mark.usefixtures("rooms")
def test_tampering_is_refused_with_the_command_that_mends_it(star: Star, recipe: Path) -> None:
    star("synth", "-r", recipe)
    (Path("runs/small/trajectories") / "dataset.json").write_text("other")
    code, _, err = star("sft", "-r", recipe)
    assert code == 1 and "dataset.json was changed after it was written. Remake it: star synth -r small.yaml" in err
    code, out, _ = star("status", "runs/small")
    assert code == 1 and "tampered" in out
    assert star("synth", "-r", recipe)[0] == 0
    assert star("sft", "-r", recipe)[0] == 0


@pytest.mark.usefixtures("rooms")
def test_a_run_directory_remembers_its_recipe(star: Star, recipe: Path) -> None:
    star("synth", "-r", recipe, "--run", "here", "--seed", "7")
    recipe.unlink()
    assert star("sft", "--run", "here")[0] == 0
    assert Run.open(Path("here")).recipe.seed == 7
    assert star("run", "here/recipe.json", "--run", "here", "--until", "rl")[0] == 0


@pytest.mark.usefixtures("rooms")
def test_ablations_share_their_ancestors(star: Star, recipe: Path) -> None:
    star("run", recipe, "--until", "sft")
    code, out, _ = star("run", recipe, "--run", "macro", "--from", "runs/small", "--set", "rl.reward=macro", "--json")
    assert code == 0
    adopted = {s["stage"]: s["adopted"] for s in json.loads(out)["stages"]}
    assert [name for name, source in adopted.items() if source] == ["queries", "trajectories", "sft"]
    shutil.rmtree("runs")
    assert star("status", "macro", "--verify")[0] == 0


def test_a_dry_run_needs_no_room_and_writes_nothing(star: Star, recipe: Path) -> None:
    for words in (["synth"], ["sft", "--model", "some/model"], ["rl"], ["eval"], ["run"]):
        code, out, err = star(*words, "-r", recipe, "--dry-run")
        assert code == 0, err
        assert "settings:" in out and "not made yet" in out
    code, out, _ = star("sft", "-r", recipe, "--model", "some/model", "--dry-run", "--json")
    plan = json.loads(out)["stages"][0]
    assert plan["settings"]["sft"]["model"] == "some/model" and "tiny" not in plan["settings"]["sft"]
    assert plan["inputs"] == {"dataset": "not made yet, by stage trajectories"}
    assert plan["outputs"].keys() == {"sft-checkpoint", "sft-log"}
    assert not Path("runs").exists()


@pytest.mark.usefixtures("rooms")
def test_an_interrupt_says_how_to_go_on(star: Star, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def queries(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys.modules["star.synth"], "queries", queries)
    code, _, err = star("synth", "queries", "-r", recipe)
    assert (code, err.strip()) == (130, "interrupted. To go on: star synth queries -r small.yaml")


@pytest.mark.usefixtures("rooms")
def test_debug_shows_the_traceback(star: Star, recipe: Path) -> None:
    _, _, err = star("--debug", "rl", "-r", recipe)
    assert "Traceback" in err and "error: rl: needs" in err


def test_a_failing_disk_is_one_line(star: Star, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device", "runs/small")

    monkeypatch.setattr(cli, "enter", full)
    assert star("rl", "-r", recipe)[::2] == (1, "error: runs/small: No space left on device\n")


def test_help_comes_without_a_command(star: Star) -> None:
    code, out, _ = star()
    assert code == 0 and "Usage: star" in out


def test_a_checkpoint_by_path_has_a_stage_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    stage = pipeline.evaluation(Recipe(), str(tmp_path / "model"), "dev")
    assert stage.name.startswith("eval-model-") and stage.name.endswith("-dev")
    assert pipeline.job(Recipe(), stage, []).config["checkpoint"] == str(tmp_path / "model")
    assert set(stage.takes) == {"queries-dev"}
