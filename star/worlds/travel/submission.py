"""The file that TravelPlanner's leaderboard takes: one line a query, in the order of the split."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from star.types import Query
from star.worlds.travel.plan import ABSENT, FIELDS, TEXT_FIELDS, read_plan


def rows(queries: Sequence[Query], answers: Mapping[str, object]) -> Iterator[dict[str, Any]]:
    """The lines, each with `idx` from 1, the wording of the query and its plan; no days where no plan can be read."""
    for number, query in enumerate(queries, 1):
        days = read_plan(answers.get(query.id)).days or []
        yield {"idx": number, "query": query.text, "plan": [_day(day) for day in days]}


def _day(day: Mapping[str, object]) -> dict[str, object]:
    """A day in the published form, in which each sight is closed by a semicolon."""
    sights = str(day["attraction"]).rstrip("; ")
    return {**day, "attraction": f"{sights};" if sights != ABSENT else ABSENT}


def faults(lines: Sequence[tuple[int, Any]], queries: Sequence[Query]) -> Iterator[str]:
    """Where a file departs from the format, each as "line: what"; nothing if it may be handed in."""
    if len(lines) != len(queries):
        yield f"{len(lines)}: {len(lines)} lines for a split of {len(queries)} queries"
    for (number, row), query in zip(lines, queries, strict=False):
        fault = _fault(row, query)
        if fault:
            yield f"{number}: {fault}"


def _fault(row: Any, query: Query) -> str:
    if not isinstance(row, dict) or not {"idx", "query", "plan"} <= row.keys():
        return "a line has the fields idx, query and plan"
    if row["query"] != query.text:
        return f"is not about query {query.id}; the lines follow the order of the split"
    if row["plan"] is None or row["plan"] == []:
        return ""
    if not isinstance(row["plan"], list):
        return "plan is not a list of days"
    return next((fault for n, day in enumerate(row["plan"], 1) if (fault := _day_fault(n, day))), "")


def _day_fault(number: int, day: Any) -> str:
    if not isinstance(day, dict):
        return f"day {number} is not a record"
    fields = {"days" if name == "day" else name for name in day}
    absent = [name for name in FIELDS if name not in fields]
    if absent:
        return f"day {number} lacks {absent[0]}"
    wrong = [name for name in TEXT_FIELDS if not isinstance(day[name], str)]
    return f"day {number} {wrong[0]} is not text" if wrong else ""
