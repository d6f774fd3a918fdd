"""Facts read back from the wording of a request: the check that a text says what it should, and nothing else.

It knows the names of cities and states, and how people write numbers, dates, money and wishes. It never sees the facts
that a text was made from.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from star.worlds.travel.facts import Trip
from star.worlds.travel.places import CUISINES
from star.worlds.travel.route import LONGEST_CITY_TRIP

_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
NUMBERS = {word: number for number, word in enumerate(_WORDS, 1)}
_MONTHS = (
    "january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_NUMBER = rf"(\d+|{'|'.join(_WORDS)})"
_MONTH = "|".join(month.capitalize() for month in _MONTHS)
_ORDINAL = r"(?:st|nd|rd|th)"
_DATE = re.compile(
    rf"\b(?:(?P<iso>20\d\d-\d\d-\d\d)|(?P<month>{_MONTH})\s+(?P<day>\d{{1,2}}){_ORDINAL}?\b"
    rf"|(?P<day2>\d{{1,2}}){_ORDINAL}?\s+(?:of\s+)?(?P<month2>{_MONTH})\b|(?P<bare>\d{{1,2}}){_ORDINAL}\b)"
)
_YEAR = re.compile(r"\b(20\d\d)\b")
_DAYS = re.compile(rf"\b{_NUMBER}[\s-]+(?:full[\s-]+)?days?\b", re.IGNORECASE)
_WEEK = re.compile(r"\b(?:(?:a|one|1)[\s-]+(?:full[\s-]+)?week|week-long|weeklong)\b", re.IGNORECASE)
_CITIES = re.compile(rf"\b{_NUMBER}\s+(?:\w+\s+){{0,2}}?cit(?:y|ies)\b", re.IGNORECASE)
_MONEY = re.compile(r"(?:\$|\bUSD\s?)\s?(\d[\d,]*(?:\.\d+)?)|\b(\d[\d,]*)\s?(?:US\s)?dollars\b", re.IGNORECASE)
_FOLK = "people|persons?|individuals?|travel+ers?|participants?|adults?|friends|guests|of us"
_PARTY = (
    re.compile(rf"\b(?:group|party|family|team) of {_NUMBER}\b", re.IGNORECASE),
    re.compile(rf"\b{_NUMBER}\s+(?:\w+\s+)?(?:{_FOLK})\b", re.IGNORECASE),
    re.compile(rf"\bthe {_NUMBER} of us\b", re.IGNORECASE),
    re.compile(rf"\b(?:for|with)\s+{_NUMBER}\b(?![\s-]*(?:\w+\s+)?(?:days?|cit|nights?|week|month))", re.IGNORECASE),
)
_PAIR = re.compile(r"\b(?:a|the|as a) (?:couple|pair|duo)\b", re.IGNORECASE)
_ORIGIN = re.compile(
    r"(?:\bfrom|\b(?:depart|leav|quit)\w*|\b(?:start|begin|commenc|initiat|originat|embark|set|tak|depart)\w*(?:\s+(?!and\b)[\w']+){0,4}?\s+"
    r"(?:in|from|at|out of)|\bhome (?:is|in)|\bbased in)\s*$",
    re.IGNORECASE,
)
_NEGATION = r"(?:\b(?:no|not|cannot|non|without|never|rather than|instead of|skip|avoid\w*|exclud\w*)\b|n't\b|\bnon-)"
_NEAR = r"[^.!?;]{0,60}?"
_FLIGHT = r"\b(?:flight|fly|air travel|airline|plane|airport)"
_DRIVING = r"\b(?:self-driv|self driv|driv\w* (?:ourselves|myself|a car)|behind the wheel)"
_NO_FLIGHT = re.compile(rf"{_NEGATION}{_NEAR}{_FLIGHT}|\bstay on the ground\b", re.IGNORECASE)
_NO_DRIVING = re.compile(rf"{_NEGATION}{_NEAR}{_DRIVING}", re.IGNORECASE)
_UNSHARED = rf"{_NEGATION}[^.!?;]{{0,40}}?\bshar(?:ed|e|ing)\b|\bbut a shared\b|\bunshared\b"
_ROOMS = {
    "entire room": re.compile(r"\bentire (?:\w+ )?(?:room|home|place|unit|apartment)", re.IGNORECASE),
    "private room": re.compile(r"\bprivate (?:\w+ )?rooms?\b|\brooms? (?:\w+ ){1,3}private\b", re.IGNORECASE),
    "not shared room": re.compile(_UNSHARED, re.IGNORECASE),
    "shared room": re.compile(r"\bshared (?:\w+ )?rooms?\b|\bshare a room\b", re.IGNORECASE),
}
"""Looked for in this order: "private rooms, not shared ones" asks for private rooms."""
_RULES = {
    "children under 10": re.compile(r"\bchild(?:ren)?\b|\bkids?\b", re.IGNORECASE),
    "pets": re.compile(r"\bpets?\b", re.IGNORECASE),
    "smoking": re.compile(r"\bsmok\w+", re.IGNORECASE),
    "visitors": re.compile(r"\bvisitors?\b", re.IGNORECASE),
    "parties": re.compile(r"\bparties\b|\bparty\b(?! of\b)", re.IGNORECASE),
}


@dataclass(frozen=True)
class Extractor:
    """Reads requests about the places of one world."""

    states: Mapping[str, str]
    """City -> state."""

    def facts(self, text: str) -> dict[str, Any]:
        """Facts by their published names, without the level; None where the text does not say."""
        dates, days = _dates(text), _days(text)
        if dates and days is None:
            days = (dates[-1] - dates[0]).days + 1
        span = [dates[0] + datetime.timedelta(day) for day in range(days or 1)] if dates else []
        if len(dates) > 1 and (dates[-1] - dates[0]).days + 1 != days:
            span = []
        org, dest = self._route(text, days or 0)
        return {
            "org": org,
            "dest": dest,
            "days": days,
            "visiting_city_number": _cities(text),
            "date": [day.isoformat() for day in span] or None,
            "people_number": _people(text),
            "local_constraint": {
                "house rule": _first_of(_RULES, text),
                "cuisine": _cuisines(text),
                "room type": next((name for name, form in _ROOMS.items() if form.search(text)), None),
                "transportation": _transport(text),
            },
            "budget": _budget(text),
        }

    def says(self, text: str, trip: Trip) -> bool:
        """Whether a text states exactly the facts of a trip."""
        return not differences(self.facts(text), trip.facts())

    @cached_property
    def _names(self) -> re.Pattern[str]:
        names = sorted({*self.states, *self.states.values()}, key=len, reverse=True)
        return re.compile(rf"(?<![\w-])(?:{'|'.join(map(re.escape, names))})(?!\w)")

    @cached_property
    def _regions(self) -> frozenset[str]:
        return frozenset(self.states.values())

    def _mentions(self, text: str) -> Iterator[tuple[str, str, str]]:
        """(words before, name, words between it and the mention before) of every place; states after their city left out."""
        end, before = 0, ""
        for found in self._names.finditer(text):
            between = text[end : found.start()]
            appended = before and re.fullmatch(r",\s*|\s+in\s+|\s*\(", between) and self.states.get(before) == found[0]
            if not appended:
                yield text[: found.start()], found[0], between
            end, before = found.end(), found[0]

    def _route(self, text: str, days: int) -> tuple[str | None, str | None]:
        """Where a trip starts and where it goes: a city for a short trip, a state for a longer one."""
        mentions = [(before, name) for before, name, _ in self._mentions(text)]
        starts = [at for at, (before, name) in enumerate(mentions) if name in self.states and _ORIGIN.search(before)]
        if not starts:
            return None, None
        org = mentions[starts[0]][1]
        known = self.states if days <= LONGEST_CITY_TRIP else self._regions
        others = [name for at, (_, name) in enumerate(mentions) if at not in starts and name in known]
        return org, next(iter(others), None)


def differences(read: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Names of the facts that differ; cuisines are a set, and what a text leaves open is one person, one city."""
    found = [name for name in ("org", "dest", "days", "visiting_city_number", "date", "people_number", "budget")
             if read[name] != (list(facts[name]) if name == "date" else facts[name])]  # fmt: skip
    wishes, wanted = read["local_constraint"], facts["local_constraint"]
    for name in wanted:
        one, other = wishes[name] or None, wanted[name] or None
        if (set(one or ()) != set(other or ())) if name == "cuisine" else one != other:
            found.append(name)
    return found


