"""A plan as the checks see it: a list of days with their cities, transport, meals, sights and hotel.

`strict` reads the normalised plan, where every field is text or absent. The reference modes read what was handed in as
it is; a value that their code could not have worked with is kept as a fault, and fails the checks that would have used
it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import count, repeat
from typing import Any

from star.worlds.travel.plan import ABSENT, ALL_EMPTY, EMPTY, FILLER, MEALS, NOT_FOUND, decode, read_day, unwrap
from star.worlds.travel.request import Request
from star.worlds.travel.sandbox import Sandbox, Slot
from star.worlds.travel.tables import Hotel
from star.worlds.travel.transport import Leg, read_leg

PLANNED = ("transportation", "breakfast", "attraction", "lunch", "dinner", "accommodation")
"""The six fields that a complete day fills."""
_PLANNED = frozenset(PLANNED)
_BLANK = ("", ABSENT)
_values: Callable[[dict[object, object]], Iterable[object]] = dict.values
MEMO_DAYS = 8192
"""How many days are remembered, each by its texts."""


@dataclass(slots=True, eq=False)
class Day:
    """One day of a plan, counted from 1. Compared by identity, so that verdicts can be remembered by day."""

    number: int
    where: str = ""
    """The text that says where the day is spent."""
    cities: tuple[str | None, ...] = ()
    """One city, or origin and destination of a day of travel; names as the mode compares them."""
    travels: bool = False
    """Whether these are two."""
    where_fault: str = ""
    scope: tuple[str, ...] = ()
    """What a place is compared with to see whether it is where the traveller is."""
    leg: Leg | None = None
    leg_fault: str = ""
    meals: tuple[Slot, ...] = ()
    sights: tuple[Slot, ...] = ()
    hotel: Slot | None = None
    meal_keys: tuple[Hashable, ...] = ()
    """Equal keys are the same place."""
    sight_keys: tuple[Hashable, ...] = ()
    sight_fault: str = ""
    """Why a sight cannot be read."""
    hotel_key: Hashable = None
    rooms: tuple[Hotel, ...] = ()
    """Rows of the hotel."""
    nights: float = 0
    """For how many nights at least it must be taken; infinite if it cannot be read."""
    stay_fault: str = ""
    """Why the mode cannot take what the day says of its hotel."""
    hotel_value: object = None
    transport_value: object = None
    blank: frozenset[str] = frozenset()
    """Fields that are empty or a dash."""
    missing: frozenset[str] = frozenset()
    """Fields that the day does not have."""
    filled: int = 0
    """How many values are given."""
    counts: bool = True
    """Whether it is a day of the trip at all."""
    broken: str = ""
    """Why nothing about the day can be read; fails every check."""
    empty: bool = False
    """Whether it is padding after the trip."""
    faults: tuple[str, ...] = ()
    """Schema failures in words."""


@dataclass(slots=True, eq=False)
class Reading:
    """A plan read for one request, under the rules of `box`."""

    request: Request
    box: Sandbox
    days: tuple[Day, ...]
    """Days of the trip, at most as many as it is long."""
    beyond: int = 0
    """How many days the plan has after the end of the trip."""
    faults: tuple[str, ...] = ()
    broken: str = ""
    """Why nothing can be read of some day; fails every check."""
    dates: tuple[str | None, ...] = ()
    """YYYY-MM-DD of each of `days`."""


_Reader = Callable[[int, object, Sandbox], Day]
"""Reads what stands for a day, by its number from 1."""


def read(request: Request, answer: object, box: Sandbox) -> tuple[Reading | None, str]:
    """The plan as the mode of `box` reads it; None and the reason if none was delivered."""
    value = decode(answer)
    units = unwrap(value) if box.rules.normalised else value
    if not units:
        return None, NOT_FOUND
    if not isinstance(units, (list, tuple)):
        units = [None]
    if not box.rules.normalised:
        days = _days(_raw_day, units[: request.days], box)
        broken = next((day.broken for day in days if day.broken), "")
        return Reading(request, box, tuple(days), broken=broken, dates=request.dates(len(days))), ""
    days = _days(_normal_day, units, box)
    while days and days[-1].empty:
        days.pop()
    if not days:
        return None, ALL_EMPTY
    faults = tuple([fault for day in days for fault in day.faults])
    planned = tuple(days[: request.days])
    beyond = len(days) - len(planned)
    return Reading(request, box, planned, beyond, faults, dates=request.dates(len(planned))), ""


def _days(reader: _Reader, units: Sequence[Any], box: Sandbox) -> list[Day]:
    """Read the days, or take the readings of equal ones: the days of a group of plans have much in common."""
    try:
        names, values = map(tuple, units), map(tuple, map(_values, units))
        return list(map(_memo, repeat(reader), count(1), names, values, repeat(box)))
    except TypeError:  # a day that is no record, or one that holds a list or a record, which has no hash
        return [reader(number, unit, box) for number, unit in enumerate(units, 1)]


@lru_cache(maxsize=MEMO_DAYS)
def _memo(reader: _Reader, number: int, names: tuple[object, ...], values: tuple[object, ...], box: Sandbox) -> Day:
    """The reading of a record of `names` and `values`."""
    return reader(number, dict(zip(names, values, strict=True)), box)


def _normal_day(number: int, unit: object, box: Sandbox) -> Day:
    faults: list[str] = []
    text = read_day(number, unit, faults)
    day = Day(number, text["current_city"], empty=text == EMPTY and not faults, faults=tuple(faults))
    day.blank = frozenset([name for name in PLANNED if text[name] == ABSENT])
    day.filled = len(PLANNED) - len(day.blank)
    if day.where == ABSENT:
        day.where_fault = "names no city"
    else:
        route = box.route(day.where)
        day.cities = route or (box.city(day.where),)
        day.scope = tuple([city for city in day.cities if city])
    if "transportation" not in day.blank:
        day.leg = read_leg(text["transportation"], box)
    day.meals = tuple([box.slot(name, text[name]) for name in MEALS if name not in day.blank])
    if "attraction" not in day.blank:
        parts = [part.strip() for part in text["attraction"].split(";")]
        day.sights = tuple([box.slot("attraction", part) for part in parts if part])
    if "accommodation" not in day.blank:
        day.hotel = box.slot("accommodation", text["accommodation"])
    return _keyed(day, box.rules.exact)


def _raw_day(number: int, unit: object, box: Sandbox) -> Day:
    if not isinstance(unit, dict):
        if not (box.rules.foreign_day and isinstance(unit, list | str)):
            return Day(number, broken=f"day {number} is no record of fields")
        unit = {}
    day = Day(number)
    day.missing = _PLANNED.difference(unit)
    day.blank = frozenset([name for name in PLANNED if unit.get(name) in _BLANK])
    day.filled = len([value for value in unit.values() if value and value != ABSENT])
    day.hotel_value = unit.get("accommodation")
    day.transport_value = unit.get("transportation")
    _raw_cities(day, unit, box)
    transport = unit.get("transportation")
    if _given(transport):
        if isinstance(transport, str):
            day.leg = read_leg(transport, box)
        else:
            day.leg_fault = f"day {number} transportation is no text"
    day.meals = tuple([_raw_slot(name, unit[name], box) for name in MEALS if _given(unit.get(name))])
    sights = unit.get("attraction")
    if _given(sights):
        parts = sights.split(";")[:-1] if isinstance(sights, str) else [sights]
        day.sights = tuple([_raw_slot("attraction", part, box) for part in parts])
    if _given(day.hotel_value):
        day.hotel = _raw_slot("accommodation", day.hotel_value, box)
    if "accommodation" in day.missing:
        day.stay_fault = f"day {number} lacks accommodation"
    elif box.rules.null_hotel_fails and day.hotel is None and "accommodation" not in day.blank:
        day.stay_fault = f"day {number} accommodation is no text"
    return _keyed(day, box.rules.exact)


def _keyed(day: Day, exact: bool) -> Day:
    """The day, with what its places add up to."""
    day.meal_keys = tuple([slot.key for slot in day.meals])
    day.sight_keys = tuple([slot.key for slot in day.sights])
    day.sight_fault = next((slot.fault for slot in day.sights if slot.fault), "")
    if day.hotel is not None:
        day.hotel_key = day.hotel.key
        day.rooms = tuple([row for row in day.hotel.rows if isinstance(row, Hotel)])
        known = exact or len(day.rooms) == 1
        day.nights = math.inf if day.hotel.fault else max([row.minimum_nights for row in day.rooms if known], default=0)
    day.travels = len(day.cities) == 2
    return day


def _given(value: object) -> bool:
    return bool(value) and value != ABSENT


def _raw_slot(name: str, value: object, box: Sandbox) -> Slot:
    if isinstance(value, str):
        return box.slot(name, value)
    return Slot(name, repr(value), repr(value), fault=f"{name} is no text")


def _raw_cities(day: Day, unit: Mapping[str, object], box: Sandbox) -> None:
    """Cities and scope of a day, from its text as it is."""
    rules = box.rules
    value = unit.get("current_city")
    if not isinstance(value, str):
        day.where_fault = "names no city"
        day.counts = rules.city_letters or bool(value)
        day.scope = ("",) if rules.empty_transport_checked and "current_city" not in unit else ()
        return
    day.where = value
    day.counts = value != FILLER and (rules.city_letters or bool(value))
    if "from" not in value:
        city = box.city(value)
        day.cities = (city,)
        day.scope = tuple(city) if rules.city_letters else (city,)
        return
    route = box.route(value)
    if route is not None:
        day.cities = (box.city(route[0]), box.city(route[1]))
        day.scope = (box.city(route[0]), box.city(route[1]))
    elif rules.strips_state:
        day.where_fault = "names no route"
    else:
        day.cities = (None, None)
        day.where_fault = "names no route"
