"""Checks of the cities that a plan visits: where it starts, what it visits, and that it comes home."""

from __future__ import annotations

from star.worlds.travel.reading import Reading
from star.worlds.travel.request import Unreadable
from star.worlds.travel.text import name_key

LONGEST_CITY_TRIP = 3
"""Days up to which the destination of a query is a city; that of a longer trip is a state."""


def origin_of(plan: Reading) -> str:
    """The city of departure, as the mode compares cities."""
    org = plan.request.text("org")
    return plan.box.city(org) if plan.box.rules.exact else org


def cities_of(plan: Reading) -> list[str | None]:
    """Cities of all days, in order; raises Unreadable if the text of a day names none."""
    for day in plan.days:
        if day.where_fault and not day.cities:
            raise Unreadable(f"day {day.number} {day.where_fault}")
    return [city for day in plan.days for city in day.cities]


def is_reasonable_visiting_city(plan: Reading) -> str:
    """The trip starts at home, visits known cities of the destination, each in one stay, and ends at home."""
    org = origin_of(plan)
    cities = cities_of(plan)
    if not cities:
        return "the plan visits no city"
    if plan.days[0].travels and cities[0] != org:
        return f"the trip starts in {cities[0]}, not in {org}"
    if cities[0] != cities[-1]:
        return f"the trip starts in {cities[0]} and ends in {cities[-1]}"
    reason = _broken_journey(plan, org) if plan.box.rules.exact else ""
    return reason or _broken_sequence(cities) or _wrong_place(plan, cities)


def _broken_journey(plan: Reading, org: str) -> str:
    """Each day starts where the day before ended; the first leaves home, and only the last comes back."""
    here: str | None = org
    for day in plan.days:
        start, end = day.cities[0], day.cities[-1]
        if start != here:
            return f"day {day.number} starts in {start}, but the traveller is in {here}"
        if day.travels and start == end:
            return f"day {day.number} travels from {start} to itself"
        if end == org and day.number != plan.request.days:
            return f"day {day.number} is spent at home in {org}"
        here = end
    if len(plan.days) == plan.request.days and here != org:
        return f"the trip ends in {here}, not in {org}"
    return ""


def _broken_sequence(cities: list[str | None]) -> str:
    """No city is visited twice, and each is both reached and left."""
    if len(cities) < 3:
        return "the plan visits too few cities"
    last = len(cities) - 1
    seen: set[str | None] = set()
    start = 0
    for end, city in enumerate(cities):
        if end < last and cities[end + 1] == city:
            continue
        if city in seen and start not in (0, last):
            return f"{city} is visited twice"
        if start == end and 0 < end < last:
            return f"{city} is passed without a stay"
        seen.add(city)
        start = end + 1
    return ""


def _wrong_place(plan: Reading, cities: list[str | None]) -> str:
    """Every city is known, and all but the first and the last belong to the destination."""
    box, dest = plan.box, plan.request.text("dest")
    exact, within = box.rules.exact, plan.request.days > LONGEST_CITY_TRIP
    states = box.database.state_keys if exact else box.database.states
    known = box.database.city_keys if exact else states.keys()
    state, town = (name_key(dest), box.city(dest)) if exact else (dest, None)
    last = len(cities) - 1
    for index, city in enumerate(cities):
        if city is None or city not in known:
            return f"{city} is not a known city"
        if index in (0, last):
            continue
        if within and states.get(city) != state:
            return f"{city} is not in {dest}"
        if not within and exact and city != town:
            return f"{city} is not the destination, {dest}"
    return ""


def wrong_city_number(plan: Reading) -> str:
    """As many cities are visited as the query asks for."""
    facts, rules = plan.request.facts, plan.box.rules
    if "visiting_city_number" not in facts:
        return "the query does not say how many cities to visit" if rules.visits_required else ""
    org, days = origin_of(plan), plan.days
    if days and days[0].travels and days[0].cities[0] != org:
        return f"the trip starts in {days[0].cities[0]}, not in {org}"
    visited = set(cities_of(plan))
    visited.discard(org)
    wanted = facts["visiting_city_number"]
    return "" if len(visited) == wanted else f"{len(visited)} cities are visited, not {wanted}"
