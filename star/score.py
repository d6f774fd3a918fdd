"""Score: judge plans that lie in a file, or those of a finished run once more."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from star import answers, metrics, plugins
from star.answers import Answer, Sheet
from star.endpoint import Endpoint
from star.errors import DataError, UsageError
from star.manifest import Run
from star.options import Judging
from star.plugins import unknown
from star.progress import Patient, Progress, silent
from star.recipe import build_world, find, load
from star.records import read_lines, write_jsonl
from star.types import MODES, Mode, Query, Rate, Report, Score
from star.worlds.travel import submission
from star.worlds.travel.plan import typed
from star.worlds.travel.published import FOLDER, STORE
from star.worlds.travel.splits import read_queries, scorable

METRICS = {
    "delivery": "delivery",
    "commonsense_micro": "cs micro",
    "commonsense_macro": "cs macro",
    "hard_micro": "hard micro",
    "hard_macro": "hard macro",
    "success": "success",
}
LEVELS = ("easy", "medium", "hard")

Table = tuple[str, list[str], list[list[str]]]


@dataclass(frozen=True, slots=True)
class Result:
    source: str
    database: str
    """Of the world that judged."""
    formatter: str | None
    """Model that put untyped answers into form, None if none did."""
    out: str | None
    reports: list[Report]
    """One a set of answers and mode."""


def score(wanted: Judging, progress: Progress = silent) -> Result:
    """The official metrics of plans, and a verdict a plan in `wanted.out`. A query without an answer counts as failed.

    Raises DataError, with the line, for a row that is no answer; then nothing is written.
    """
    sheets = answers.read(wanted.plans, wanted.queries)
    _refuse_hidden(wanted.plans, sheets)
    world, usual = _world(wanted)
    modes = _modes(wanted.mode or usual)
    progress = Patient(progress)
    formed = _formed(wanted, sheets, progress)
    rows: list[dict[str, Any]] = []
    reports: list[Report] = []
    for sheet in sheets:
        for mode in modes:
            scores = _judge(world, sheet, mode, formed, progress)
            run, split = sheet.name, sheet.split
            reports.append(metrics.report(scores, sheet.asked, run=run, split=split, mode=mode))
            used = [wanted.formatter_model if _text(a) in formed else None for a in sheet.answers]
            rows += [_verdict(a, s, model) for a, s, model in zip(sheet.answers, scores, used, strict=True)]
    if wanted.out is not None:
        write_jsonl(wanted.out, rows)
    out = str(wanted.out) if wanted.out else None
    database = str(getattr(world, "database", None) or "embedded")
    return Result(str(wanted.plans), database, wanted.formatter_model, out, reports)


def _modes(mode: str) -> tuple[Mode, ...]:
    if mode == "all":
        return MODES
    found = tuple(known for known in MODES if known == mode)
    if not found:
        raise unknown(f"--mode {mode}: unknown judge mode", mode, (*MODES, "all"))
    return found


def _world(wanted: Judging) -> tuple[Any, Mode]:
    """The world that judges, and its usual mode: of --database, else of the recipe or the run, else of the fetched data."""
    path = wanted.plans
    run = Run.open(path) if path.is_dir() else answers.run_of(path)
    recipe = load(find(wanted.recipe), wanted.sets or []) if wanted.recipe else run.recipe if run else None
    if wanted.sets and not wanted.recipe:
        raise UsageError("--set: has no effect without --recipe", "Name the recipe that it changes")
    mode: Mode = recipe.eval.mode if recipe else "strict"
    if wanted.database is not None:
        return plugins.build("world", {"name": "travel", "database": str(wanted.database)}), mode
    if recipe is not None:
        return build_world(recipe), mode
    if not (FOLDER / STORE).is_file():
        what = f"{path}: no database to judge it by: neither --database, nor {FOLDER / STORE}"
        raise UsageError(what, "Give --database DIR, or fetch it: star data fetch, then star data build")
    return plugins.build("world", {"name": "travel", "database": str(FOLDER / STORE)}), mode


def _refuse_hidden(path: Path, sheets: list[Sheet]) -> None:
    """Stop if the answers are to queries without public facts; say also whether their file may be handed in."""
    hidden = [query for sheet in sheets for query in sheet.asked.values() if not scorable(query)]
    if not hidden or any(answer.stated for sheet in sheets for answer in sheet.answers):
        return
    what = f"{path}: query {hidden[0].id} has no public facts, so it cannot be scored here; only the leaderboard can"
    lines = list(read_lines(path))
    queries = list(sheets[0].asked.values())
    if any("plan" not in row for _, row in lines):
        raise DataError(what, "Write the file for it: star data export")
    fault = next(submission.faults(lines, queries), None)
    if fault is not None:
        raise DataError(f"{what}, which would refuse line {fault}", "Write the file anew: star data export")
    raise DataError(what, "The file has the right format: hand it in there")


def _text(answer: Answer) -> str:
    return answer.plan if isinstance(answer.plan, str) else ""


def _formed(wanted: Judging, sheets: list[Sheet], progress: Progress) -> Mapping[str, str]:
    """Text of an answer that is no typed plan -> the typed plan that the formatter makes of it."""
    if (wanted.formatter_url is None) != (wanted.formatter_model is None):
        raise UsageError("--formatter-url and --formatter-model: one has no effect without the other", "Give both")
    if wanted.formatter_url is None or wanted.formatter_model is None:
        return {}
    texts = [text for sheet in sheets for a in sheet.answers if (text := _text(a)).strip() and not typed(text)]
    endpoint = Endpoint(url=wanted.formatter_url, model=wanted.formatter_model, temperature=0.0, call_seconds=120.0, tries=4)
    formatter = plugins.load("star.worlds.travel.formatter:Formatter")(plugins.load("star.chat:Client")(endpoint))
    found: dict[str, str] = formatter.plans(texts, progress)
    return found


def _judge(world: Any, sheet: Sheet, mode: Mode, formed: Mapping[str, str], progress: Progress) -> list[Score]:
    scores: list[Score] = []
    for done, answer in enumerate(sheet.answers, 1):
        scores.append(world.score(answer.query, formed.get(_text(answer), answer.plan), mode))
        progress(f"{sheet.name} {mode}", done, len(sheet.answers))
    return scores


def _verdict(answer: Answer, score: Score, model: str | None) -> dict[str, Any]:
    cost = score.total_cost
    return {
        "id": answer.id,
        "mode": score.mode,
        "commonsense": score.commonsense,
        "hard": score.hard,
        "hard_counts": score.hard_counts,
        "total_cost": cost if cost is not None and math.isfinite(cost) else None,
        "success": score.success,
        "reasons": score.reasons,
        **({"formatter": model} if model else {}),
    }


def tables(result: Result) -> Iterator[Table]:
    """Each report as a title, a head and a row a metric: the whole, what was counted, then by level and by days."""
    for report in result.reports:
        levels = sorted(report.by_difficulty, key=lambda name: (LEVELS.index(name) if name in LEVELS else 9, name))
        parts = {level: report.by_difficulty[level] for level in levels}
        parts |= {f"{days} days": report.by_days[days] for days in sorted(report.by_days, key=int)}
        head = ["%", "all", "passed", "95 %", *parts]
        sizes = ["n", str(report.n), "", "", *(str(rates["delivery"].n) for rates in parts.values())]
        yield f"{report.run}, {report.mode}", head, [sizes, *(_row(name, report.metrics, parts) for name in METRICS)]
    if result.out is not None:
        yield f"verdicts: {result.out}", [], []


def _row(name: str, whole: Mapping[str, Rate], parts: Mapping[str, Mapping[str, Rate]]) -> list[str]:
    rate = whole[name]
    spread = f"{100 * rate.low:.1f}-{100 * rate.high:.1f}"
    shares = (f"{100 * rates[name].value:.1f}" for rates in parts.values())
    return [METRICS[name], f"{100 * rate.value:.1f}", f"{rate.passed}/{rate.n}", spread, *shares]


def export(plans: Path, queries: Path, target: Path) -> dict[str, Any]:
    """Write answers to the queries of a split as the file that the leaderboard takes; validate it before it is there."""
    asked: list[Query] = read_queries(queries)
    sheets = answers.read(plans, queries)
    if len(sheets) != 1 or len(sheets[0].answers) != len({a.query.id for a in sheets[0].answers}):
        raise DataError(f"{plans}: holds several answers to one query", "Keep the one to hand in")
    lines = list(submission.rows(asked, {answer.query.id: answer.plan for answer in sheets[0].answers}))
    fault = next(submission.faults(list(enumerate(lines, 1)), asked), None)
    if fault is not None:
        raise DataError(f"{target}:{fault}", "Correct the answer")
    write_jsonl(target, lines)
    return {"file": str(target), "queries": len(lines), "plans": sum(bool(line["plan"]) for line in lines)}


def exported(result: Mapping[str, Any]) -> Iterator[Table]:
    """What `export` did, in words."""
    what = f"{result['file']}: {result['plans']} plans for {result['queries']} queries; it has the leaderboard's format"
    yield f"{what}, and only the leaderboard can score the test split", [], []
