"""Whether what a plan names exists and is where the traveller is: the current-city check and the sandbox check.

The verdicts on a day depend on its texts alone, apart from the date of its flight, so they are remembered by day.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache

from star.worlds.travel.reading import MEMO_DAYS, Day, Reading
from star.worlds.travel.request import Unreadable
from star.worlds.travel.sandbox import Sandbox, Slot
from star.worlds.travel.tables import Flight
from star.worlds.travel.transport import Leg


def is_valid_information_in_current_city(plan: Reading) -> str:
    """Transport joins the day's cities, places are in one of them, and the hotel is where the day ends."""
    for day in plan.days:
        reason = _misplaced(day, plan.box)
        if reason:
            return reason
    return ""


@lru_cache(maxsize=MEMO_DAYS)
def _misplaced(day: Day, box: Sandbox) -> str:
    if _idle_without_route(day):
        return ""
    if day.where_fault and not day.scope:
        return f"day {day.number} {day.where_fault}"
    reason = _wrong_transport(day, box)
    if reason:
        return reason
    for slot in (*day.meals, *day.sights):
        if not _is_inside(slot, day.scope, box.rules.exact):
            return f"day {day.number} {slot.field} {slot.label!r} is not in {_either(day)}"
    if day.hotel is not None and not _is_inside(day.hotel, day.scope[-1:], box.rules.exact):
        return f"day {day.number} hotel {day.hotel.label!r} is not where the day ends: {_either(day)}"
    return ""


def _idle_without_route(day: Day) -> bool:
    """Whether a day of an unreadable route plans nothing that could be in a wrong city."""
    planned = day.meals or day.sights or day.hotel or day.transport_value not in (None, "-")
    return day.cities == (None, None) and not planned


def _either(day: Day) -> str:
    return " or ".join(str(city) for city in day.cities) or "any city"


def _is_inside(slot: Slot, cities: Sequence[str], exact: bool) -> bool:
    """Whether a place is in one of the cities; unless `exact`, whether its text holds the name of one."""
    if slot.fault:
        return False
    if exact:
        return slot.city in cities
    return any(city in slot.label for city in cities)


def _wrong_transport(day: Day, box: Sandbox) -> str:
    rules = box.rules
    if rules.exact:
        return _wrong_route(day, day.leg) if day.leg else ""
    value = day.transport_value
    checked = bool(day.leg or day.leg_fault)
    if rules.empty_transport_checked:
        checked = "transportation" not in day.missing and value != "-"
        if value is None and checked:
            return f"day {day.number} transport is null"
    if checked and not all(isinstance(value, str) and city in value for city in day.scope):
        return f"day {day.number} transport {value!r} does not join {_either(day)}"
    return ""


def _wrong_route(day: Day, leg: Leg) -> str:
    """Whether a leg goes anywhere but where its day goes."""
    if day.travels:
        wrong = leg.route is not None and leg.route != day.cities
        return f"day {day.number} goes {_arrow(day.cities)}, its transport {_arrow(leg.route or ())}" if wrong else ""
    city = day.cities[0] if day.cities else None
    if is_local(day, leg):
        return ""
    return f"day {day.number} stays in {city}, but its transport is {leg.text!r}"


def _arrow(cities: Iterable[str | None]) -> str:
    return " to ".join(str(city) for city in cities)


def is_local(day: Day, leg: Leg) -> bool:
    """A taxi within the city of a day without travel."""
    within = leg.route is None or set(leg.route) == {day.cities[0]} if day.cities else False
    return not day.travels and leg.kinds == {"taxi"} and within


def is_valid_information_in_sandbox(plan: Reading) -> str:
    """Every flight, road, meal, sight and hotel is in the database."""
    for day, date in zip(plan.days, plan.dates, strict=True):
        reason = _unknown(day, plan.box, date)
        if reason:
            return reason
    return ""


@lru_cache(maxsize=MEMO_DAYS)
def _unknown(day: Day, box: Sandbox, date: str | None) -> str:
    if not box.rules.optional_fields and "transportation" in day.missing:
        return f"day {day.number} lacks transportation"
    if day.leg_fault:
        return day.leg_fault
    if day.leg is not None and (reason := _unknown_leg(day, day.leg, box, date)):
        return reason
    for slot in (*day.meals, *day.sights, *((day.hotel,) if day.hotel else ())):
        if not slot.rows:
            return f"day {day.number} {slot.field} {slot.label!r} is not in the database"
    return ""


def leg_route(day: Day, leg: Leg, box: Sandbox) -> tuple[str, str] | None:
    """Where a leg goes: as its text says, else as its day says. Raises Unreadable if the day says nothing at all."""
    if leg.route is not None:
        return leg.route
    if box.rules.exact:
        start, end = day.cities if day.travels else (None, None)
        return (start, end) if start and end else None
    if day.where_fault and not day.where:
        raise Unreadable(f"day {day.number} {day.where_fault}")
    return box.route(day.where)


def _unknown_leg(day: Day, leg: Leg, box: Sandbox, date: str | None) -> str:
    if box.rules.exact and is_local(day, leg):
        return ""
    named = leg_route(day, leg, box)
    where = f"day {day.number} transport {leg.text!r}"
    if leg.lookup is None:
        return f"{where} is not in the database" if box.rules.exact else ""
    if named is None:
        return f"{where} names no route"
    route = named if box.rules.exact else (box.city(named[0]), box.city(named[1]))
    if leg.lookup == "flight":
        return "" if matching_flights(leg, route, box, date) else f"{where} is no flight {_arrow(route)} on that day"
    return "" if box.kilometres(*route) is not None else f"{where} has no road {_arrow(route)} within a day"


def matching_flights(leg: Leg, route: tuple[str, str], box: Sandbox, date: str | None) -> list[Flight]:
    """Rows of the leg's flight number on its route; in strict mode also on the day's date, and only of one number."""
    if not box.rules.exact:
        rows = box.numbered(leg.numbers[0]) if leg.numbers else ()
        return [row for row in rows if (row.origin, row.destination) == route]
    if len(leg.numbers) != 1:
        return []
    dated = [row for row in box.numbered(leg.numbers[0]) if row.date == date]
    return [row for row in dated if (box.city(row.origin), box.city(row.destination)) == route]
