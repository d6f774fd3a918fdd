"""A plan as the checks see it: a list of days with their cities, transport, meals, sights and hotel.

`strict` reads the normalised plan, where every field is text or absent. The reference modes read what was handed in as
it is; a value that their code could not have worked with is kept as a fault, and fails the checks that would have used
it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from star.worlds.travel.plan import ABSENT, ALL_EMPTY, EMPTY, FILLER, MEALS, NOT_FOUND, decode, read_day, unwrap
from star.worlds.travel.request import Request
from star.worlds.travel.sandbox import Sandbox, Slot
from star.worlds.travel.transport import Leg, read_leg

PLANNED = ("transportation", "breakfast", "attraction", "lunch", "dinner", "accommodation")
"""The six fields that a complete day fills."""
_PLANNED = frozenset(PLANNED)
_BLANK = ("", ABSENT)
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
    hotel_key: Hashable = None
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

    @property
    def travels(self) -> bool:
        return len(self.cities) == 2


@dataclass(frozen=True, slots=True)
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


def read(request: Request, answer: object, box: Sandbox) -> tuple[Reading | None, str]:
    """The plan as the mode of `box` reads it; None and the reason if none was delivered."""
    value = decode(answer)
    units = unwrap(value) if box.rules.normalised else value
    if not units:
        return None, NOT_FOUND
    if not isinstance(units, list | tuple):
        units = [None]
    if not box.rules.normalised:
        days = [_remembered(_raw_day, number, unit, box) for number, unit in enumerate(units[: request.days], 1)]
        broken = next((day.broken for day in days if day.broken), "")
        return Reading(request, box, tuple(days), broken=broken, dates=request.dates(len(days))), ""
    days = [_remembered(_normal_day, number, unit, box) for number, unit in enumerate(units, 1)]
    while days and days[-1].empty:
        days.pop()
    faults = tuple(fault for day in days for fault in day.faults)
    if not days:
        return None, ALL_EMPTY
    planned = tuple(days[: request.days])
    beyond = len(days) - len(planned)
    return Reading(request, box, planned, beyond, faults, dates=request.dates(len(planned))), ""


def _remembered(reader: Callable[[int, object, Sandbox], Day], number: int, unit: object, box: Sandbox) -> Day:
    """Read a day, or take the reading of an equal one: the days of a group of plans have much in common."""
    if not isinstance(unit, dict):
        return reader(number, unit, box)
    try:
        return _memo(reader, number, tuple(unit.items()), box)
    except TypeError:  # a value that is a list or a record has no hash
        return reader(number, unit, box)


@lru_cache(maxsize=MEMO_DAYS)
def _memo(
    reader: Callable[[int, object, Sandbox], Day], number: int, items: tuple[tuple[object, object], ...], box: Sandbox
) -> Day:
    return reader(number, dict(items), box)


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
    return _keyed(day)


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
    return _keyed(day)


def _keyed(day: Day) -> Day:
    """The day, with the keys of its places."""
    day.meal_keys = tuple([slot.key for slot in day.meals])
    day.sight_keys = tuple([slot.key for slot in day.sights])
    day.hotel_key = day.hotel.key if day.hotel else None
    return day


def _given(value: object) -> bool:
    return bool(value) and value != ABSENT


def _raw_slot(name: str, value: object, box: Sandbox) -> Slot:
    if isinstance(value, str):
        return box.slot(name, value)
    return Slot(name, repr(value), fault=f"{name} is no text")


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
