"""A solved trip written down as a plan of typed days."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from star.worlds.travel.facts import Trip
from star.worlds.travel.reading import PLANNED
from star.worlds.travel.solver import Leg, Stay
from star.worlds.travel.tables import Restaurant, Sight

MEALS = ("breakfast", "lunch", "dinner")
AROUND = ((0, "dinner"), (1, "breakfast"), (0, "lunch"), (1, "lunch"), (0, "breakfast"), (1, "dinner"))
"""Where meals beyond those of full days go: on the day of arrival (0) or of departure (1)."""

Day = dict[str, object]


@dataclass(frozen=True, slots=True)
class Witness:
    """A plan that exists: its legs, its stays in order, and its cost in US dollars for the whole party."""

    trip: Trip
    legs: tuple[Leg, ...]
    stays: tuple[Stay, ...]
    """A stay holds all sights of its city that may be seen, and the meals that are eaten."""
    exact: float
    at_home: tuple[Restaurant, ...] = ()
    """Meals in the city of departure."""
    home_sights: tuple[Sight, ...] = ()

    @property
    def cost(self) -> int:
        """Rounded up to whole dollars."""
        return math.ceil(self.exact - 1e-9)

    def plan(self) -> list[Day]:
        days = [_blank(number) for number in range(1, self.trip.days + 1)]
        first = 0
        for leg, stay in zip(self.legs, self.stays, strict=False):
            _travel(days[first], leg)
            for day in days[first : first + stay.nights]:
                day["accommodation"] = _at(stay.hotel.name, stay.city)
            _visit(days[first : first + stay.nights + 1], stay)
            first += stay.nights
        _travel(days[-1], self.legs[-1])
        for meal, row in zip(MEALS, self.at_home, strict=False):
            days[0][meal] = _at(row.name, self.trip.org)
        self._complete(days)
        return days

    def _complete(self, days: list[Day]) -> None:
        """Add sights to days of travel until half of all fields are given, as a plan must."""
        used = {day["attraction"] for day in days}
        for index, day in enumerate(days):
            if sum(day[name] != "-" for item in days for name in PLANNED) * 2 >= len(days) * len(PLANNED):
                return
            if day["attraction"] == "-":
                cities = [city for city, nearby in self._sights(index, days) if nearby]
                free = [s for city, nearby in self._sights(index, days) for s in _seen(nearby, city) if s not in used]
                if cities and free:
                    day["attraction"] = free[0]
                    used.add(free[0])

    def _sights(self, index: int, days: Sequence[Day]) -> list[tuple[str, Sequence[Sight]]]:
        """Sights in reach on a day: of the cities it touches."""
        where = str(days[index]["current_city"])
        near = [(stay.city, stay.sights) for stay in self.stays if stay.city in where]
        return [*near, *([(self.trip.org, self.home_sights)] if index in (0, len(days) - 1) else [])]


def _visit(days: list[Day], stay: Stay) -> None:
    """Three meals and a sight on the full days of a stay; meals beyond these on its first and last day."""
    full = days[1:-1]
    meals = iter(stay.meals)
    around = len(stay.meals) - 3 * len(full)
    free = [(days[-1 if late else 0], meal) for late, meal in AROUND]
    slots = [(day, meal) for day, meal in free if day[meal] == "-"][:around]
    for day, meal in (*slots, *((day, meal) for day in full for meal in MEALS)):
        day[meal] = _at(next(meals).name, stay.city)
    for day, sight in zip(full, stay.sights, strict=False):
        day["current_city"] = stay.city
        day["attraction"] = _at(sight.name, stay.city) + ";"


def _travel(day: Day, leg: Leg) -> None:
    route = f"from {leg.origin} to {leg.destination}"
    head = f"Flight Number: {leg.flight.number}" if leg.flight else leg.mode.capitalize()
    day["current_city"], day["transportation"] = route, f"{head}, {route}"


def _seen(sights: Sequence[Sight], city: str) -> list[str]:
    return [_at(sight.name, city) + ";" for sight in sights]


def _at(name: str, city: str) -> str:
    return f"{name}, {city}"


def _blank(number: int) -> Day:
    return {"days": number, "current_city": "-", "transportation": "-", **dict.fromkeys(("breakfast", "attraction"), "-"),
            "lunch": "-", "dinner": "-", "accommodation": "-"}  # fmt: skip
