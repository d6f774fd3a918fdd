"""Plans written as an itinerary: a heading "Day 1", then a line a field, in plain text or markdown."""

from __future__ import annotations

import re
from collections.abc import Callable

_DAY = re.compile(r"[*_]*day\s*\d{1,2}\b", re.IGNORECASE)
_BULLET = re.compile(r"(?:[-*+\u2022]|\d{1,2}[.)])\s+")
_EMPHASIS = re.compile(r"[*_]*")
_FRAME = "#>| \t"
_LONGEST = 28
"""Characters that the name of a field may have, with its markup."""


def read_itinerary(text: str, field_of: Callable[[str], str | None]) -> list[dict[str, object]]:
    """The days of an itinerary, each with the fields it names; lines under a field without a value are its items.

    `field_of` gives the field that a label stands for, None for any other text. Nothing is taken from prose.
    """
    days: list[dict[str, object]] = []
    open_field: str | None = None
    for raw in text.splitlines():
        line = _BULLET.sub("", raw.strip(_FRAME), count=1)
        if _DAY.match(line):
            days.append({})
            open_field = None
        elif line and days:
            label, value = _split(line)
            field = field_of(label)
            if field is not None:
                days[-1][field] = value
                open_field = None if value else field
            elif open_field is not None:
                _add(days[-1], open_field, line)
    return days


def _split(line: str) -> tuple[str, str]:
    """Label and value around the first colon, without the emphasis around the label; no label if there is none."""
    label, colon, value = line.partition(":")
    if not colon or len(label) > _LONGEST:
        return "", line
    found = _EMPHASIS.match(label)
    mark = found.group() if found else ""
    value = value.strip()
    if mark and not label.rstrip().endswith(mark):
        value = value.removeprefix(mark).removesuffix(mark).strip()
    return label.strip("*_ \t"), value


def _add(day: dict[str, object], field: str, item: str) -> None:
    before = str(day[field])
    day[field] = f"{before}; {item}" if before else item
