"""Whatever a model hands in, read as a plan: a list of days with eight fields each, and a list of what was wrong.

Nothing here raises on an answer, and nothing here is guessed: a value is taken over as text, or it is absent.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from star.worlds.travel.itinerary import read_itinerary

TEXT_FIELDS = ("current_city", "transportation", "breakfast", "attraction", "lunch", "dinner", "accommodation")
FIELDS = ("days", *TEXT_FIELDS)
MEALS = ("breakfast", "lunch", "dinner")
ABSENT = "-"
FILLER = "You don't need to fill in the information for this or later days."
"""What TravelPlanner's form puts into days beyond the trip."""

_BLANK = frozenset(["", "-", "\u2013", "\u2014", FILLER.lower()])
_SYNONYMS = {"day": "days", "attractions": "attraction", "hotel": "accommodation", "city": "current_city"}
_WRAPPERS = ("plan", "travel_plan", "itinerary", "days", "answer")
_MAX_STARTS = 64
"""How many opening brackets of a text are tried as the start of a JSON value."""
_MAX_CHARACTERS = 200_000
_FAILURES = (ValueError, RecursionError, MemoryError, SyntaxError, TypeError)

DayPlan = dict[str, object]
DayTexts = dict[str, str]
EMPTY: DayTexts = dict.fromkeys(TEXT_FIELDS, ABSENT)
_NAMES = frozenset(TEXT_FIELDS)
NOT_FOUND = "no plan was found in the answer"
ALL_EMPTY = "the plan has no day with any content"


class ReadPlan(NamedTuple):
    days: list[DayPlan] | None
    """One record a day with exactly `FIELDS`: `days` is the position from 1, every other field is text, "-" if absent.
    Empty days after the last one are left out. None if nothing readable was handed in."""
    faults: list[str]
    """Schema failures in words, e.g. "day 2 dinner is a list, not text"."""


def read_plan(answer: object) -> ReadPlan:
    """Normalise an answer: text with JSON or an itinerary in it, a list of days, or a record that holds one."""
    value = unwrap(decode(answer))
    if value is None:
        return ReadPlan(None, [NOT_FOUND])
    faults: list[str] = []
    days = [read_day(number, day, faults) for number, day in enumerate(value, 1)]
    while days and days[-1] == EMPTY:
        days.pop()
    if not days:
        return ReadPlan(None, [*faults, ALL_EMPTY])
    return ReadPlan([{"days": number, **day} for number, day in enumerate(days, 1)], faults)


def read_day(number: int, day: object, faults: list[str]) -> DayTexts:
    """The seven text fields of one day; what is wrong with it is added to `faults`."""
    plan = EMPTY.copy()
    if day is None:
        return plan
    if not isinstance(day, Mapping):
        if not (isinstance(day, str) and day.strip().lower() in _BLANK):
            faults.append(f"day {number} is {_kind(day)}, not a record")
        return plan
    named = day if day.keys() >= _NAMES else _canonical(day)
    for name in TEXT_FIELDS:
        value = named.get(name)
        if isinstance(value, str):
            text = value.strip()
            if len(text) > 1 or text not in _BLANK:
                plan[name] = text if text[:3].lower() != "you" or text.lower() not in _BLANK else ABSENT
        elif value is not None:
            faults.append(f"day {number} {name} is {_kind(value)}, not text")
    return plan


def _canonical(day: Mapping[object, object]) -> dict[str, object]:
    """The fields of a day under their own names; an exact name wins over another spelling of it."""
    named: dict[str, object] = {}
    for key, value in day.items():
        name = _field(key) if isinstance(key, str) else None
        if name is not None and (name not in named or key == name):
            named[name] = value
    return named


def _field(label: str) -> str | None:
    """The field that a label stands for, however it is written."""
    name = "_".join(label.lower().replace("_", " ").split())
    name = _SYNONYMS.get(name, name)
    return name if name in FIELDS else None


def _kind(value: object) -> str:
    names = {dict: "a record", list: "a list", bool: "a truth value", int: "a number", float: "a number", str: "text"}
    return names.get(type(value), f"a {type(value).__name__}")


def unwrap(value: object) -> Sequence[object] | None:
    """The list of days in a decoded value: itself, one under a key such as "plan", or the days of a record of days."""
    if isinstance(value, (list, tuple)):
        return value if value else None
    if not isinstance(value, Mapping) or not value:
        return None
    for name in _WRAPPERS:
        inner = value.get(name)
        if isinstance(inner, list | tuple):
            return inner if inner else None
    if _is_day(value):
        return [value]
    days = list(value.values())
    return days if all(_is_day(day) for day in days) else None


def _is_day(value: object) -> bool:
    return isinstance(value, Mapping) and any(name in value for name in TEXT_FIELDS)


def decode(answer: object) -> object:
    """The plan in a text (JSON, or an itinerary), or the answer itself if it is no text; None if there is none."""
    if not isinstance(answer, str):
        return answer
    text = answer.strip()[:_MAX_CHARACTERS]
    whole = _json(text)
    if isinstance(whole, list | dict):
        return unwrap(whole)
    if isinstance(whole, str) and whole != answer:
        return decode(whole)
    return _embedded(text) or _days(read_itinerary(text, _field)) or None


def typed(text: str) -> bool:
    """Whether a text holds a plan as JSON or as a Python literal, and not only in words."""
    whole = _json(text.strip()[:_MAX_CHARACTERS])
    if isinstance(whole, str) and whole != text:
        return typed(whole)
    return bool(_days(whole) or _embedded(text.strip()[:_MAX_CHARACTERS]))


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except _FAILURES:
        return None


def _embedded(text: str) -> object:
    """A plan written as JSON or as a Python literal amid other text."""
    return _best(list(_values(text))) or _literal(text)


def _best(values: list[object]) -> object:
    """The last of the longest lists of days; loose records of days, one after the other, count as a list."""
    lists = [days for days in map(_days, values) if days]
    loose = [value for value in values if _is_day(value)]
    if len(loose) > 1:
        lists.append(loose)
    return max(reversed(lists), key=len, default=None)


def _days(value: object) -> Sequence[object] | None:
    days = unwrap(value)
    return days if days and any(_is_day(day) for day in days) else None


def _values(text: str) -> Iterator[object]:
    """JSON lists and records that start somewhere in a text, none inside another."""
    decoder = json.JSONDecoder()
    position = 0
    for _ in range(_MAX_STARTS):
        starts = [found for found in (text.find("[", position), text.find("{", position)) if found >= 0]
        if not starts:
            return
        position = min(starts)
        try:
            value, position = decoder.raw_decode(text, position)
        except _FAILURES:
            position += 1
        else:
            yield value


def _literal(text: str) -> object:
    """A plan written as a Python literal, with single quotes."""
    start, end = text.find("["), text.rfind("]")
    if start < 0 or end < start:
        return None
    try:
        value = ast.literal_eval(text[start : end + 1])
    except _FAILURES:
        return None
    return _days(value)
