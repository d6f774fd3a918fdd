"""Report: the figures of a run as JSON, and one page of HTML that needs nothing beside itself.

Reads whatever evaluations and logs the run has finished. All text of a model or a world is data: the templates escape it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from star import charts, metrics, talks
from star.charts import Bar, Bars
from star.corpus import MEASURES
from star.manifest import Entry, Run, Work
from star.pipeline import CHECKPOINTS, report_job
from star.recipe import effective
from star.records import parse, plain, read_json, read_lines, write_json, write_text
from star.types import Rate, Report, Score
from star.worlds.travel.plan import FIELDS

METRICS = ("success", "delivery", "commonsense_micro", "commonsense_macro", "hard_micro", "hard_macro")
PLAYED = ("greedy", "sampled")
"""The passes that every evaluation has."""
TRANSFER = ("other-world", "no-tools")
"""Greedy passes that tell what a model knows by heart."""
LEVELS = ("easy", "medium", "hard")
STOPS = ("answer", "turns", "tokens", "format", "error")
LABELS = {"base": "Base", "sft": "SFT", "rl": "RL"}
CLIP = 20_000
"""Characters of one text that the page shows at most."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One finished evaluation of a checkpoint: `name` is the stage without "eval-"."""

    name: str
    seed: int
    reports: dict[str, Report]
    """By pass."""
    scores: dict[str, list[Score]]
    greedy: Path
    """Trajectories of the greedy pass."""

    @property
    def dev(self) -> bool:
        return any(report.split == "dev" for report in self.reports.values())

    @property
    def transfers(self) -> bool:
        return any(name in self.reports for name in TRANSFER)

    @property
    def label(self) -> str:
        checkpoint = self.name.removesuffix("-dev") if self.dev else self.name
        return LABELS.get(checkpoint, checkpoint) + (", dev" if self.dev else "")

    @property
    def style(self) -> str:
        return self.name if self.name in LABELS else "second"


def report(run: Run, command: list[str]) -> Entry:
    """Write the page and the figures over whatever the run has finished."""

    def body(work: Work) -> None:
        found = _evaluations(run)
        numbers = _figures(found)
        write_json(work.make("figures", "figures.json"), numbers)
        write_text(work.make("html", "report.html"), _page(run, found, numbers))
        work.metrics.update(evaluations=list(found))

    return run.perform(report_job(run, command), body)


def figures(run: Run) -> dict[str, Any]:
    """The measured numbers: checkpoint -> pass -> metrics with 95 % intervals.

    A row of the RL checkpoint also has "minus_sft", the paired difference of success on the queries that SFT played as well.
    """
    return _figures(_evaluations(run))


def table(figures: Mapping[str, Any]) -> tuple[list[str], list[list[str]]]:
    """Figures as the head and rows of a table for a terminal; all rates in percent."""
    parts = METRICS[1:]
    names = (name.replace("_", " ").replace("commonsense", "cs") for name in parts)
    head = ["checkpoint", "decoding", "n", "success %", "95 %", *names]
    rows = []
    for checkpoint, passes in figures.items():
        for name, row in passes.items():
            success, *shares = (f"{100 * row[part]:.1f}" for part in ("success", *parts))
            rows.append([checkpoint, name, str(row["n"]), success, _interval(row["success_interval"]), *shares])
    for name, row in differences(figures).items():
        change = f"{100 * row['difference']:+.1f}"
        rows.append(["rl - sft", name, str(row["n"]), change, _interval([row["low"], row["high"]]), *([""] * len(parts))])
    return head, rows


def differences(figures: Mapping[str, Any]) -> dict[str, Any]:
    """RL minus SFT by pass, where both were played."""
    return {name: row["minus_sft"] for name, row in figures.get("rl", {}).items() if "minus_sft" in row}


def _evaluations(run: Run) -> dict[str, Evaluation]:
    """The finished evaluations: base, sft and rl first, then all others by name."""
    order = {f"eval-{name}": number for number, name in enumerate(CHECKPOINTS)}
    stages = [stage for stage in run.entries() if stage.startswith("eval-")]
    stages.sort(key=lambda stage: (order.get(stage, len(order)), stage))
    found = (_evaluation(run, stage) for stage in stages)
    return {evaluation.name: evaluation for evaluation in found}


def _evaluation(run: Run, stage: str) -> Evaluation:
    path = run.path(stage, "report")
    reports = {name: parse(Report, value, f"{path}: {name}") for name, value in read_json(path).items()}
    path = run.path(stage, "scores")
    scores: dict[str, list[Score]] = {}
    for line, row in read_lines(path):
        name = str(row.pop("pass", "greedy"))
        scores.setdefault(name, []).append(parse(Score, row, f"{path}:{line}"))
    seed = run.entries()[stage].seed
    return Evaluation(stage.removeprefix("eval-"), seed, reports, scores, run.path(stage, "trajectories-greedy"))


