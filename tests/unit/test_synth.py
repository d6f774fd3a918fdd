"""From a teacher's tries to a dataset. If this breaks, money is spent twice, the worse try is learned from, or another
trainer reads other conversations than ours."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import pytest
from datasets import load_dataset

from star.cli import main
from star.dataset import best, said
from star.endpoint import Usage
from star.protocols import Conversation, World
from star.records import read_jsonl
from star.types import Completion, Example, Trajectory

Star = Callable[..., tuple[int, str, str]]
SMALL = """
name: small
world: {name: travel, days: [3], size: {cities: 4}}
synth: {train: 12, rl: 2, dev: 2, validation: 2}
"""


@dataclass
class Moody:
    """A teacher that is right, wordy or silent, by its rollout's number; every turn costs a dollar."""

    _: KW_ONLY
    world: World
    max_cost: float | None = None
    silent: bool = False
    windy: bool = False
    name: str = "moody"
    usage: Usage = field(default_factory=Usage)
    dies_after: ClassVar[int | None] = None
    """Calls, over all teachers of this process."""
    asked: ClassVar[int] = 0

    @property
    def spent(self) -> bool:
        return self.max_cost is not None and self.usage.dollars >= self.max_cost

    def complete(self, conversations: Sequence[Conversation]) -> list[Completion]:
        return [self._say(conversation) for conversation in conversations]

    def _say(self, conversation: Conversation) -> Completion:
        if self.dies_after is not None and Moody.asked >= self.dies_after:
            raise KeyboardInterrupt
        Moody.asked += 1
        self.usage.calls += 1
        self.usage.dollars += 1.0
        mood = int(conversation.id.rsplit("/", 1)[1])
        text = self.world.expert(conversation.query)(conversation.turns)
        if mood == 0 or self.windy:
            text = text.replace("<think>", "<think>Well, let me think about this at some length. ")
        return Completion("<think>I give up.</think>\n<answer></answer>" if mood == 2 or self.silent else text)


@pytest.fixture(autouse=True)
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Moody, "asked", 0)
    Path("small.yaml").write_text(SMALL)


