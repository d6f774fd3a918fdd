"""What the texts of a plan mean in the database: places, cities and routes, memoised by text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from star.types import Mode
from star.worlds.travel.database import Database
from star.worlds.travel.rules import RULES
from star.worlds.travel.tables import Distance, Hotel, Restaurant, Sight
from star.worlds.travel.text import city_key, name_key, plain_key

Row = Hotel | Restaurant | Sight
Table = Literal["hotels", "restaurants", "sights"]
TABLES: dict[str, Table] = {"attraction": "sights", "accommodation": "hotels"}
"""Field -> table of its places, for those that are no meals."""
_MEMO = 1 << 16
_LONGEST_CITY = 5
"""Words that a city name may have in a route without commas."""
_CODES = "alakazarcacoctdeflgahiidiliniakskylamemdmamimnmsmomtnenvnhnjnmnyncndohokorpariscsdtntxutvtvawawvwiwydcprvigu"
_STATES = frozenset(_CODES[at : at + 2] for at in range(0, len(_CODES), 2))
_ROUTE = re.compile(r"from\s+(?P<origin>.+?)\s+to\s+(?P<destination>[^,]+)")
_NOTES = ("cost", "price", "average cost", "$", "~$")


@dataclass(slots=True, eq=False)
class Slot:
    """What a field of a day holds: a meal, a sight or a hotel as the plan names it, or what cannot be read."""

    field: str
    label: str
    """As written, for reasons."""
    key: Hashable
    """Equal keys are the same place, or equal texts."""
    city: str = ""
    rows: tuple[Row, ...] = ()
    """The matching table rows, in table order."""
    fault: str = ""
    """Why the field cannot be read; then it has no city and no rows."""


Found = tuple[Hashable, str, tuple[Row, ...]]
"""What a text stands for: key, city and rows of a slot."""


class Sandbox:
    """One database read by the rules of one mode."""

    def __init__(self, database: Database, mode: Mode) -> None:
        self.database = database
        self.rules = RULES[mode]
        self._find: Callable[[Table, str], Found] = self._exact if self.rules.exact else self._containing
        self.slot = lru_cache(maxsize=_MEMO)(self._slot)
        self.route = lru_cache(maxsize=_MEMO)(self._keyed_route if self.rules.exact else literal_route)
        self.kilometres = lru_cache(maxsize=_MEMO)(self._kilometres)
        self.numbered = lru_cache(maxsize=_MEMO)(database.flights_numbered)

    def city(self, text: str) -> str:
        """A city's name as this mode compares it."""
        if self.rules.exact:
            return city_key(text)
        return before_parenthesis(text) if self.rules.strips_state else text

    def _slot(self, field: str, text: str) -> Slot:
        """What a non-empty text in a field of a day stands for."""
        return Slot(field, text, *self._find(TABLES.get(field, "restaurants"), text))

    def _listing(self, table: Table) -> Any:
        if table == "hotels":
            return self.database.hotel_listing
        return self.database.restaurant_listing if table == "restaurants" else self.database.sight_listing

    def _exact(self, table: Table, text: str) -> Found:
        """The rows of exactly this name and city; "Name, City, ST" and a note of the cost after it are understood."""
        literal = self._at(table, text)
        if literal[2]:
            return literal
        others = (self._at(table, reading) for reading in self._readings(text))
        return next((found for found in others if found[2]), literal)

    def _at(self, table: Table, reading: str) -> Found:
        """What a text of the form "Name, City" stands for."""
        name, _, city = reading.rpartition(",")
        key = (plain_key(name), city_key(city))
        return key, key[1], self._listing(table).named(key[1], key[0]) if key[0] else ()

    def _readings(self, text: str) -> list[str]:
        """Other texts of the form "Name, City" that `text` may stand for, the most literal first."""
        plain = _without_note(text)
        readings = [] if plain == text else [plain]
        head, comma, state = plain.rpartition(",")
        if comma and "," in head and self._is_state(name_key(state)):
            readings.append(head)
        return readings

    def _is_state(self, key: str) -> bool:
        return key in _STATES or bool(self.database.cities(key))

    def _containing(self, table: Table, text: str) -> Found:
        name, city = name_and_city(text)
        if self.rules.strips_state:
            city = before_parenthesis(city).strip()
        return text, city, self._listing(table).holding(city, name)

    def _keyed_route(self, text: str) -> tuple[str, str] | None:
        """Keys of A and B in "from A to B", whatever the case; B ends at a comma or where no known city goes on."""
        lowered = name_key(text)
        start = 0 if lowered.startswith("from ") else lowered.find(" from ") + 1
        if not lowered.startswith("from ", start):
            return None
        origin, word, rest = lowered[start + 5 :].partition(" to ")
        if not word:
            return None
        return city_key(origin), self._leading_city(rest)

    def _leading_city(self, text: str) -> str:
        """The longest known city that a text starts with, else everything up to its first comma or semicolon."""
        head = text.partition(",")[0].partition(";")[0].strip()
        keys = self.database.city_keys
        if city_key(head) in keys:
            return city_key(head)
        words = head.split()
        for count in range(min(len(words), _LONGEST_CITY), 0, -1):
            key = city_key(" ".join(words[:count]).rstrip(".:"))
            if key in keys and words[count : count + 1] != ["to"]:
                return key
        return city_key(head)

    def _kilometres(self, origin: str, destination: str) -> float | None:
        """Length of the road from one city to another, None if there is none that is driven within a day."""
        row = self.database.distance(origin, destination)
        if row is None or (not self.rules.exact and (row.origin, row.destination) != (origin, destination)):
            return None
        return kilometres(row)


@lru_cache(maxsize=8)
def sandbox(database: Database, mode: Mode) -> Sandbox:
    """The memo of a database under one mode's rules; those used last are kept."""
    return Sandbox(database, mode)


def kilometres(road: Distance) -> float | None:
    """Length of a road that can be driven within a day; None if it cannot."""
    if not road.distance or not road.duration or "day" in road.duration:
        return None
    try:
        length = float(road.distance.replace("km", "").replace(",", ""))
    except ValueError:
        return None
    return length if math.isfinite(length) else None


def before_parenthesis(text: str) -> str:
    """What stands before the first closed parenthesis on the first line; the whole text if there is none."""
    start = text.find("(")
    closed = start >= 0 and text.find(")", start) >= 0 and "\n" not in text[:start]
    return text[:start] if closed else text


def name_and_city(text: str) -> tuple[str, str]:
    """("Name", "City") around the last comma; two dashes where there is none."""
    head, comma, tail = text.rpartition(",")
    if not comma or not tail:
        return "-", "-"
    return head.rpartition("\n")[2].strip(), tail.strip()


def literal_route(text: str) -> tuple[str, str] | None:
    """A and B of the first "from A to B" in lower case, as written; B ends at a comma."""
    found = _ROUTE.search(text)
    return (found["origin"], found["destination"]) if found else None


def _without_note(text: str) -> str:
    """A text without a trailing "; Cost: 14" or ", $14"."""
    for mark in (";", ","):
        head, found, note = text.rpartition(mark)
        if found and (not note.strip() or name_key(note).startswith(_NOTES)):
            return head.strip()
    return text
