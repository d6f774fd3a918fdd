"""An exact little planner: the cheapest plan of a trip for each way to travel, or None if there is none.

Costs and rules are the judge's: flights per person, cars for five, taxis for four, rooms by maximum occupancy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from star.worlds.travel.database import Database
from star.worlds.travel.facts import Trip
from star.worlds.travel.tables import Flight, Hotel, Restaurant, Sight
from star.worlds.travel.tools import drive_cost, kilometres

CANDIDATES = 8
"""Cities of a state that are tried in every order: those with the cheapest stays."""
MODES = ("flight", "self-driving", "taxi")
FORBIDDEN = {"smoking": "no smoking", "parties": "no parties", "pets": "no pets", "visitors": "no visitors"}
FORBIDDEN["children under 10"] = "no children under 10"
ROOMS = {"entire room": {"entire home/apt"}, "private room": {"private room"}, "shared room": {"shared room"}}
ROOMS["not shared room"] = {"entire home/apt", "private room"}


@dataclass(frozen=True, slots=True)
class Leg:
    mode: str
    origin: str
    destination: str
    date: str
    flight: Flight | None
    cost: int


@dataclass(frozen=True, slots=True)
class Stay:
    city: str
    nights: int
    hotel: Hotel
    meals: tuple[Restaurant, ...]
    """Dinner on arrival, then three a full day, then a last breakfast if the trip ends here."""
    sights: tuple[Sight, ...]
    """One a full day."""


@dataclass(frozen=True, slots=True)
class Solution:
    trip: Trip
    legs: tuple[Leg, ...]
    stays: tuple[Stay, ...]
    cost: int

    def plan(self) -> list[dict[str, object]]:
        """The plan as typed JSON days."""
        return [day for index in range(len(self.stays)) for day in self._stay_days(index)] + [self._last_day()]

    def _stay_days(self, index: int) -> Iterator[dict[str, object]]:
        stay, first = self.stays[index], 1 + sum(s.nights for s in self.stays[:index])
        meals, hotel = [_at(m.name, stay.city) for m in stay.meals], _at(stay.hotel.name, stay.city)
        yield _day(first, _route(self.legs[index]), _transport(self.legs[index]), dinner=meals[0], accommodation=hotel)
        for full in range(stay.nights - 1):
            breakfast, lunch, dinner = meals[1 + 3 * full : 4 + 3 * full]
            sight = _at(stay.sights[full].name, stay.city) + ";"
            yield _day(
                first + 1 + full, stay.city, "-", breakfast=breakfast, attraction=sight, lunch=lunch, dinner=dinner,
                accommodation=hotel,
            )  # fmt: skip

    def _last_day(self) -> dict[str, object]:
        stay, leg = self.stays[-1], self.legs[-1]
        return _day(self.trip.days, _route(leg), _transport(leg), breakfast=_at(stay.meals[-1].name, stay.city))


def _at(name: str, city: str) -> str:
    return f"{name}, {city}"


def _route(leg: Leg) -> str:
    return f"from {leg.origin} to {leg.destination}"


def _transport(leg: Leg) -> str:
    head = f"Flight Number: {leg.flight.number}" if leg.flight else leg.mode.capitalize()
    return f"{head}, {_route(leg)}"


def _day(number: int, city: str, transportation: str, **fields: str) -> dict[str, object]:
    day: dict[str, object] = {"days": number, "current_city": city, "transportation": transportation}
    for name in ("breakfast", "attraction", "lunch", "dinner", "accommodation"):
        day[name] = fields.get(name, "-")
    return day


def solve(trip: Trip, database: Database) -> Solution | None:
    """Prefer flights, then the car, then taxis, then whatever mixture fits; the cheapest plan of the first that fits."""
    forbidden = {"no flight": {"flight"}, "no self-driving": {"self-driving"}}.get(trip.transportation or "", set())
    choices = [(mode,) for mode in MODES if mode not in forbidden] + [("flight", "taxi")] * ("flight" not in forbidden)
    routes = list(_routes(_Market(trip, database)))
    for modes in choices:
        found = [s for cities, stays in routes if (s := _assemble(trip, database, modes, cities, stays)) is not None]
        if found:
            return min(found, key=lambda s: s.cost)
    return None


def nights_of(trip: Trip) -> list[int]:
    """Nights in each city; the first cities take what does not divide."""
    each, extra = divmod(trip.days - 1, trip.cities)
    return [each + (index < extra) for index in range(trip.cities)]


Menus = dict[int, tuple[float, tuple[Restaurant, ...]]]
"""Covered cuisines (bit mask) -> the cheapest restaurants that cover them, with their summed cost."""


class _Market:
    """What each city has to offer to one trip; looked up once, whatever the order of the cities."""

    def __init__(self, trip: Trip, database: Database) -> None:
        self.trip, self.database = trip, database
        self.hotel = cache(self._hotel)
        self.sights = cache(self._sights)
        self.menus = cache(self._menus)

    def _hotel(self, city: str, nights: int) -> Hotel | None:
        trip, rows = self.trip, self.database.hotels(city)
        names = [row.name for row in rows]
        fit = [
            h for h in rows
            if h.minimum_nights <= nights and allows(h, trip.house_rule, trip.room_type) and _clear(h.name, names)
        ]  # fmt: skip
        return min(fit, key=lambda h: h.price * rooms(trip.people, h), default=None)

    def _sights(self, city: str, count: int) -> tuple[Sight, ...] | None:
        rows = self.database.sights(city)
        names = [row.name for row in rows]
        fit = tuple(itertools.islice((row for row in rows if _clear(row.name, names)), count))
        return fit if len(fit) == count else None

    def _menus(self, city: str, count: int) -> Menus:
        """Dynamic programme over (restaurants chosen, cuisines covered)."""
        rows = self.database.restaurants(city)
        names = [row.name for row in rows]
        states: dict[tuple[int, int], tuple[float, tuple[Restaurant, ...]]] = {(0, 0): (0.0, ())}
        for row in rows:
            if not _clear(row.name, names):
                continue
            serves = {part.strip() for part in row.cuisines.split(",")}
            bits = sum(1 << index for index, cuisine in enumerate(self.trip.cuisine) if cuisine in serves)
            for (used, mask), (cost, chosen) in list(states.items()):
                key, total = (used + 1, mask | bits), cost + row.cost
                if used < count and (key not in states or total < states[key][0]):
                    states[key] = (total, (*chosen, row))
        return {mask: value for (used, mask), value in states.items() if used == count}


def _routes(market: _Market) -> Iterator[tuple[tuple[str, ...], tuple[Stay, ...]]]:
    trip, nights = market.trip, nights_of(market.trip)
    if trip.cities == 1 and trip.days == 3:
        orders: Sequence[tuple[str, ...]] = [(trip.dest,)]
    else:
        hotels = {c: market.hotel(c, min(nights)) for c in market.database.cities(trip.dest) if c != trip.org}
        fit = sorted((h.price, c) for c, h in hotels.items() if h is not None)[:CANDIDATES]
        orders = list(itertools.permutations([c for _, c in fit], trip.cities))
    for cities in orders:
        stays = _stays(market, cities, nights)
        if stays is not None:
            yield cities, stays


def _stays(market: _Market, cities: tuple[str, ...], nights: list[int]) -> tuple[Stay, ...] | None:
    counts = [1 + 3 * (n - 1) + (index == len(cities) - 1) for index, n in enumerate(nights)]
    meals = _meals(market, cities, counts)
    if meals is None:
        return None
    found = []
    for city, n, eaten in zip(cities, nights, meals, strict=True):
        hotel, seen = market.hotel(city, n), market.sights(city, n - 1)
        if hotel is None or seen is None:
            return None
        found.append(Stay(city, n, hotel, eaten, seen))
    return tuple(found)


def allows(hotel: Hotel, house_rule: str | None, room_type: str | None) -> bool:
    """Whether a hotel permits what the party wants and offers the room it asks for."""
    if house_rule and FORBIDDEN[house_rule] in hotel.house_rules.lower():
        return False
    return room_type is None or hotel.room_type.lower() in ROOMS[room_type]


def rooms(people: int, hotel: Hotel) -> int:
    return math.ceil(people / hotel.maximum_occupancy)


def _clear(name: str, others: Sequence[str]) -> bool:
    """Whether a name is unmistakable in its city also for a judge that looks names up by "contains"."""
    key = name.lower()
    return bool(key.strip()) and ";" not in name and sum(key in other.lower() for other in others) == 1


def _meals(market: _Market, cities: tuple[str, ...], counts: list[int]) -> tuple[tuple[Restaurant, ...], ...] | None:
    """Cheapest distinct restaurants, `counts` in each city, that together serve every cuisine asked for."""
    full = (1 << len(market.trip.cuisine)) - 1
    best: dict[int, tuple[float, tuple[tuple[Restaurant, ...], ...]]] = {0: (0.0, ())}
    for city, count in zip(cities, counts, strict=True):
        merged: dict[int, tuple[float, tuple[tuple[Restaurant, ...], ...]]] = {}
        for (mask, (cost, eaten)), (more, (price, chosen)) in itertools.product(best.items(), market.menus(city, count).items()):
            total = cost + price
            if mask | more not in merged or total < merged[mask | more][0]:
                merged[mask | more] = (total, (*eaten, chosen))
        best = merged
    return best[full][1] if full in best else None


def _assemble(
    trip: Trip, database: Database, modes: tuple[str, ...], cities: tuple[str, ...], stays: tuple[Stay, ...]
) -> Solution | None:
    stops = (trip.org, *cities, trip.org)
    days = [0, *itertools.accumulate(nights_of(trip))]
    legs = []
    for origin, destination, day in zip(stops, stops[1:], days, strict=False):
        options = [leg for mode in modes if (leg := _leg(trip, database, mode, origin, destination, trip.date[day]))]
        if not options:
            return None
        legs.append(min(options, key=lambda leg: leg.cost))
    cost = sum(leg.cost for leg in legs) + sum(_stay_cost(trip, stay) for stay in stays)
    if trip.budget is not None and cost > trip.budget:
        return None
    return Solution(trip, tuple(legs), stays, math.ceil(cost))


def _stay_cost(trip: Trip, stay: Stay) -> float:
    meals = sum(meal.cost for meal in stay.meals) * trip.people
    return meals + stay.hotel.price * rooms(trip.people, stay.hotel) * stay.nights


def _leg(trip: Trip, database: Database, mode: str, origin: str, destination: str, date: str) -> Leg | None:
    if mode == "flight":
        flight = min(database.flights(origin, destination, date), key=lambda f: f.price, default=None)
        return Leg(mode, origin, destination, date, flight, math.ceil(flight.price * trip.people)) if flight else None
    row = database.distance(origin, destination)
    km = kilometres(row) if row else None
    if km is None:
        return None
    seats = 5 if mode == "self-driving" else 4
    return Leg(mode, origin, destination, date, None, drive_cost(km, mode) * math.ceil(trip.people / seats))
