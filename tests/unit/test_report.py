"""The report is what a reader believes: its numbers are those of the evaluations, and no text of a model becomes markup."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from star import charts, metrics, pipeline
from star.manifest import Entry, Job, Run, Work
from star.records import plain, write_json, write_jsonl
from star.report import METRICS, figures, report, table
from star.settings import Recipe
from star.types import Completion, Message, Query, Score, ToolCall, Trajectory, Turn

HOSTILE = "</pre></details><script>alert(1)</script><img src=https://evil.example/x onerror=alert(1)>"
RECIPE = Recipe(name="sample", seed=3)
COMMONSENSE = (
    "is_reasonable_visiting_city", "is_valid_restaurants", "is_valid_attractions", "is_valid_accommodation",
    "is_valid_transportation", "is_valid_information_in_current_city", "is_valid_information_in_sandbox", "is_not_absent",
)  # fmt: skip
QUERIES = [Query(f"q{n}", f"Trip {n}", {}, ("easy", "medium", "hard")[n % 3], (3, 5)[n % 2], "validation") for n in range(12)]
PLAN = [
    {
        "days": day,
        "current_city": "from Aber to Bern" if day == 1 else "Bern",
        "transportation": "Flight Number: F0000010, from Aber to Bern" if day == 1 else "-",
        "breakfast": "Café Nord, Bern",
        "attraction": "Old Tower, Bern;",
        "lunch": "Soup & Co., Bern",
        "dinner": "-",
        "accommodation": "Quiet Loft, Bern",
    }
    for day in (1, 2, 3)
]


def score(query: Query, passed: bool, delivered: bool = True) -> Score:
    common: dict[str, bool | None] = dict.fromkeys(COMMONSENSE, delivered)
    hard = {"valid_cost": passed, "valid_room_rule": None, "valid_cuisine": passed}
    reasons = {} if passed else {"valid_cost": "the plan costs $1,900 & the budget is $1,200", "valid_cuisine": HOSTILE}
    return Score(query.id, "strict", common, hard, delivered, 1900.0 if delivered else None, reasons, delivered)


def trajectory(query: Query, name: str, passed: bool, delivered: bool = True) -> Trajectory:
    thought = f"<think>I look for flights. {HOSTILE}</think>\n"
    call = ToolCall("flight_search", {"origin": "Aber", "destination": HOSTILE})
    ask = thought + "<tool_call>" + json.dumps({"name": call.name, "arguments": call.arguments}) + "</tool_call>"
    flights = "<tool_response>\n" + "\n".join(f"F{n:07d} 09:00 - 11:00 ${n}" for n in range(12)) + "\n</tool_response>"
    turns = [
        Turn(Completion(ask), flights, call),
        Turn(Completion("<tool_call>{torn</tool_call>"), "<tool_response>\nnot JSON\n</tool_response>", error="bad_json"),
        Turn(Completion(f"<think>Done.</think>\n<answer>{json.dumps(PLAN)}</answer>" if delivered else HOSTILE)),
    ]
    prompt = (Message("system", "You are a travel agent. " * 30), Message("user", f"{query.text}: a trip {HOSTILE}"))
    return Trajectory(
        f"{name}/{query.id}/0", query.id, name, prompt, tuple(turns), "answer" if delivered else "format",
        json.dumps(PLAN) if delivered else None, score(query, passed, delivered),
    )  # fmt: skip


def pretend(run: Run, stage: str, body: Callable[[Work], None], takes: dict[str, str | None] | None = None) -> Entry:
    return run.perform(Job(stage, ["star", stage], {}, takes or {}, RECIPE.seed), body)


def measure(run: Run, played: Sequence[Trajectory], split: str = "validation") -> Any:
    scores = [row.score for row in played if row.score]
    wanted = {query.id: query for query in QUERIES}
    found = metrics.report(scores, wanted, run=run.directory.name, split=split, mode="strict")
    errors = Counter(turn.error for row in played for turn in row.turns if turn.error)
    return replace(found, stops=dict(Counter(row.stop for row in played)), errors=dict(errors), turns=3.0)


def evaluate(run: Run, stage: str, solved: int, delivered: int, transfer: bool = False, split: str = "validation") -> Entry:
    """An evaluation in which the first `solved` queries succeed and the first `delivered` get a plan."""

    def body(work: Work) -> None:
        played = {
            name: [trajectory(q, name, n < solved - less, n < delivered) for n, q in enumerate(QUERIES)]
            for name, less in (("greedy", 0), ("sampled", 1))
        }
        for name, rows in played.items():
            write_jsonl(work.make(f"trajectories-{name}", f"{name}.jsonl"), rows)
        rows = [(name, row) for name, group in played.items() for row in group]
        write_jsonl(work.make("predictions", "predictions.jsonl"), [])
        write_jsonl(work.make("scores", "scores.jsonl"), [{"pass": name, **plain(row.score)} for name, row in rows])
        reports = {name: measure(run, rows, split) for name, rows in played.items()}
        if transfer:
            reports |= {name: measure(run, played["sampled"][:0]) for name in ("other-world", "no-tools")}
        write_json(work.make("report", "report.json"), reports)

    return pretend(run, stage, body)


def train(run: Run) -> None:
    def sft(work: Work) -> None:
        rows = [{"step": n, "loss": str(5.0 / n)} for n in range(10, 310, 10)] + [{"step": 300, "train_runtime": 9.0}]
        write_json(work.make("sft-log", "log.json"), rows)
        work.metrics.update(steps=300, conversations=560, parameters=1_234_567, vocabulary=2000, loss=0.2)

    def rl(work: Work) -> None:
        names = ("rollout/tool_calls", "rollout/forks", "rollout/turns", "rollout/errors")
        steps = [
            {"step": n, "reward": 2 + n / 15, "entropy": 1 / n, "rewards/success/mean": n / 40, **dict.fromkeys(names, 5.5)}
            for n in range(1, 31)
        ]
        dev = {n: {"greedy": n / 40, "sampled": n / 50, "value": n / 45} for n in (0, 10, 20, 30)}
        write_json(work.make("rl-log", "log.json"), {"steps": [*steps, {"step": 30, "reward": "nan"}], "dev": dev, "best": 20})
        seen = [(step, label, QUERIES[step % len(QUERIES)]) for step in range(30) for label in ("worst", "best")]
        kept = [
            {"step": step, "label": label, "reward": float(label == "best"), "trajectory": trajectory(q, "rl", label == "best")}
            for step, label, q in seen
        ]
        write_jsonl(work.make("rollouts", "rollouts.jsonl"), kept)

    pretend(run, "sft", sft)
    pretend(run, "rl", rl)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run.open(tmp_path / "runs" / "sample", RECIPE)


@pytest.fixture
def whole(run: Run) -> Run:
    """A run that has finished everything."""
    train(run)
    evaluate(run, "eval-base", 0, 0)
    evaluate(run, "eval-sft", 4, 9)
    evaluate(run, "eval-rl", 8, 12, transfer=True)
    return run


def page(run: Run) -> str:
    entry = report(run, ["star", "report", "sample"])
    return (run.directory / entry.output("html").path).read_text(encoding="utf-8")


class Elements(HTMLParser):
    """Every element of a page with its attributes, and whether tags close in order."""

    VOID = frozenset({"meta", "br"})

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_figures_have_one_schema(whole: Run) -> None:
    found = figures(whole)
    assert list(found) == ["base", "sft", "rl"]
    assert list(found["sft"]) == ["greedy", "sampled"]
    assert list(found["rl"]) == ["greedy", "sampled", "other-world", "no-tools"]
    row = found["rl"]["greedy"]
    assert set(row) == {"n", "mode", "seed", *METRICS, *(f"{name}_interval" for name in METRICS), "minus_sft"}
    assert (row["n"], row["mode"], row["seed"], row["success"]) == (12, "strict", 3, 8 / 12)
    low, high = row["success_interval"]
    assert 0 < low < 8 / 12 < high < 1
    assert found["rl"]["no-tools"]["success"] == 0


def test_rl_is_paired_with_sft_query_by_query(whole: Run) -> None:
    pairs = {name: row["minus_sft"] for name, row in figures(whole)["rl"].items() if "minus_sft" in row}
    assert set(pairs) == {"greedy", "sampled"}
    assert pairs["greedy"]["n"] == 12 and pairs["greedy"]["difference"] == pytest.approx(4 / 12)
    assert pairs["greedy"]["low"] < 4 / 12 < pairs["greedy"]["high"]
    assert "+33.3" in page(whole)


def test_the_written_figures_are_the_returned_ones(whole: Run) -> None:
    entry = report(whole, ["star", "report"])
    assert json.loads((whole.directory / entry.output("figures").path).read_text()) == figures(whole)
    assert not report(whole, ["star", "report"]).fresh, "nothing changed, so it stands"


def test_the_table_has_a_row_for_every_pass(whole: Run) -> None:
    head, rows = table(figures(whole))
    assert all(len(row) == len(head) and all(isinstance(cell, str) for cell in row) for row in rows)
    assert [row[:2] for row in rows[-3:]] == [["rl", "no-tools"], ["rl - sft", "greedy"], ["rl - sft", "sampled"]]
    assert rows[2][:4] == ["sft", "greedy", "12", "33.3"]
    assert table({}) == (head, [])


@pytest.mark.parametrize("kept", [(), ("base",), ("sft",), ("rl",), ("base", "rl"), ("sft", "rl")])
def test_any_subset_of_evaluations_will_do(run: Run, kept: tuple[str, ...]) -> None:
    for name in kept:
        evaluate(run, f"eval-{name}", 5 if name == "rl" else 2, 9)
    found = figures(run)
    assert tuple(found) == kept
    assert ("minus_sft" in found.get("rl", {}).get("greedy", {})) == (kept == ("sft", "rl"))
    Elements(page(run))


def test_evaluations_of_other_models_and_splits_have_their_own_rows(run: Run) -> None:
    evaluate(run, "eval-other-12345678", 3, 9)
    evaluate(run, "eval-rl-dev", 3, 9, split="dev")
    assert tuple(figures(run)) == ("other-12345678", "rl-dev")
    text = page(run)
    assert "RL, dev" in text and "flatter it" in text and "other-12345678 succeeds" in text


def test_a_run_without_anything_has_a_report(run: Run) -> None:
    assert figures(run) == {}
    text = page(run)
    assert "No evaluation is finished yet" in text and "No training log is finished yet" in text
    assert Elements(text).found


def test_logs_alone_make_curves(run: Run) -> None:
    train(run)
    text = page(run)
    assert "SFT loss" in text and "best step 20" in text and "No evaluation is finished yet" in text


def test_empty_and_foreign_logs_make_none(run: Run) -> None:
    pretend(run, "sft", lambda work: write_json(work.make("sft-log", "log.json"), [{"loss": "nan", "step": 1}, {}]))
    pretend(run, "rl", lambda work: write_json(work.make("rl-log", "log.json"), {"steps": [], "dev": {}, "best": 7}))
    assert "No training log is finished yet" in page(run)


def test_the_text_of_a_model_never_becomes_markup(whole: Run) -> None:
    text = page(whole)
    elements = Elements(text)
    assert "&lt;script&gt;alert(1)" in text
    assert HOSTILE in "".join(elements.text), "it is shown as it was written"
    tags = {tag for tag, _ in elements.found}
    assert not tags & {"script", "img", "iframe", "object", "embed", "link", "base", "form"}
    assert not [name for _, attributes in elements.found for name in attributes if name.startswith("on")]


def test_a_plan_with_half_a_character_is_shown(run: Run) -> None:
    def body(work: Work) -> None:
        answer = '[{"days": 1, "current_city": "\\ud83d", "dinner": "<script>x</script>"}]'
        row = replace(trajectory(QUERIES[0], "greedy", True), answer=answer)
        write_jsonl(work.make("trajectories-greedy", "greedy.jsonl"), [row])
        write_jsonl(work.make("scores", "scores.jsonl"), [{"pass": "greedy", **plain(row.score)}])
        write_json(work.make("report", "report.json"), {"greedy": measure(run, [row])})

    pretend(run, "eval-rl", body)
    assert "&lt;script&gt;x" in page(run)


def test_the_page_needs_nothing_beside_itself(whole: Run) -> None:
    text = page(whole)
    references = [
        value
        for _, attributes in Elements(text).found
        for name, value in attributes.items()
        if name in {"src", "href", "xlink:href", "srcset", "action", "data", "style"} and value
    ]
    assert all(reference.startswith("#") for reference in references)
    style = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert len(style) == 1 and "url(" not in style[0] and "@import" not in style[0]
    assert "default-src 'none'" in text
    assert str(whole.directory) not in text, "no path of the machine"


def test_the_page_tells_numbers_examples_and_limits(whole: Run) -> None:
    text = page(whole)
    for expected in (
        "66.7 %", "RL succeeds where SFT failed", "Both fail", "Both succeed", "By difficulty and by days",
        "trained from random weights", "1,234,567 parameters", "SFT is short on purpose", "no tools", "judge mode strict",
        "Entropy of the policy", "forks per group", "agent error: bad_json", "budget: fails", "house rule: n.a.",
        "within the sandbox: holds", "the plan costs $1,900 &amp; the budget is $1,200", "Café Nord, Bern",
    ):  # fmt: skip
        assert expected in text, expected


def test_the_page_shows_rollouts_of_some_steps_of_rl(whole: Run) -> None:
    text = page(whole)
    steps = [int(number) for number in re.findall(r"<h3>Step (\d+)</h3>", text)]
    assert len(steps) == 12 and (steps[0], steps[-1]) == (1, 30) and steps == sorted(steps)
    assert text.count("best, reward 1, sampled: success") == text.count("worst, reward 0, sampled: failed") == 12
    assert text.index("best, reward 1") < text.index("worst, reward 0")


def test_charts_and_tables_can_be_read_aloud(whole: Run) -> None:
    found = Elements(page(whole)).found
    drawings = [attributes for tag, attributes in found if tag == "svg"]
    assert len(drawings) == 9 and all(a["role"] == "img" and a["aria-label"] for a in drawings)
    assert all(attributes.get("scope") in {"col", "row"} for tag, attributes in found if tag == "th")
    assert sum(tag == "details" for tag, _ in found) > 9


def test_a_model_that_is_not_embedded_is_not_called_tiny(tmp_path: Path) -> None:
    recipe = replace(RECIPE, sft=replace(RECIPE.sft, model="models/large"))
    run = Run.open(tmp_path / "large", recipe)
    evaluate(run, "eval-rl", 3, 9)
    text = page(run)
    assert "It starts from models/large" in text and "random weights" not in text
    assert "was not measured in this run" in text


def test_stale_stages_are_marked(whole: Run) -> None:
    def again(work: Work) -> None:
        write_json(work.make("sft-log", "log.json"), [{"step": 1, "loss": 1.0}])

    def after(work: Work) -> None:
        write_json(work.make("rl-log", "log.json"), {"steps": [], "dev": {}, "best": 0})

    pretend(whole, "rl", after, {"sft-log": "sft"})
    whole.perform(Job("sft", ["star"], {"lr": 2}, {}, RECIPE.seed), again)
    assert "stale: sft-log of sft changed" in page(whole)


def test_the_report_depends_on_all_evaluations(whole: Run) -> None:
    labels = pipeline.report_job(whole, []).takes
    assert {"eval-base/report", "eval-sft/scores", "eval-rl/trajectories-greedy", "sft-log", "rl-log"} <= labels.keys()


@pytest.mark.parametrize(("low", "high"), [(0, 0), (0, 1), (0, 0.07), (-3, 4), (0, 1e-9), (10, 300), (0, 123_456)])
def test_ticks_cover_what_they_scale(low: float, high: float) -> None:
    found = charts.ticks(low, high)
    assert found[0] <= low <= high <= found[-1] and 2 <= len(found) <= 8
    assert found == sorted(set(found))


def test_a_chart_of_one_point_and_of_none() -> None:
    chart = charts.line_chart("t", "y", [charts.Series("a", "rl", [(5.0, 2.0)]), charts.Series("b", "sft", [])])
    assert chart is not None and chart.rows == [["5", "2"]] and len(chart.lines) == 1
    assert charts.line_chart("t", "y", []) is None and charts.bar_chart("t", "x", []) is None
    assert [charts.number(value) for value in ("0.5", "nan", None, [], float("inf"))] == [0.5, None, None, None, None]