@pytest.fixture
def star(capsys: pytest.CaptureFixture[str]) -> Star:
    def star(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        return code, *capsys.readouterr()

    return star


TEACHER = f"synth.teacher={{name: '{__name__}:Moody'}}"
BASE = ("--recipe", "small.yaml", "--set", TEACHER)
STAGE = Path("runs/small/trajectories")


def entry() -> dict[str, Any]:
    stages = json.loads(Path("runs/small/manifest.json").read_text())["stages"]
    found = stages["trajectories"] if isinstance(stages, dict) else next(s for s in stages if s["stage"] == "trajectories")
    return found["metrics"]  # type: ignore[no-any-return]


def test_the_shortest_accepted_try_is_kept(star: Star) -> None:
    assert star("synth", "queries", *BASE)[0] == 0
    code, _, err = star("synth", "trajectories", *BASE, "--samples", 3)
    assert code == 0, err
    rows = read_jsonl(STAGE / "trajectories.jsonl", Trajectory)
    kept = read_jsonl(STAGE / "dataset.jsonl", Example)
    assert len(rows) == 36 and len(kept) == 12
    assert {example.trajectory_id.rsplit("/", 1)[1] for example in kept} == {"1"}, "0 is wordy, 2 is silent"
    found = entry()
    assert (found["played"], found["queries"], found["kept"], found["unplayed"]) == (36, 12, 12, 0)
    assert found["stops"]["answer"] + found["stops"].get("format", 0) == 36
    assert sum(part["queries"] for part in found["by_difficulty"].values()) == 12
    assert found["rejected_for"]["is_not_absent"] == 12
    least = min(said(row) for row in rows if row.id.endswith("/1"))
    assert found["characters_said"]["least"] == least
    card = (STAGE / "README.md").read_text()
    assert card.startswith("---\nlicense: mit") and "12 conversations, from 36 tries at 12 queries" in card
    assert "| 3 days | 12 | 12 |" in card and "| is_not_absent | 12 |" in card
    assert "accepted" in err


def test_of_nothing_accepted_nothing_is_kept() -> None:
    assert best([]) is None


def test_limits_stop_the_teacher(star: Star) -> None:
    assert star("synth", "queries", *BASE)[0] == 0
    assert star("synth", "trajectories", *BASE, "--max-queries", 5)[0] == 0
    assert (entry()["queries"], entry()["kept"]) == (5, 5)
    code, _, err = star("synth", "trajectories", *BASE, "--samples", 0)
    assert code == 2 and "samples" in err


def test_a_budget_counts_what_was_spent_before(star: Star) -> None:
    assert star("synth", "queries", *BASE)[0] == 0
    assert star("synth", "trajectories", *BASE, "--samples", 11, "--max-cost", 1.5)[0] == 0
    found, calls = entry(), Moody.asked
    assert found["played"] == 128, "so many were in flight at once, and what has begun is finished"
    assert found["teacher"]["dollars"] == calls > 1.5
    assert star("synth", "trajectories", *BASE, "--samples", 12, "--max-cost", 2)[0] == 0
    assert Moody.asked == calls and entry()["played"] == 128, "the money is still spent"
    assert star("synth", "trajectories", *BASE, "--samples", 11, "--max-cost", 1e6)[0] == 0
    assert entry()["played"] == 132 and entry()["teacher"]["dollars"] == Moody.asked > calls


LIMITS = [
    (("--max-queries", 5), ("--max-queries", 9)),
    (("--samples", 1), ("--samples", 3)),
    (("--samples", 2, "--max-queries", 3), ("--samples", 3, "--max-queries", 7)),
    (("--set", "synth.mode=official"), ("--set", "synth.mode=strict")),
    (("--set", "synth.train=7"), ("--set", "synth.train=12")),
]


@pytest.mark.parametrize(("few", "many"), LIMITS)
def test_raised_limits_go_on_from_what_was_played(
    star: Star, few: tuple[object, ...], many: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also back and forth: what was paid for once is never asked again."""

    def play(limits: tuple[object, ...], run: str) -> list[bytes]:
        sets = limits if "synth.train" in str(limits) else ()
        assert star("synth", "queries", *BASE, "--run", run, *sets)[0] == 0
        code, _, err = star("synth", "trajectories", *BASE, "--run", run, *limits)
        assert code == 0, err
        return (Path(run) / "trajectories" / "trajectories.jsonl").read_bytes().splitlines()

    straight, calls = play(many, "straight"), Moody.asked
    monkeypatch.setattr(Moody, "asked", 0)
    first = play(few, "here")
    assert ("mode" in str(few)) or 0 < Moody.asked < calls
    assert play(many, "here") == straight and Moody.asked == calls
    assert play(few, "here") == first and play(many, "here") == straight and Moody.asked == calls
    stages = json.loads(Path("here/manifest.json").read_text())["stages"]
    assert stages["trajectories"]["metrics"]["teacher"]["dollars"] == calls
    assert {path.name for path in Path("here/trajectories").iterdir()} >= {"trajectories.jsonl", "dataset.jsonl", "README.md"}
    assert not (Path("here/trajectories") / "journal.jsonl").exists()


def test_an_interrupted_play_goes_on_under_other_limits(star: Star, monkeypatch: pytest.MonkeyPatch) -> None:
    assert star("synth", "queries", *BASE)[0] == 0
    monkeypatch.setattr(Moody, "dies_after", 70)
    code, _, err = star("synth", "trajectories", *BASE, "--samples", 3)
    assert code == 130 and "To go on" in err
    partial = Path("runs/small/trajectories.partial")
    held = {json.loads(line)["id"] for line in (partial / "journal.jsonl").read_text().splitlines()}
    assert 0 < len(held) < 36 and json.loads((partial / "usage.json").read_text())["calls"] <= 70
    monkeypatch.setattr(Moody, "dies_after", None)
    code, _, err = star("synth", "trajectories", *BASE, "--samples", 4)
    assert code == 0 and "synth.samples changed" in err
    rows = read_jsonl(STAGE / "trajectories.jsonl", Trajectory)
    assert len({row.id for row in rows}) == len(rows) == 48
    assert Moody.asked == 70 + sum(len(row.turns) for row in rows if row.id not in held)


def test_another_teacher_plays_anew(star: Star) -> None:
    assert star("synth", "queries", *BASE)[0] == 0
    assert star("synth", "trajectories", *BASE)[0] == 0
    calls = Moody.asked
    assert star("synth", "trajectories", *BASE, "--set", "synth.teacher.windy=true")[0] == 0
    assert Moody.asked == 2 * calls and entry()["teacher"]["calls"] == calls


def test_what_was_played_is_kept_when_nothing_is_accepted(star: Star) -> None:
    """Another judge mode or a look at the reasons must not cost the tries again."""
    assert star("synth", "queries", *BASE)[0] == 0
    hopeless = ("--recipe", "small.yaml", "--set", TEACHER.replace("Moody'", "Moody', silent: true"))
    code, _, err = star("synth", "trajectories", *hopeless)
    assert code == 1 and "accepted none of 12" in err
    partial = Path("runs/small/trajectories.partial")
    calls = json.loads((partial / "usage.json").read_text())["calls"]
    assert (partial / "trajectories.jsonl").exists()
    assert star("synth", "trajectories", *hopeless)[0] == 1
    assert json.loads((partial / "usage.json").read_text())["calls"] == calls, "nothing was asked again"


@pytest.mark.parametrize("form", ["messages", "sharegpt", "parquet"])
def test_a_dataset_is_exported_for_other_trainers(star: Star, tmp_path: Path, form: str) -> None:
    assert star("synth", "--recipe", "small.yaml")[0] == 0
    out = tmp_path / "out" / ("data.parquet" if form == "parquet" else "data.jsonl")
    code, said, err = star("synth", "export", "--run", "runs/small", "--format", form, "--out", out, "--json")
    assert code == 0, err
    assert json.loads(said)["rows"] == 12
    kept = read_jsonl(STAGE / "dataset.jsonl", Example)
    kind = "parquet" if form == "parquet" else "json"
    rows = load_dataset(kind, data_files=str(out), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(rows) == 12
    for row, example in zip(rows, kept, strict=True):
        if form == "sharegpt":
            assert row["system"] == example.messages[0].content
            assert [turn["value"] for turn in row["conversations"]] == [m.content for m in example.messages[1:]]
            assert {turn["from"] for turn in row["conversations"][::2]} == {"human"}
            assert {turn["from"] for turn in row["conversations"][1::2]} == {"gpt"}
        else:
            assert [(m["role"], m["content"]) for m in row["messages"]] == [(m.role, m.content) for m in example.messages]


def test_an_export_that_cannot_be_is_refused(star: Star, tmp_path: Path) -> None:
    words = ("synth", "export", "--run", "runs/small", "--out", tmp_path / "x")
    code, _, err = star(*words, "--format", "csv")
    assert code == 2 and "messages" in err and "sharegpt" in err
    code, _, err = star(*words, "--format", "messages")
    assert code == 1 and "runs/small" in err
