"""The facts of a query as the judge needs them, read without trusting them."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from dataclasses import dataclass

CONSTRAINTS = ("house rule", "cuisine", "room type", "transportation")


class Unreadable(Exception):
    """A value that a check needs cannot be read; the check fails with this text as its reason."""


@dataclass(slots=True, eq=False)
class Request:
    """Facts of one query, by the names of the published data sets."""

    facts: Mapping[str, object]
    days: int
    """Length of the trip; 0 if the facts do not say."""
    constraints: Mapping[str, object] | None
    """Constraint -> wish; None if the facts hold none that can be read."""

    @classmethod
    def of(cls, facts: Mapping[str, object]) -> Request:
        days = facts.get("days")
        valid = isinstance(days, int) and not isinstance(days, bool) and days > 0
        return cls(facts, days if valid and isinstance(days, int) else 0, _constraints(facts.get("local_constraint")))

    def text(self, name: str) -> str:
        value = self.facts.get(name)
        return value if isinstance(value, str) else ""

    def number(self, name: str) -> float:
        """A number of the facts; raises Unreadable if it is none."""
        value = self.facts.get(name)
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise Unreadable(f"the query's {name.replace('_', ' ')} is {value!r}, not a number")
        return value

    def amount(self, name: str) -> float:
        """A positive finite number, also if it is written like "$1,700"."""
        value = self.facts.get(name)
        if isinstance(value, str):
            try:
                value = float(value.replace("$", "").replace(",", ""))
            except ValueError:
                value = None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise Unreadable(f"the query's {name.replace('_', ' ')} is {self.facts.get(name)!r}, not a number")
        return value

    def dates(self, count: int) -> tuple[str | None, ...]:
        """Dates of the first `count` days, None where the query names none."""
        value = self.facts.get("date")
        if isinstance(value, str):
            value = _literal(value)
        known = value[:count] if isinstance(value, (list, tuple)) else ()
        dates = [date if isinstance(date, str) else None for date in known]
        return (*dates, *[None] * (count - len(dates))) if len(dates) < count else tuple(dates)


def _constraints(value: object) -> Mapping[str, object] | None:
    """The constraints, also if they come as the text of a Python literal; code is never run."""
    if isinstance(value, str):
        value = _literal(value)
    return value if isinstance(value, Mapping) else None


def _literal(text: str) -> object:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
