"""Commonsense checks of a plan, apart from its route: variety, nights, transport, places and completeness."""

from __future__ import annotations

from collections.abc import Hashable
from functools import lru_cache
from typing import Literal

from star.worlds.travel.reading import MEMO_DAYS, PLANNED, Day, Reading
from star.worlds.travel.route import wrong_city_number
from star.worlds.travel.sandbox import Sandbox, Slot

MEAL_FIELDS = frozenset(["breakfast", "lunch", "dinner"])
NAMES = {"transportation": "transport", "attraction": "sights", "accommodation": "hotel"}


def is_valid_restaurants(plan: Reading) -> str:
    """No restaurant twice."""
    return _repeat(plan, "meals", [key for day in plan.days for key in day.meal_keys])


def is_valid_attractions(plan: Reading) -> str:
    """No sight twice."""
    for day in plan.days:
        if day.sight_fault:
            return f"day {day.number} {day.sight_fault}"
    return _repeat(plan, "sights", [key for day in plan.days for key in day.sight_keys])


def _repeat(plan: Reading, kind: Literal["meals", "sights"], keys: list[Hashable]) -> str:
    """The first place of a kind that comes again; `keys` are those of all its places."""
    if len(set(keys)) == len(keys):
        return ""
    slots: list[tuple[Day, Slot]] = [(day, slot) for day in plan.days for slot in getattr(day, kind)]
    second = next(index for index, key in enumerate(keys) if key in keys[:index])
    (day, slot), (before, first) = slots[second], slots[keys.index(keys[second])]
    return f"day {day.number} {slot.field} {slot.label!r} repeats day {before.number} {first.field}"


def is_valid_accommodation(plan: Reading) -> str:
    """Every stay is at least as long as the hotel's minimum of nights."""
    days = plan.days
    for day in days:
        if day.stay_fault:
            return day.stay_fault
    start = 0
    for end, day in enumerate(days, 1):
        if end < len(days) and days[end].hotel_key == day.hotel_key:
            continue
        first = days[start]
        if end - start < first.nights and first.hotel is not None:
            return _short_stay(first, first.hotel, end - start)
        start = end
    return ""


def _short_stay(day: Day, hotel: Slot, length: int) -> str:
    """Why a stay of `length` nights from `day` on does not do."""
    if hotel.fault:
        return f"day {day.number} {hotel.fault}"
    return f"{hotel.label!r} asks for at least {day.nights:g} nights; the plan stays {length}"


def is_valid_transportation(plan: Reading) -> str:
    """Day 1 has transport, all transport is of a known kind, and one's own car is not mixed with flights or taxis."""
    if not plan.days or (plan.days[0].leg is None and not plan.days[0].leg_fault):
        return "day 1 has no transport"
    kinds: set[str] = set()
    for day in plan.days:
        if day.leg_fault:
            return day.leg_fault
        if day.leg is not None:
            if plan.box.rules.exact and not day.leg.kinds:
                return f"day {day.number} transport {day.leg.text!r} is of no known kind"
            kinds |= day.leg.kinds
    others = kinds & {"flight", "taxi"}
    if "self-driving" in kinds and others:
        return f"self-driving is mixed with {' and '.join(sorted(others))}"
    return ""


def is_not_absent(plan: Reading) -> str:
    """All days are there and complete, no more than the trip is long, and visit as many cities as asked for."""
    days = plan.request.days
    if plan.faults:
        return plan.faults[0]
    if plan.beyond:
        return f"the plan goes on for {plan.beyond} more days than the trip of {days}"
    planned = sum([day.counts for day in plan.days])
    if planned != days or not days:
        return f"{planned} days are planned, not {days}"
    reason = wrong_city_number(plan)
    if reason:
        return reason
    for day in plan.days:
        reason = _gap(day, plan.box, day.number == days)
        if reason:
            return reason
    filled = sum([day.filled for day in plan.days])
    return "" if filled * 2 >= days * len(PLANNED) else f"only {filled} of {days * len(PLANNED)} fields are given"


@lru_cache(maxsize=MEMO_DAYS)
def _gap(day: Day, box: Sandbox, last: bool) -> str:
    """The first field that a day must fill and does not."""
    if day.missing:
        return f"day {day.number} lacks {min(day.missing)}"
    if not day.blank:
        return ""
    if box.rules.normalised:
        moves, stays = day.travels, not day.travels
        sightless = stays
    else:
        moves = "from " in day.where or "to " in day.where
        stays = "from " not in day.where
        sightless = stays and not (box.rules.to_excuses_sights and " to " in day.where)
    wanted = set(MEAL_FIELDS) if stays else set()
    wanted |= {"transportation"} if moves else set()
    wanted |= {"attraction"} if sightless else set()
    wanted |= {"accommodation"} if not last else set()
    gaps = wanted & day.blank
    if not gaps:
        return ""
    field = min(gaps, key=PLANNED.index)
    return f"day {day.number} has no {NAMES.get(field, field)}"
