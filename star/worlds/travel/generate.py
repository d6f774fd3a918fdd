"""The embedded world: a small travel database of the published schema, made from a seed.

Cities, states and coordinates are real; venues, prices and timetables are invented. Distances follow geography: great-circle
length times 1.2 for roads, 90 km/h on average.
"""

from __future__ import annotations

import calendar
import datetime
import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from star.worlds.travel import places
from star.worlds.travel.tables import Distance, Flight, Hotel, Restaurant, Sight, Tables

ROAD_FACTOR = 1.2
ROAD_SPEED = 90.0
"""Kilometres an hour."""
AIR_SPEED = 750.0


@dataclass(frozen=True, slots=True)
class Size:
    """How large an embedded world is. Counts of venues are per city."""

    cities: int = 8
    restaurants: int = 6
    hotels: int = 4
    sights: int = 4
    flights: int = 2
    """At most this many flights a day on one route."""
    month: str = "2022-03"
    season: int = 31
    """Days of the month, from its first, on which flights and trips take place."""
    cancelled: float = 0.12
    """Share of the dates on which a scheduled flight does not run."""

    def __post_init__(self) -> None:
        year, month = datetime.date.fromisoformat(f"{self.month}-01").timetuple()[:2]
        length = calendar.monthrange(year, month)[1]
        if not 3 <= self.season <= length:
            raise ValueError(f"a season in {self.month} lasts 3 to {length} days, not {self.season}")


def generate(size: Size, seed: int) -> Tables:
    """Build the tables; equal arguments give equal rows."""
    chosen = _cities(size.cities, random.Random(f"{seed}/cities"))
    names = _Names(random.Random(f"{seed}/names"))
    hotels: list[Hotel] = []
    restaurants: list[Restaurant] = []
    sights: list[Sight] = []
    for city, _, latitude, longitude in chosen:
        rng = random.Random(f"{seed}/venues/{city}")
        hotels += _hotels(city, size.hotels, rng, names)
        restaurants += _restaurants(city, size.restaurants, rng, names)
        sights += _sights(city, size.sights, rng, names, (latitude, longitude))
    return Tables(
        flights=tuple(_flights(chosen, size, seed)),
        hotels=tuple(hotels),
        restaurants=tuple(restaurants),
        sights=tuple(sights),
        distances=tuple(_distances(chosen)),
        states={city: state for city, state, _, _ in chosen},
    )


_City = tuple[str, str, float, float]


def _cities(count: int, rng: random.Random) -> list[_City]:
    """Whole states one after another, so that trips through several cities of one state exist."""
    available = sum(len(cities) for cities in places.CITIES.values())
    if not 2 <= count <= available:
        raise ValueError(f"an embedded world has 2 to {available} cities, not {count}")
    states = sorted(places.CITIES)
    rng.shuffle(states)
    rows = [(name, state, lat, lon) for state in states for name, lat, lon in places.CITIES[state]]
    return rows[:count]


