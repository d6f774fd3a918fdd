"""The five hard constraints: budget, house rules, cuisines, room type and transport."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import lru_cache

from star.worlds.travel.plan import MEALS
from star.worlds.travel.reading import MEMO_DAYS, Day, Reading
from star.worlds.travel.request import Request, Unreadable
from star.worlds.travel.route import origin_of
from star.worlds.travel.rules import Rules
from star.worlds.travel.sandbox import Sandbox, Slot
from star.worlds.travel.tables import Hotel, Restaurant
from star.worlds.travel.text import name_key
from star.worlds.travel.transport import Kind, Leg
from star.worlds.travel.whereabouts import leg_route, matching_flights

DOLLARS_A_KILOMETRE = {"self-driving": 0.05, "taxi": 1.0}
SEATS = {"self-driving": 5, "taxi": 4}
WISHES = {
    "valid_room_rule": "house rule",
    "valid_cuisine": "cuisine",
    "valid_room_type": "room type",
    "valid_transportation": "transportation",
}
"""Hard constraint -> key of the query's local constraints; the budget always applies."""
ROOM_TYPES: dict[str, Callable[[str], bool]] = {
    "not shared room": lambda kind: kind != "Shared room",
    "shared room": lambda kind: kind == "Shared room",
    "private room": lambda kind: kind == "Private room",
    "entire room": lambda kind: kind == "Entire home/apt",
}
HOUSE_RULES = {
    "smoking": "No smoking",
    "parties": "No parties",
    "children under 10": "No children under 10",
    "visitors": "No visitors",
    "pets": "No pets",
}
"""What the traveller wants to be allowed -> the words of a hotel that forbids it."""
BANS: dict[str, Kind] = {"no flight": "flight", "no self-driving": "self-driving"}


def applies(name: str, request: Request, rules: Rules) -> bool:
    """Whether a hard constraint applies to a query; one that cannot be read applies, and fails."""
    if name not in WISHES:
        return True
    try:
        return wish_of(name, request, rules) is not None
    except Unreadable:
        return True


def wish_of(name: str, request: Request, rules: Rules) -> object:
    """What the traveller asks for, None for nothing; raises Unreadable if the query does not say it legibly."""
    key, wishes = WISHES[name], request.constraints
    if wishes is None:
        stated = request.facts.get("local_constraint")
        absent = rules.normalised if stated is None else False
        if absent or (not rules.empty_constraint_counts and "local_constraint" not in request.facts):
            return None
        raise Unreadable(f"the query's local constraints are {stated!r}")
    if rules.empty_constraint_counts:
        if key not in wishes:
            raise Unreadable(f"the query does not state its {key}")
        wish = wishes[key]
        return (wish or None) if key == "cuisine" else wish
    return wishes.get(key) or None


def valid_cost(plan: Reading, cost: float) -> str:
    """The whole trip costs no more than the budget."""
    if plan.box.rules.normalised:
        budget = plan.request.amount("budget")
    else:
        budget = plan.request.number("budget")
    within = not cost > budget if plan.box.rules.lenient_cost else cost <= budget
    return "" if within else f"the trip costs ${cost:,.0f}, over the budget of ${budget:,.0f}"


def total_cost(plan: Reading) -> float:
    """US dollars for the whole party; what is not in the database costs nothing. Raises Unreadable if unknown."""
    if plan.broken:
        raise Unreadable(plan.broken)
    people, trouble = _people(plan)
    total: float = 0
    for day, date in zip(plan.days, plan.dates, strict=True):
        total += _day_cost(day, plan.box, date, people)
    if trouble and (total or plan.box.rules.normalised):
        raise Unreadable(trouble)
    return total


@lru_cache(maxsize=MEMO_DAYS)
def _day_cost(day: Day, box: Sandbox, date: str | None, people: float) -> float:
    _want_fields(day, box, ("transportation", *MEALS, "accommodation"))
    if day.leg_fault:
        raise Unreadable(day.leg_fault)
    total = _fare(day, day.leg, box, date, people) if day.leg is not None else 0
    for slot in day.meals:
        row = _first(slot, day)
        if isinstance(row, Restaurant):
            total += row.cost * people
    if day.hotel is not None:
        hotel = _first(day.hotel, day)
        if isinstance(hotel, Hotel):
            total += hotel.price * math.ceil(people / hotel.maximum_occupancy)
    return total


def _people(plan: Reading) -> tuple[float, str]:
    """Size of the party, and why it cannot be read if so; then it is taken as one."""
    request = plan.request
    try:
        people = request.amount("people_number") if plan.box.rules.normalised else request.number("people_number")
    except Unreadable as error:
        return 1, str(error)
    if (plan.box.rules.normalised and people < 1) or not math.isfinite(people):
        return 1, f"the query's number of people is {people}"
    return people, ""


def _first(slot: Slot, day: Day) -> object:
    """The row that a place stands for, None if there is none; of several the first, as the tools list it."""
    if slot.fault:
        raise Unreadable(f"day {day.number} {slot.fault}")
    return slot.rows[0] if slot.rows else None


def _want_fields(day: Day, box: Sandbox, fields: tuple[str, ...]) -> None:
    """Raise Unreadable if the mode insists on a field that the day does not have."""
    if not day.missing:
        return
    optional = box.rules.optional_fields
    wanted = [name for name in fields if name in day.missing and not (optional and name != "accommodation")]
    if wanted:
        raise Unreadable(f"day {day.number} lacks {wanted[0]}")