def _figures(found: Mapping[str, Evaluation]) -> dict[str, Any]:
    numbers: dict[str, Any] = {}
    for name, evaluation in found.items():
        ordered = [p for p in (*PLAYED, *TRANSFER) if p in evaluation.reports]
        numbers[name] = {p: _row(evaluation.reports[p], evaluation.seed) for p in ordered}
    for name in PLAYED:
        pair = _pair(found, name)
        if pair:
            numbers["rl"][name]["minus_sft"] = pair
    return numbers


def _row(report: Report, seed: int) -> dict[str, Any]:
    values = {name: report.metrics[name].value for name in METRICS}
    intervals = {f"{name}_interval": [report.metrics[name].low, report.metrics[name].high] for name in METRICS}
    return {"n": report.n, "mode": report.mode, "seed": seed, **values, **intervals}


def _pair(found: Mapping[str, Evaluation], name: str) -> dict[str, Any] | None:
    """RL minus SFT on the queries that both have; None if they share none, or were judged in different modes."""
    both = [found[c].scores.get(name, []) for c in ("sft", "rl") if c in found]
    if len(both) < 2 or not all(both) or both[0][0].mode != both[1][0].mode:
        return None
    shared = {score.query_id for score in both[0]} & {score.query_id for score in both[1]}
    if not shared:
        return None
    difference, low, high = metrics.paired_difference(*both)
    return {"difference": difference, "low": low, "high": high, "n": len(shared)}


