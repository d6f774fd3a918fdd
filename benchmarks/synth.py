"""Queries a second: drawing the facts of trips, and certifying them with a plan, a wording and its round trip.

    python benchmarks/synth.py [DATA] [--seconds 5] [--json]

DATA is a folder of TravelPlanner tables or a built store; without it, an embedded world of 40 cities. The reference does in the
same process what the published synthesis does for a draw: look the route, the hotels, the restaurants and the flights of
both days up in data frames, and compare a budget with mean prices; it proves nothing. Seconds are those of the processor.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas

from star.worlds.travel.certified import Places, Sampler, Wanted
from star.worlds.travel.database import Database
from star.worlds.travel.facts import DIFFICULTIES, Trip
from star.worlds.travel.generate import Size, generate
from star.worlds.travel.tables import Flight

DAYS, MIX = (3, 5, 7), (4, 3, 3)


def rate(once: Callable[[], object], seconds: float) -> float:
    """How often a second something can be done."""
    once()
    started, count = time.process_time(), 0
    while time.process_time() - started < seconds:
        once()
        count += 1
    return count / (time.process_time() - started)


class Frames:
    """The tables as data frames."""

    def __init__(self, database: Database, places: Places) -> None:
        cities = sorted(database.city_names)
        routes = places.routes
        days = [f"2022-03-{day:02d}" for day in range(1, 32)]
        flights = [f for route in routes for day in days for f in database.flights(*route, day)]
        self.flights = pandas.DataFrame(flights, columns=list(Flight._fields))
        self.hotels = self._frame(database.hotels, cities)
        self.restaurants = self._frame(database.restaurants, cities)
        self.places = places

    def _frame(self, of: Callable[[str], tuple[Any, ...]], cities: list[str]) -> pandas.DataFrame:
        return pandas.DataFrame([dataclasses.asdict(row) for city in cities for row in of(city)])

    def draw(self, rng: random.Random) -> bool:
        """One draw and its check on mean prices."""
        trip = self.places.draw("2022-03", rng, rng.choice(DAYS), rng.choices(DIFFICULTIES, MIX)[0])
        if trip is None:
            return False
        total = 0.0
        for (origin, destination), day in (((trip.org, trip.dest), trip.date[0]), ((trip.dest, trip.org), trip.date[-1])):
            found = self.flights[self.flights["origin"] == origin]
            found = found[found["destination"] == destination]
            found = found[found["date"] == day]
            total += float(found["price"].mean()) * trip.people if len(found) else 0.0
        hotels = self.hotels[self.hotels["city"] == trip.dest]
        if trip.room_type is not None:
            hotels = hotels[hotels["room_type"].str.contains(trip.room_type.split()[0], case=False)]
        restaurants = self.restaurants[self.restaurants["city"] == trip.dest]
        for wish in trip.cuisine:
            restaurants[restaurants["cuisines"].str.contains(wish)]
        total += float(hotels["price"].mean()) * trip.days if len(hotels) else 0.0
        total += float(restaurants["cost"].mean()) * 3 * trip.days * trip.people if len(restaurants) else 0.0
        return total > 0


def measure(database: Database, seconds: float) -> dict[str, Any]:
    places = Places(database)
    rng, other = random.Random(0), random.Random(0)
    frames = Frames(database, places)
    reference = rate(lambda: frames.draw(other), seconds)

    def sampled() -> Trip | None:
        return places.draw("2022-03", rng, rng.choice(DAYS), rng.choices(DIFFICULTIES, MIX)[0])

    drawing = rate(sampled, seconds)
    sampler = Sampler(database, Wanted(DAYS, MIX), 0)
    rows = sampler.rows()
    certified = rate(lambda: next(rows), seconds)
    return {
        "drawn_per_second": drawing,
        "certified_per_second": certified,
        "certificate_ms": 1e3 / certified,
        "dropped": dict(sampler.counts.most_common()),
        "reference_per_second": reference,
        "drawing_over_reference": drawing / reference,
        "certified_over_reference": certified / reference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    database = Database.open(options.data) if options.data else Database(generate(Size(cities=40), 0))
    result = measure(database, options.seconds)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:26} {format(value, ',.4g') if isinstance(value, float) else value}")


if __name__ == "__main__":
    main()