def _fare(day: Day, leg: Leg, box: Sandbox, date: str | None, people: float) -> float:
    """Price of one leg for the whole party."""
    named = leg_route(day, leg, box)
    if named is None or leg.lookup is None:
        return 0
    exact = box.rules.exact
    if leg.lookup == "flight":
        if not leg.numbers and not exact:
            raise Unreadable(f"day {day.number} transport {leg.text!r} names no flight number")
        rows = matching_flights(leg, named, box, date) if exact else []
        rows = rows or [row for number in leg.numbers[:1] for row in box.numbered(number)]
        return rows[0].price * people if rows else 0
    route = named if exact else (box.city(named[0]), box.city(named[1]))
    length = box.kilometres(*route)
    if length is None:
        if exact:
            return 0
        raise Unreadable(f"day {day.number} transport {leg.text!r} has no known cost")
    return int(length * DOLLARS_A_KILOMETRE[leg.lookup]) * math.ceil(people / SEATS[leg.lookup])


def _hotels(plan: Reading) -> Iterator[tuple[Day, tuple[Hotel, ...]]]:
    """Days and the hotel rows that must meet a wish. In strict mode every night must have a hotel of the database."""
    exact = plan.box.rules.exact
    for day in plan.days:
        if day.missing and not plan.box.rules.optional_fields:
            _want_fields(day, plan.box, ("accommodation",))
        if day.hotel is not None and day.hotel.fault:
            raise Unreadable(f"day {day.number} {day.hotel.fault}")
        if day.rooms:
            yield day, day.rooms if exact else day.rooms[:1]
        elif exact and (day.number < plan.request.days or day.hotel):
            raise Unreadable(f"day {day.number} has no hotel of the database")
    if exact and (not plan.days or len(plan.days) < plan.request.days - 1):
        raise Unreadable("the plan has nights without a hotel")


def valid_room_rule(plan: Reading, wish: object) -> str:
    """No hotel forbids what the traveller wants to be allowed."""
    forbidden = HOUSE_RULES.get(wish) if isinstance(wish, str) else None
    if forbidden is None and plan.box.rules.exact:
        return f"{wish!r} is no known house rule"
    for day, rows in _hotels(plan):
        if forbidden and any(forbidden in row.house_rules for row in rows):
            return f"day {day.number} hotel {rows[0].name!r} has the rule {forbidden!r}"
    return ""


def valid_room_type(plan: Reading, wish: object) -> str:
    """Every hotel room is of the wanted type."""
    fits = ROOM_TYPES.get(wish) if isinstance(wish, str) else None
    if fits is None and plan.box.rules.exact:
        return f"{wish!r} is no known room type"
    for day, rows in _hotels(plan):
        if fits and not all(fits(row.room_type) for row in rows):
            return f"day {day.number} hotel {rows[0].name!r} offers {rows[0].room_type!r}, not {wish!r}"
    return ""


def valid_cuisine(plan: Reading, wish: object) -> str:
    """Every wanted cuisine is eaten at least once away from home."""
    rules = plan.box.rules
    wanted = [wish] if isinstance(wish, str) and rules.exact else wish
    if not isinstance(wanted, list | tuple | set | frozenset | str) or not all(isinstance(c, str) for c in wanted):
        return f"the wanted cuisines are {wish!r}"
    home = origin_of(plan)
    if rules.exact:
        served: set[str] = set()
        for day in plan.days:
            served |= _served(day, home, plan.box)
        found = {cuisine for cuisine in wanted if name_key(cuisine) in served}
    else:
        meals = [row for day in plan.days for row in _eaten(day, home, plan.box)]
        found = {cuisine for row in meals for cuisine in wanted if cuisine in row.cuisines}
    absent = [cuisine for cuisine in wanted if cuisine not in found]
    if not absent and rules.distinct_cuisines and len(found) != len(wanted):
        return "a cuisine is required twice"
    return f"no meal is {' or '.join(absent)}" if absent else ""


@lru_cache(maxsize=MEMO_DAYS)
def _served(day: Day, home: str, box: Sandbox) -> frozenset[str]:
    """Normalised cuisines of a day's meals away from home."""
    return frozenset([name_key(part) for row in _eaten(day, home, box) for part in row.cuisines.split(",")])


@lru_cache(maxsize=MEMO_DAYS)
def _eaten(day: Day, home: str, box: Sandbox) -> tuple[Restaurant, ...]:
    """Restaurants of a day away from home, in order."""
    rows: list[Restaurant] = []
    slots = {slot.field: slot for slot in day.meals}
    for meal in MEALS:
        if not box.rules.optional_fields:
            _want_fields(day, box, (meal,))
        slot = slots.get(meal)
        if slot is None:
            continue
        row = _first(slot, day)
        at_home = slot.city == home
        if at_home and box.rules.skips_day_after_origin:
            break
        if isinstance(row, Restaurant) and not at_home:
            rows.append(row)
    return tuple(rows)


def valid_transportation(plan: Reading, wish: object) -> str:
    """No transport of the kind that the traveller does not want."""
    rules = plan.box.rules
    banned = BANS.get(wish) if isinstance(wish, str) else None
    if banned is None and rules.exact:
        return f"{wish!r} is no known wish for transport"
    for day in plan.days:
        if day.missing and not rules.optional_fields:
            _want_fields(day, plan.box, ("transportation",))
        if day.leg_fault and not (rules.foreign_day and isinstance(day.transport_value, list)):
            raise Unreadable(day.leg_fault)
        if day.leg is not None and banned in day.leg.banned:
            return f"day {day.number} transport {day.leg.text!r} against the wish {wish!r}"
    return ""