def _page(run: Run, found: Mapping[str, Evaluation], numbers: Mapping[str, Any]) -> str:
    entries = {stage: entry for stage, entry in run.entries().items() if stage != "report"}
    settings = effective(run.recipe)
    for section, stage in (("world", "queries"), ("sft", "sft"), ("rl", "rl"), ("eval", "eval-rl")):
        done = entries[stage].config if stage in entries else {}
        settings[section] = done.get(section, settings[section])
    environment = Environment(
        loader=PackageLoader("star", "templates"),
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters.update(percent=_percent, interval=_interval, clip=_clip, words=_words, points=_points)
    html = environment.get_template("report.html.j2").render(
        name=run.directory.resolve().name,
        settings=settings,
        settings_text=json.dumps(plain(settings), indent=2, ensure_ascii=False),
        evaluations=list(found.values()),
        numbers=numbers,
        differences=differences(numbers),
        metrics=METRICS,
        results=_results(found),
        outcomes={name: _outcomes(found, name) for name in PLAYED},
        by_difficulty=_grouped(found, lambda report: report.by_difficulty, LEVELS),
        by_days=_grouped(found, lambda report: report.by_days, ()),
        curves=_curves(run, entries),
        failures=_failures(found),
        ends=_ends(found),
        examples=talks.examples(_sides(found)),
        rollouts=_rollouts(run, entries),
        entries=list(entries.values()),
        versions=_versions(entries),
        states={state.stage: state for state in run.status()},
        sft=entries["sft"].metrics if "sft" in entries else {},
        data=entries["trajectories"].metrics if "trajectories" in entries else {},
        rules=talks.RULES,
        fields=FIELDS,
        measures=MEASURES,
    )
    return html.encode("utf-8", "replace").decode("utf-8")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _points(share: float) -> str:
    """A difference of shares in percentage points."""
    return f"{100 * share:+.1f}".replace("-", "\N{MINUS SIGN}")


def _interval(bounds: Sequence[float]) -> str:
    low, high = (f"{100 * bound:.1f}" for bound in bounds)
    return f"[{low}, {high}]"


def _words(value: Any) -> str:
    """A plugin's settings as words: "travel (days 3 5, size cities 8 hotels 4)"."""
    if isinstance(value, dict):
        rest = [f"{key} {_words(item)}" for key, item in value.items() if key != "name"]
        if "name" not in value:
            return " ".join(rest)
        return f"{value['name']} ({', '.join(rest)})" if rest else str(value["name"])
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _clip(text: str) -> str:
    return text if len(text) <= CLIP else f"{text[:CLIP]} … ({len(text) - CLIP} more characters)"


def _results(found: Mapping[str, Evaluation]) -> charts.BarChart | None:
    """Success with its intervals as bars."""
    groups = []
    for name in PLAYED:
        rows = [(e, e.reports[name].metrics["success"]) for e in found.values() if name in e.reports]
        bars = [Bar(e.label, e.style, r.value, f"{r.passed}/{r.n}", r.low, r.high) for e, r in rows]
        groups.append(Bars(name, bars))
    return charts.bar_chart("Success", "success (%) with its 95 % interval", groups)


def _outcomes(found: Mapping[str, Evaluation], name: str) -> dict[str, int] | None:
    """How many queries only RL solves, only SFT, both or neither; None if one of the two was not evaluated."""
    if not _pair(found, name):
        return None
    sft, rl = ({s.query_id: s.success for s in found[c].scores[name]} for c in ("sft", "rl"))
    kinds = {(True, True): "both", (False, True): "only RL", (True, False): "only SFT", (False, False): "neither"}
    counts = dict.fromkeys(("only RL", "only SFT", "both", "neither"), 0)
    for query in sft.keys() & rl.keys():
        counts[kinds[sft[query], rl[query]]] += 1
    return counts


def _grouped(
    found: Mapping[str, Evaluation],
    groups: Callable[[Report], dict[str, dict[str, Rate]]],
    order: Sequence[str],
) -> tuple[list[str], list[tuple[str, str, list[Rate | None]]]]:
    """Success by groups of queries: the names of the groups, and for each evaluation and pass their rates."""
    rows = [(e.label, p, groups(e.reports[p])) for e in found.values() for p in PLAYED if p in e.reports]
    rank = {name: number for number, name in enumerate(order)}
    names = sorted({name for _, _, row in rows for name in row}, key=lambda name: (rank.get(name, len(rank)), name))
    return names, [(label, p, [row[n]["success"] if n in row else None for n in names]) for label, p, row in rows]


def _curves(run: Run, entries: Mapping[str, Entry]) -> list[charts.LineChart]:
    def log(stage: str) -> Any:
        kind = f"{stage}-log"
        made = stage in entries and any(artifact.kind == kind for artifact in entries[stage].outputs)
        return read_json(run.path(stage, kind)) if made else None

    return [*charts.sft_curves(log("sft") or []), *charts.rl_curves(log("rl") or {})]


def _versions(entries: Mapping[str, Entry]) -> dict[str, list[str]]:
    """Versions in words -> the stages that ran with them."""
    result: dict[str, list[str]] = {}
    for stage, entry in entries.items():
        text = ", ".join(f"{name} {version}" for name, version in entry.versions.items())
        result.setdefault(text, []).append(stage)
    return result


def _failures(found: Mapping[str, Evaluation]) -> list[charts.BarChart]:
    """How often each constraint fails in the greedy pass, among the delivered plans to which it applies."""
    scores = {name: e.scores.get("greedy", []) for name, e in found.items() if e.scores.get("greedy")}
    result = []
    for part, title in (("commonsense", "Commonsense constraints that fail"), ("hard", "Hard constraints that fail")):
        rules = dict.fromkeys(rule for rows in scores.values() for score in rows for rule in getattr(score, part))
        groups = []
        for rule in rules:
            verdicts = {n: [getattr(s, part).get(rule) for s in rows if s.delivered] for n, rows in scores.items()}
            bars = [_bar(found[n], [v is False for v in row if v is not None]) for n, row in verdicts.items()]
            groups.append(Bars(talks.rule(rule), bars))
        result.append(charts.bar_chart(title, "share of the delivered plans it applies to (%)", groups))
    missing = [_bar(found[name], [not score.delivered for score in rows]) for name, rows in scores.items()]
    result.append(charts.bar_chart("No plan handed in", "share of the queries (%)", [Bars("no readable plan", missing)]))
    return [chart for chart in result if chart]


def _bar(evaluation: Evaluation, failed: Sequence[bool]) -> Bar:
    share = sum(failed) / len(failed) if failed else None
    return Bar(evaluation.label, evaluation.style, share, f"{sum(failed)}/{len(failed)}")


def _ends(found: Mapping[str, Evaluation]) -> dict[str, Any]:
    """How episodes ended and which errors the agents made."""
    rows = [(e.label, name, report) for e in found.values() for name, report in e.reports.items()]
    stops = dict.fromkeys([*STOPS, *(stop for _, _, report in rows for stop in report.stops)])
    errors = sorted({error for _, _, report in rows for error in report.errors})
    return {"rows": rows, "stops": list(stops), "errors": errors}


def _sides(found: Mapping[str, Evaluation]) -> list[talks.Side]:
    """SFT and RL, or the last checkpoint alone if only one was evaluated."""
    pair = [found[name] for name in ("sft", "rl") if name in found]
    alone = [found[name] for name in reversed(CHECKPOINTS) if name in found] or list(found.values())
    chosen = pair if len(pair) == 2 else alone[:1]
    return [talks.Side(e.label, e.scores.get("greedy", []), e.greedy) for e in chosen]


def _rollouts(run: Run, entries: Mapping[str, Entry]) -> list[talks.Example]:
    made = "rl" in entries and any(artifact.kind == "rollouts" for artifact in entries["rl"].outputs)
    return talks.rollouts(run.path("rl", "rollouts")) if made else []
