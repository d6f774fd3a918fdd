"""Queries of a file: TravelPlanner's splits (CSV), published query sets and star's own (JSONL), with their facts as data.

The published `date` and `local_constraint` are texts of Python literals. They are parsed, never run.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from star.errors import DataError
from star.records import parse, read_lines
from star.types import Query
from star.worlds.travel.csv_tables import records

FACTS = (
    "org", "dest", "days", "visiting_city_number", "date", "people_number", "local_constraint", "budget", "level"
)  # fmt: skip
NUMBERS = ("days", "visiting_city_number", "people_number", "budget")
LITERALS: dict[str, tuple[type, str]] = {
    "date": (list, "['2022-03-16', '2022-03-17']"),
    "local_constraint": (dict, "{'house rule': None, 'cuisine': None, 'room type': None, 'transportation': None}"),
}
"""Column that holds a Python literal -> what it must be, and an example."""
_FIX = "Restore the file; star data fetch brings the published ones"


def read_queries(path: Path) -> list[Query]:
    """The queries of a file, in order. Raises DataError with the line of the first row that is none."""
    rows = records(path) if path.suffix == ".csv" else read_lines(path)
    found = [_query(path, position, line, row) for position, (line, row) in enumerate(rows, 1)]
    if not found:
        raise DataError(f"{path}:1: holds no query", _FIX)
    doubled = _doubled(query.id for query in found)
    if doubled is not None:
        raise DataError(f"{path}: two queries have the id {doubled!r}", "Give each its own id or idx")
    return found


def _doubled(names: Iterator[str]) -> str | None:
    seen: set[str] = set()
    return next((name for name in names if name in seen or seen.add(name)), None)  # type: ignore[func-returns-value]


def _query(path: Path, position: int, line: int, row: Any) -> Query:
    where = f"{path}:{line}"
    if isinstance(row, dict) and isinstance(row.get("facts"), dict):
        return parse(Query, {key: row[key] for key in Query.__slots__ if key in row}, where)
    if not isinstance(row, dict) or not isinstance(row.get("query"), str) or not row["query"].strip():
        raise DataError(f"{where}: no query: a row has its wording under 'query'", _FIX)
    facts = facts_of(row, where)
    name = row.get("id", row.get("idx", position))
    return query_of(str(name), row["query"], facts, str(row.get("split", path.stem)))


def query_of(name: str, text: str, facts: Mapping[str, Any], split: str) -> Query:
    """A query with these facts, whatever they are."""
    days, level = facts.get("days"), facts.get("level")
    length = days if isinstance(days, int) and not isinstance(days, bool) else 0
    return Query(name, text, dict(facts), level if isinstance(level, str) else "unknown", length, split)


def facts_of(row: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The facts of a published row: numbers as numbers, literals as data. A row of the test split has only two."""
    facts: dict[str, Any] = {}
    for name in FACTS:
        value = row.get(name)
        if name not in row or (value == "" and name in (*NUMBERS, *LITERALS)):
            continue
        if name in NUMBERS and isinstance(value, str):
            value = _number(value, f"{where}: {name}")
        elif name in LITERALS and isinstance(value, str):
            value = _literal(value, name, where)
        facts[name] = value
    return facts


def _number(text: str, where: str) -> int | float:
    try:
        value = float(text.replace(",", "").replace("$", ""))
        return int(value) if value == int(value) else value
    except (ValueError, OverflowError):
        raise DataError(f"{where}: {text!r} is not a number", _FIX) from None


def _literal(text: str, name: str, where: str) -> Any:
    kind, example = LITERALS[name]
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        raise DataError(f"{where}: {name}: {text[:60]!r} is not a Python literal", f"It reads like {example}") from None
    if not isinstance(value, kind):
        raise DataError(f"{where}: {name}: {text[:60]!r} is no {kind.__name__}", f"It reads like {example}")
    return value


def scorable(query: Query) -> bool:
    """Whether the gold facts are known; those of the test split are not public."""
    return "org" in query.facts and "local_constraint" in query.facts