def _number(text: str) -> int:
    return NUMBERS[text.lower()] if text.lower() in NUMBERS else int(text)


def _days(text: str) -> int | None:
    found = _DAYS.search(text)
    if found:
        return _number(found[1])
    return 7 if _WEEK.search(text) else None


def _cities(text: str) -> int:
    found = _CITIES.search(text)
    return _number(found[1]) if found else 1


def _people(text: str) -> int:
    """The size of the party; a text that does not say is about one person."""
    for form in _PARTY:
        found = form.search(text)
        if found:
            return _number(found[1])
    return 2 if _PAIR.search(text) else 1


def _budget(text: str) -> int | None:
    found = _MONEY.search(text)
    if not found:
        return None
    value = float((found[1] or found[2]).replace(",", ""))
    return int(value) if value == int(value) else None


def _cuisines(text: str) -> list[str] | None:
    places = {kind: found.start() for kind in CUISINES if (found := re.search(rf"\b{kind}\b", text))}
    return sorted(places, key=lambda kind: places[kind]) or None


def _transport(text: str) -> str | None:
    if _NO_DRIVING.search(text):
        return "no self-driving"
    return "no flight" if _NO_FLIGHT.search(text) else None


def _first_of(forms: Mapping[str, re.Pattern[str]], text: str) -> str | None:
    """The wish that is spoken of most, of equals the first."""
    counts = {name: len(form.findall(text)) for name, form in forms.items()}
    most = max(counts, key=lambda name: counts[name])
    return most if counts[most] else None


def _dates(text: str) -> list[datetime.date]:
    """The dates of a text in order; a bare "13th" belongs to the month that was named last, or else next."""
    stated = _YEAR.search(text)
    year = int(stated[1]) if stated else 0
    found: list[tuple[int, int] | datetime.date] = []
    month, waiting = 0, list[int]()
    for item in _DATE.finditer(text):
        if item["iso"]:
            found.append(datetime.date.fromisoformat(item["iso"]))
            continue
        if item["bare"] and not month:
            waiting.append(int(item["bare"]))
            continue
        name = item["month"] or item["month2"]
        month = _MONTHS.index(name.lower()) + 1 if name else month
        found += [(month, day) for day in waiting]
        found.append((month, int(item["day"] or item["day2"] or item["bare"])))
        waiting = []
    try:
        dates = [part if isinstance(part, datetime.date) else datetime.date(year, *part) for part in found]
    except ValueError:
        return []
    return [dates[0], dates[-1]] if len(dates) > 1 else dates
