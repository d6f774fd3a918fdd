"""What a plan may name in a city so that every mode of the judge reads it as the same row.

The official evaluation looks a name up by "contains" and takes the first row; the strict judge takes the exact name, and
all rows that bear it. A place is listed here if both end at the same row first, with what then holds of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

from star.worlds.travel.database import Database
from star.worlds.travel.hard import DOLLARS_A_KILOMETRE, HOUSE_RULES, ROOM_TYPES, SEATS
from star.worlds.travel.sandbox import Row, Sandbox, Slot, sandbox
from star.worlds.travel.tables import Flight, Hotel, Restaurant, Sight
from star.worlds.travel.text import name_key


@dataclass(frozen=True, slots=True)
class Lodging:
    hotel: Hotel
    nights: float
    """The least stay that every row of the name accepts."""
    rows: tuple[Hotel, ...]

    def suits(self, house_rule: str | None, room_type: str | None) -> bool:
        """Whether all rows of the name permit what the party wants and offer the room it asks for."""
        rule = HOUSE_RULES[house_rule] if house_rule else None
        fits = ROOM_TYPES[room_type] if room_type else None
        return not any((rule and rule in row.house_rules) or (fits and not fits(row.room_type)) for row in self.rows)

    def price(self, people: int) -> float:
        """US dollars a night for the whole party."""
        return self.hotel.price * math.ceil(people / self.hotel.maximum_occupancy)


@dataclass(frozen=True, slots=True)
class Eatery:
    restaurant: Restaurant
    cuisines: frozenset[str]
    """Normalised."""


@dataclass(frozen=True, slots=True)
class Town:
    """The places of one city; eateries and lodgings in order of their price."""

    name: str
    lodgings: tuple[Lodging, ...]
    eateries: tuple[Eatery, ...]
    sights: tuple[Sight, ...]


class Catalogue:
    """The towns, roads and flights of a database. Keeps what was asked for; holds no other state."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._strict, self._official = sandbox(database, "strict"), sandbox(database, "official")
        self.town = lru_cache(maxsize=None)(self._town)
        self.way_in = lru_cache(maxsize=None)(self._way_in)
        self._routes = database.flight_routes()
        self.fare = lru_cache(maxsize=1 << 16)(self._fare)

    def road(self, origin: str, destination: str, mode: str) -> int | None:
        """US dollars for one car, None if there is no road that is driven within a day."""
        length = self._official.kilometres(origin, destination)
        return None if length is None else int(length * DOLLARS_A_KILOMETRE[mode])

    def _way_in(self, city: str, mode: str) -> float:
        """The least that one car pays to get there from another city of its state; nothing for a flight, if there is one."""
        others = self.database.cities(self.database.state_of(city) or "")
        if mode == "flight":
            return 0.0 if any((other, city) in self._routes for other in others) else math.inf
        prices = [price for other in others if other != city and (price := self.road(other, city, mode)) is not None]
        return min(prices, default=math.inf)

    def _fare(self, origin: str, destination: str, date: str) -> Flight | None:
        """The cheapest flight of a day whose number every mode reads as this flight at this price."""
        if (origin, destination) not in self._routes:
            return None
        rows = self.database.flights(origin, destination, date)
        fit = [row for row in rows if self.database.flights_numbered(row.number)[0].price == row.price]
        fit = [row for row in fit if (row.origin, row.destination) == (origin, destination)]
        return min(fit, key=lambda row: (row.price, row.number), default=None)

    def _town(self, city: str) -> Town:
        lodgings = [
            Lodging(rows[0], max(row.minimum_nights for row in rows), rows)
            for rows in self._hotels(city)
            if rows[0].maximum_occupancy >= 1
        ]
        restaurants = [row for row in self._first(city, "dinner", self.database.restaurants(city)) if isinstance(row, Restaurant)]
        sights = [row for row in self._first(city, "attraction", self.database.sights(city)) if isinstance(row, Sight)]
        eateries = [Eatery(row, frozenset(map(name_key, row.cuisines.split(",")))) for row in restaurants]
        return Town(
            city,
            tuple(sorted(lodgings, key=lambda item: (item.hotel.price, item.hotel.name))),
            tuple(sorted(eateries, key=lambda item: (item.restaurant.cost, item.restaurant.name))),
            tuple(row for row in sights if ";" not in row.name),
        )

    def _hotels(self, city: str) -> list[tuple[Hotel, ...]]:
        found = []
        for row in self._first(city, "accommodation", self.database.hotels(city)):
            rows = _rows(self._strict, "accommodation", row.name, city)
            found.append(tuple(item for item in rows if isinstance(item, Hotel)))
        return found

    def _first(self, city: str, field: str, rows: tuple[Row, ...]) -> list[Row]:
        """Rows that stand first under their own name in both readings."""
        return [row for row in rows if row.city == city and row.name.strip() and self._faithful(city, field, row)]

    def _faithful(self, city: str, field: str, row: Row) -> bool:
        read = [_rows(box, field, row.name, city)[:1] for box in (self._strict, self._official)]
        return all(first and first[0] is row for first in read)


def _rows(box: Sandbox, field: str, name: str, city: str) -> tuple[Row, ...]:
    slot: Slot = box.slot(field, f"{name}, {city}")
    return slot.rows


def cars(people: int, mode: str) -> int:
    """Cars that a party needs; seats of a flight are paid one by one."""
    return people if mode == "flight" else math.ceil(people / SEATS[mode])