class _Names:
    """Two-word venue names, each used once; a third word keeps them apart when the pairs run out."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._used: set[str] = set()

    def draw(self, nouns: tuple[str, ...]) -> str:
        for attempt in range(10_000):
            words = [self._rng.choice(places.FIRST)]
            if attempt >= 50:
                words.append(self._rng.choice(places.FIRST))
            words.append(self._rng.choice(nouns))
            name = " ".join(words)
            if name not in self._used and len(set(words)) == len(words):
                self._used.add(name)
                return name
        raise ValueError("no venue names left: make the embedded world smaller")


def _hotels(city: str, count: int, rng: random.Random, names: _Names) -> Iterator[Hotel]:
    for index in range(count):
        # The first hotel of a city takes everybody for any stay, so that every constraint can be met somewhere in the world.
        rules = [] if index == 0 else rng.sample(places.HOUSE_RULES, rng.choice((0, 1, 1, 2)))
        room = places.ROOM_TYPES[0] if index == 0 else rng.choices(places.ROOM_TYPES, (3, 4, 2))[0]
        yield Hotel(
            name=names.draw(places.HOTEL),
            room_type=room,
            price=float(rng.randrange(60, 400) + (120 if index == 0 else 0)),
            minimum_nights=float(1 if index == 0 else rng.choice((1, 1, 2, 2, 3))),
            rating=float(rng.randint(1, 5)),
            house_rules=" & ".join(sorted(rules)) or "No special rules",
            maximum_occupancy=rng.randint(1, 4),
            city=city,
        )


def _restaurants(city: str, count: int, rng: random.Random, names: _Names) -> Iterator[Restaurant]:
    for _ in range(count):
        cuisines = rng.sample(places.CUISINES, rng.choice((1, 1, 2))) + rng.sample(places.EXTRA_CUISINES, rng.choice((0, 1)))
        yield Restaurant(
            name=names.draw(places.RESTAURANT),
            city=city,
            cuisines=", ".join(cuisines),
            cost=float(rng.randrange(10, 100)),
            rating=round(rng.uniform(2.0, 5.0), 1),
        )


def _sights(city: str, count: int, rng: random.Random, names: _Names, at: tuple[float, float]) -> Iterator[Sight]:
    for _ in range(count):
        yield Sight(
            name=names.draw(places.SIGHT),
            latitude=round(at[0] + rng.uniform(-0.1, 0.1), 5),
            longitude=round(at[1] + rng.uniform(-0.1, 0.1), 5),
            address="Main Street",
            phone="unlisted",
            website="https://sights.example",
            city=city,
        )


def kilometres(a: tuple[float, float], b: tuple[float, float]) -> float:
    """Great-circle distance of two (latitude, longitude) pairs in degrees."""
    phi, psi = math.radians(a[0]), math.radians(b[0])
    half = math.sin((psi - phi) / 2) ** 2
    half += math.cos(phi) * math.cos(psi) * math.sin(math.radians(b[1] - a[1]) / 2) ** 2
    return 2 * 6371.0 * math.asin(math.sqrt(half))


def _duration(minutes: int) -> str:
    days, hours, rest = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} day{'s' * (days > 1)} {hours} hour{'s' * (hours != 1)}"
    return (f"{hours} hour{'s' * (hours != 1)} " if hours else "") + f"{rest} min{'s' * (rest != 1)}"


def _distances(cities: list[_City]) -> Iterator[Distance]:
    for a in cities:
        for b in cities:
            if a is not b:
                road = max(1, round(kilometres(a[2:], b[2:]) * ROAD_FACTOR))
                yield Distance(a[0], b[0], _duration(max(1, round(road / ROAD_SPEED * 60))), f"{road:,} km")


def _flights(cities: list[_City], size: Size, seed: int) -> Iterator[Flight]:
    routes = [(a, b) for a in cities for b in cities if a is not b]
    most = len(routes) * size.flights
    digits = 3 if most <= 900 else 7
    numbers = random.Random(f"{seed}/numbers").sample(range(10 ** (digits - 1), 10**digits), most)
    for index, (a, b) in enumerate(routes):
        own = [f"F{number}" for number in numbers[index * size.flights : (index + 1) * size.flights]]
        yield from _route(a, b, own, size, random.Random(f"{seed}/flights/{a[0]}/{b[0]}"))


def _route(a: _City, b: _City, numbers: list[str], size: Size, rng: random.Random) -> Iterator[Flight]:
    """The timetable of one direction: the same flights every day, some of them cancelled on some days."""
    air = kilometres(a[2:], b[2:])
    minutes = 30 + round(air / AIR_SPEED * 60)
    elapsed = f"{minutes // 60} hours {minutes % 60} minutes"
    for number in numbers[: rng.randint(1, size.flights)]:
        leave = rng.randrange(6 * 60, 21 * 60, 5)
        price, times = float(40 + round(air * rng.uniform(0.08, 0.2))), (_clock(leave), _clock((leave + minutes) % 1440))
        dates = [f"{size.month}-{day:02d}" for day in range(1, size.season + 1) if rng.random() >= size.cancelled]
        yield from (Flight(number, price, *times, elapsed, date, a[0], b[0], float(round(air))) for date in dates)


def _clock(minutes: int) -> str:
    return f"{minutes // 60:02d}:{minutes % 60:02d}"
