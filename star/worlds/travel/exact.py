"""The certificate of a trip: the cheapest plan that the judge accepts, found by branch and bound, exact.

Exact over every plan whose names all modes of the judge read alike (see `catalogue`). What is searched, and why no plan
outside it is cheaper:

* Cities of the destination in every order, and every division of the nights among them. A city is one stay of at least
  one night, since a city may be neither passed nor visited twice.
* One hotel a stay: any hotel of a mixed stay accepts the whole stay too, and the cheapest of them costs no more.
* Transport of one family, flights and taxis or the own car, since the two may not be mixed. Legs do not influence each
  other within a family, so each takes its cheapest.
* Three meals and a sight a full day. Days of travel need none; meals are added there only to cover a cuisine, or to
  reach the half of all fields that a plan must fill after sights, which are free, are used up. A city borders two days of
  travel with three meals each, and no more than four meals (five with one for completeness) are ever added, so there
  is room for them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from star.worlds.travel.catalogue import Catalogue, Eatery, Lodging, Town, cars
from star.worlds.travel.facts import Trip
from star.worlds.travel.reading import PLANNED
from star.worlds.travel.route import LONGEST_CITY_TRIP
from star.worlds.travel.solver import Leg, Stay
from star.worlds.travel.tables import Restaurant
from star.worlds.travel.text import name_key
from star.worlds.travel.witness import Witness

FAMILIES: tuple[tuple[str, ...], ...] = (("self-driving",), ("flight", "taxi"))
BANNED = {"no flight": "flight", "no self-driving": "self-driving"}

Menu = dict[int, tuple[float, tuple[Restaurant, ...]]]
"""Covered cuisines as a bit mask -> the cheapest meals that cover them, and their price a person."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """What is proved about a trip: `cheapest` is the least cost of any plan of the space above."""

    trip: Trip
    cheapest: float
    plan: Witness
    """A plan that costs this."""


def certify(trip: Trip, catalogue: Catalogue) -> Certificate | None:
    """The cheapest plan, whatever the budget; None proves that no plan exists."""
    best: Witness | None = None
    for family in FAMILIES:
        best = optimum(trip, catalogue, family, limit=best.exact if best else math.inf) or best
    return None if best is None else Certificate(trip, best.cost, best)


def ordinary(trip: Trip, catalogue: Catalogue) -> Witness | None:
    """The cheapest plan within the budget with all usual meals: by air if one flies, else by car, else by taxi."""
    limit = math.inf if trip.budget is None else trip.budget + 1e-6
    air = optimum(trip, catalogue, FAMILIES[1], full=True, limit=limit)
    if air is not None and any(leg.flight for leg in air.legs):
        return air
    return optimum(trip, catalogue, FAMILIES[0], full=True, limit=limit) or air


def optimum(
    trip: Trip, catalogue: Catalogue, family: Sequence[str], full: bool = False, limit: float = math.inf
) -> Witness | None:
    """The cheapest plan with this transport that costs less than `limit` US dollars.

    `full` also eats dinner on each arrival and breakfast on the last day.
    """
    modes = tuple(mode for mode in family if mode != BANNED.get(trip.transportation or ""))
    if not modes or trip.cities < 1 or trip.days - 1 < trip.cities or len(trip.date) < trip.days:
        return None
    search = _Search(trip, catalogue, modes, full, limit)
    search.run()
    return search.witness()


def towns_of(trip: Trip, catalogue: Catalogue) -> list[Town]:
    """Cities that a trip may visit."""
    if trip.days <= LONGEST_CITY_TRIP:
        names: Sequence[str] = [trip.dest] if trip.dest in catalogue.database.states else []
    else:
        names = catalogue.database.cities(trip.dest)
    return [catalogue.town(name) for name in names if name != trip.org]


@dataclass(slots=True)
class _Choice:
    """One way to stay in a town for some nights."""

    town: Town
    nights: int
    lodging: Lodging
    meals: int
    """Meals that must be eaten there."""
    cost: float
    """US dollars for the hotel and the cheapest meals, whatever their cuisine: a lower bound."""
    food_cost: float
    """Those of the meals."""


@dataclass(slots=True)
class _Search:
    trip: Trip
    catalogue: Catalogue
    modes: tuple[str, ...]
    full: bool
    best: float = math.inf
    found: tuple[_Choice, ...] = ()
    eaten: tuple[tuple[Restaurant, ...], ...] = ()
    at_home: tuple[Restaurant, ...] = ()
    """Meals in the city of departure; a plan needs one only where there are no sights."""
    choices: list[tuple[Town, dict[tuple[int, bool], _Choice]]] = field(default_factory=list)
    rest: list[list[float]] = field(default_factory=list)
    menus: dict[tuple[str, int], Menu] = field(default_factory=dict)
    legs: dict[tuple[str, str, int], Leg | None] = field(default_factory=dict)

    def run(self) -> None:
        nights, towns = self.trip.days - 1, towns_of(self.trip, self.catalogue)
        home = [leg.cost for town in towns if (leg := self._leg(town.name, self.trip.org, nights))]
        if not home or not any(self._leg(self.trip.org, town.name, 0) for town in towns):
            return
        found = [(town, options) for town in towns if (options := self._options(town))]
        self.choices = sorted(found, key=lambda item: min(choice.cost / choice.nights for choice in item[1].values()))
        if len(self.choices) >= self.trip.cities:
            self._bound(nights, min(home))
            if self.rest[-1][nights] < self.best:
                self._go((), self.trip.org, 0, 0.0)

    def _bound(self, nights: int, home: float) -> None:
        """Least costs of so many more cities in so many nights, with the ways to them and home."""
        self.rest = [[home] + [math.inf] * nights]
        ways = [min(self._inner_way(town), self._first_way(town)) for town, _ in self.choices]
        least = [
            min((item[1][n, False].cost + way for item, way in zip(self.choices, ways, strict=True) if (n, False) in item[1]),
                default=math.inf)
            for n in range(1, nights + 1)
        ]  # fmt: skip
        for before in range(self.trip.cities):
            last = self.rest[before]
            row = [
                min((last[left - n] + least[n - 1] for n in range(1, left + 1)), default=math.inf) for left in range(nights + 1)
            ]
            self.rest.append(row)

    def _first_way(self, town: Town) -> float:
        leg = self._leg(self.trip.org, town.name, 0)
        return leg.cost if leg else math.inf

    def _inner_way(self, town: Town) -> float:
        """At most what it costs to get there from another city of the trip."""
        if self.trip.cities == 1:
            return math.inf
        return min(self.catalogue.way_in(town.name, mode) * cars(self.trip.people, mode) for mode in self.modes)

    def _options(self, town: Town) -> dict[tuple[int, bool], _Choice]:
        """(nights, whether the trip ends there) -> the stay."""
        trip, found = self.trip, dict[tuple[int, bool], _Choice]()
        fit = [item for item in town.lodgings if item.suits(trip.house_rule, trip.room_type)]
        for nights, last in itertools.product(range(1, trip.days - trip.cities + 1), (False, True)):
            meals = 3 * (nights - 1) + (1 + last if self.full else 0)
            lodging = min((i for i in fit if i.nights <= nights), key=lambda i: i.price(trip.people), default=None)
            if lodging is None or len(town.eateries) < meals or len(town.sights) < nights - 1:
                continue
            food = sum(item.restaurant.cost for item in town.eateries[:meals]) * trip.people
            found[nights, last] = _Choice(town, nights, lodging, meals, lodging.price(trip.people) * nights + food, food)
        return found

    def _go(self, chosen: tuple[_Choice, ...], here: str, day: int, cost: float) -> None:
        """Extend the stays so far by one, in every way that can still be the cheapest."""
        left, after = self.trip.days - 1 - day, self.trip.cities - len(chosen) - 1
        been = {choice.town.name for choice in chosen}
        lengths = range(1, left - after + 1) if after else (left,)
        for town, options in self.choices:
            leg = None if town.name in been else self._leg(here, town.name, day)
            if leg is None:
                continue
            for nights in lengths:
                choice = options.get((nights, after == 0))
                if choice is not None and cost + leg.cost + choice.cost + self.rest[after][left - nights] < self.best:
                    self._stay((*chosen, choice), day + nights, cost + leg.cost + choice.cost)

    def _stay(self, chosen: tuple[_Choice, ...], day: int, cost: float) -> None:
        if len(chosen) < self.trip.cities:
            self._go(chosen, chosen[-1].town.name, day, cost)
        else:
            self._close(chosen, cost)

    def _close(self, chosen: tuple[_Choice, ...], cost: float) -> None:
        """Go home, and settle what is eaten."""
        leg = self._leg(chosen[-1].town.name, self.trip.org, self.trip.days - 1)
        if leg is None or cost + leg.cost >= self.best:
            return
        bare = cost + leg.cost - sum(choice.food_cost for choice in chosen)
        for counts, home in self._tables(chosen):
            meals = self._meals(chosen, counts)
            if meals is None:
                continue
            total = bare + (meals[0] + sum(row.cost for row in home)) * self.trip.people
            if total < self.best:
                self.best, self.found, self.eaten, self.at_home = total, chosen, meals[1], home

    def _tables(self, chosen: tuple[_Choice, ...]) -> list[tuple[list[int], tuple[Restaurant, ...]]]:
        """Numbers of meals in each city, and meals at home, with which a plan is complete."""
        counts = [choice.meals for choice in chosen]
        short = self._short(chosen)
        if not short:
            return [(counts, ())]
        ways = [([n + short * (at == index) for at, n in enumerate(counts)], ()) for index in range(len(counts))]
        home = tuple(item.restaurant for item in self.catalogue.town(self.trip.org).eateries[:short])
        return [*ways, *([(counts, home)] if len(home) == short else [])]

    def _short(self, chosen: tuple[_Choice, ...]) -> int:
        """Meals that are missing for half of all fields when every day of travel has a sight if there is one left."""
        trip = self.trip
        filled = trip.cities * 2 + 1 + 2 * (trip.days - trip.cities - 1) + sum(choice.meals for choice in chosen)
        wanted = math.ceil(trip.days * len(PLANNED) / 2) - filled
        spare = sum(len(choice.town.sights) - choice.nights + 1 for choice in chosen)
        spare += len(self.catalogue.town(trip.org).sights) if wanted > spare else 0
        return max(0, wanted - min(spare, trip.cities + 1))

    def _meals(self, chosen: Sequence[_Choice], counts: Sequence[int]) -> tuple[float, tuple[tuple[Restaurant, ...], ...]] | None:
        """The cheapest meals in each city, at least so many, that cover all cuisines together; price a person."""
        best: dict[int, tuple[float, tuple[tuple[Restaurant, ...], ...]]] = {0: (0.0, ())}
        for choice, count in zip(chosen, counts, strict=True):
            merged: dict[int, tuple[float, tuple[tuple[Restaurant, ...], ...]]] = {}
            menu = self._menu(choice.town, count)
            for (mask, (cost, eaten)), (more, (price, rows)) in itertools.product(best.items(), menu.items()):
                if mask | more not in merged or cost + price < merged[mask | more][0]:
                    merged[mask | more] = (cost + price, (*eaten, rows))
            best = merged
        return best.get((1 << len(self.trip.cuisine)) - 1)

    def _menu(self, town: Town, count: int) -> Menu:
        key = (town.name, count)
        if key not in self.menus:
            self.menus[key] = menu(town.eateries, count, self.trip.cuisine)
        return self.menus[key]

    def _leg(self, origin: str, destination: str, day: int) -> Leg | None:
        key = (origin, destination, day)
        if key not in self.legs:
            options = [leg for mode in self.modes if (leg := self._ride(mode, *key)) is not None]
            self.legs[key] = min(options, key=lambda leg: leg.cost, default=None)
        return self.legs[key]

    def _ride(self, mode: str, origin: str, destination: str, day: int) -> Leg | None:
        date, people = self.trip.date[day], self.trip.people
        if mode == "flight":
            flight = self.catalogue.fare(origin, destination, date)
            return None if flight is None else Leg(mode, origin, destination, date, flight, math.ceil(flight.price * people))
        price = self.catalogue.road(origin, destination, mode)
        return None if price is None else Leg(mode, origin, destination, date, None, price * cars(people, mode))

    def witness(self) -> Witness | None:
        if not self.found:
            return None
        stops = (self.trip.org, *(choice.town.name for choice in self.found), self.trip.org)
        days = [0, *itertools.accumulate(choice.nights for choice in self.found)]
        legs = [
            leg
            for start, end, day in zip(stops, stops[1:], days, strict=False)
            if (leg := self._leg(start, end, day)) is not None
        ]
        stays = [
            Stay(choice.town.name, choice.nights, choice.lodging.hotel, meals, choice.town.sights)
            for choice, meals in zip(self.found, self.eaten, strict=True)
        ]
        home_sights = self.catalogue.town(self.trip.org).sights
        return Witness(self.trip, tuple(legs), tuple(stays), self.best, self.at_home, home_sights)


def menu(eateries: Sequence[Eatery], count: int, cuisines: Sequence[str]) -> Menu:
    """For every set of cuisines, the cheapest distinct restaurants, at least `count`, that cover it.

    A dynamic programme over (restaurants up to `count`, cuisines covered). Of restaurants with the same cuisines only the
    `count` cheapest, and at least one, can be in an optimum.
    """
    wanted = [name_key(cuisine) for cuisine in cuisines]
    if not wanted:
        rows = tuple(item.restaurant for item in eateries[:count])
        return {0: (sum(row.cost for row in rows), rows)} if len(rows) == count else {}
    kept: dict[int, list[Restaurant]] = {}
    for item in eateries:
        bits = sum(1 << index for index, cuisine in enumerate(wanted) if cuisine in item.cuisines)
        if len(kept.setdefault(bits, [])) < max(count, 1 if bits else 0):
            kept[bits].append(item.restaurant)
    states: dict[tuple[int, int], tuple[float, tuple[Restaurant, ...]]] = {(0, 0): (0.0, ())}
    for bits, row in ((bits, row) for bits, rows in kept.items() for row in rows):
        for (used, mask), (cost, chosen) in list(states.items()):
            key, total = (min(used + 1, count), mask | bits), cost + row.cost
            if key not in states or total < states[key][0]:
                states[key] = (total, (*chosen, row))
    return {mask: value for (used, mask), value in states.items() if used == count}
