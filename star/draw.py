"""Draw: certified queries into a file, each with a plan that proves it feasible."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from star import plugins
from star.endpoint import Endpoint
from star.errors import DataError, StarError, UsageError
from star.options import Drawing
from star.progress import Patient, Progress, silent
from star.recipe import build_world, find, load
from star.records import read_lines, write_jsonl
from star.worlds.travel.certified import Row, Sampler, Wanted, key_of
from star.worlds.travel.extract import Extractor
from star.worlds.travel.facts import DIFFICULTIES, Trip
from star.worlds.travel.splits import read_queries


@dataclass(frozen=True, slots=True)
class Result:
    out: str
    queries: int
    database: str
    excluded: int
    """Trips of other files."""
    drawn: int
    """Draws in all."""
    dropped: dict[str, int]
    """Why draws were dropped."""
    repaired: int
    """Budgets that were moved into the wanted slack."""
    by_level: dict[str, int]
    by_days: dict[int, int]
    flying: int
    """Queries whose plan takes a flight."""
    slack: list[float]
    """Least, median and greatest."""
    phraser: str | None
    """Model that worded the queries."""
    unsaid: dict[str, int]
    """Queries dropped since the model's text lost a fact, by fact."""
    seconds: float


def draw(wanted: Drawing, recipe: str | None, sets: Sequence[str] | None, seed: int, progress: Progress = silent) -> Result:
    """Write `wanted.count` certified queries to `wanted.out`, all or none."""
    if wanted.count is None or wanted.out is None:
        raise UsageError("--count and --out: queries for a file need both", "Give both, or neither for those of a run")
    begun, world = time.perf_counter(), _world(wanted, recipe, sets)
    excluded = frozenset(key for path in wanted.disjoint_from or () for key in keys(path))
    mix = parts(wanted.mix, "--mix", len(DIFFICULTIES)) if wanted.mix else list(world.mix)
    low, high = parts(wanted.slack, "--slack", 2) if wanted.slack else Wanted().slack
    if sum(mix) <= 0:
        raise UsageError(f"--mix {wanted.mix}: no weight is positive", "Example: --mix 4:3:3")
    if not 1 <= low <= high:
        raise UsageError(f"--slack {wanted.slack}: not 1 <= LOW <= HIGH", "Below 1 no plan is within the budget")
    phraser = _phraser(wanted, world)
    sampler = Sampler(world.tables, Wanted(world.days, mix, (low, high)), seed, excluded)
    rows = _rows(sampler, wanted.count, phraser, progress)
    write_jsonl(wanted.out, rows)
    counts, slack = sampler.counts, sorted(row.slack for row in rows)
    repaired = counts.pop("budget repaired", 0)
    return Result(
        str(wanted.out), len(rows), str(world.database or "embedded"), len(excluded), len(rows) + counts.total(),
        dict(counts.most_common()), repaired, dict(Counter(row.query["level"] for row in rows)),
        dict(sorted(Counter(row.query["days"] for row in rows).items())),
        sum(any("Flight" in str(day["transportation"]) for day in row.plan) for row in rows),
        [slack[0], slack[len(slack) // 2], slack[-1]], wanted.phraser_model,
        dict(phraser.lost.most_common()) if phraser else {}, round(time.perf_counter() - begun, 1),
    )  # fmt: skip


def _phraser(wanted: Drawing, world: Any) -> Any:
    """None without --phraser-url, so that only those who name a server wait for the client to load."""
    if (wanted.phraser_url is None) != (wanted.phraser_model is None):
        raise UsageError("--phraser-url and --phraser-model: one has no effect without the other", "Give both")
    if wanted.phraser_url is None or wanted.phraser_model is None:
        return None
    endpoint = Endpoint(url=wanted.phraser_url, model=wanted.phraser_model, temperature=1.0, call_seconds=120.0)
    chat = plugins.load("star.chat:Client")(endpoint)
    return plugins.load("star.worlds.travel.phraser:Phraser")(chat, Extractor(world.tables.states))


def _rows(sampler: Sampler, count: int, phraser: Any, progress: Progress) -> list[Row]:
    """So many certified rows; what a phraser could not word is replaced by further draws."""
    patient, rows, drawn = Patient(progress), list[Row](), sampler.rows()
    while len(rows) < count:
        fresh: list[Row] = []
        for row in itertools.islice(drawn, count - len(rows)):
            fresh.append(row)
            patient("queries", len(rows) + len(fresh), count)
        if phraser is not None:
            texts = phraser.texts([(row.id, row.query) for row in fresh], progress)
            fresh = [replace(row, query={**row.query, "query": text}) for row, text in zip(fresh, texts, strict=True) if text]
            if not fresh:
                lost = ", ".join(phraser.lost)
                what = f"--phraser-model {phraser.chat.endpoint.model}: none of its texts says the facts (lost: {lost})"
                raise StarError(what, "Use a stronger model")
        rows += fresh
    return rows


def parts(text: str, option: str, count: int) -> list[float]:
    """Numbers between colons."""
    try:
        values = [float(part) for part in text.split(":")]
    except ValueError:
        values = []
    if len(values) != count or not all(0 <= value < float("inf") for value in values):
        example = "4:3:3" if count > 2 else "1.1:1.6"
        raise UsageError(f"{option} {text}: not {count} numbers between colons", f"Example: {option} {example}")
    return values


def _world(wanted: Drawing, recipe: str | None, sets: Sequence[str] | None) -> Any:
    """That of --database, else of the recipe."""
    if wanted.database is None:
        return build_world(load(find(recipe or "demo"), sets or []))
    if recipe is not None or sets:
        raise UsageError("--recipe and --set have no effect with --database", "Leave them out")
    return plugins.build("world", {"name": "travel", "database": str(wanted.database)})


def keys(path: Path) -> Iterator[str]:
    """Keys of the trips in a file: of this command, of a run, or a published set with its facts."""
    rows = [] if path.suffix == ".csv" else list(read_lines(path))
    if rows and all(isinstance(row, dict) and isinstance(row.get("query"), dict) for _, row in rows):
        facts = [(number, row["query"]) for number, row in rows]
    else:
        facts = list(enumerate((query.facts for query in read_queries(path)), 1))
    for number, stated in facts:
        try:
            yield key_of(Trip.of({"budget": None, "level": "", **stated}))
        except (KeyError, TypeError):
            fix = "Name a file whose queries have their facts"
            raise DataError(f"{path}:{number}: the facts of this query are not stated", fix) from None


def tables(result: Result) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """The result as tables: title, head, rows."""
    levels = [[f"{name}", f"{result.by_level.get(name, 0):,}"] for name in DIFFICULTIES]
    days = [[f"{days} days", f"{count:,}"] for days, count in result.by_days.items()]
    low, middle, high = result.slack
    kept = [["all", f"{result.queries:,}"], *levels, *days, ["with a flight", f"{result.flying:,}"]]
    yield (
        f"{result.out}: {result.queries:,} queries in {result.seconds} s, slack {low:g} to {high:g}, median {middle:g}",
        ["", "queries"],
        kept,
    )
    dropped = [[reason, f"{count:,}"] for reason, count in result.dropped.items()]
    if result.phraser:
        lost = ", ".join(f"{name} {count:,}" for name, count in result.unsaid.items())
        yield f"\nworded by {result.phraser}; dropped for facts that its text lost: {lost or 'none'}", [], []
    yield f"\n{result.drawn:,} draws; {result.repaired:,} budgets repaired", ["dropped for", "draws"], dropped
