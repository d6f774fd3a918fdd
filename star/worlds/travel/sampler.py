"""Element sampling: draw the facts of a trip by difficulty and length, keep what a plan exists for, set the budget."""

from __future__ import annotations

import dataclasses
import datetime
import hashlib
import math
import random
from collections.abc import Sequence

from star.errors import StarError
from star.worlds.travel.database import Database
from star.worlds.travel.facts import DIFFICULTIES, Trip
from star.worlds.travel.places import CUISINES
from star.worlds.travel.solver import FORBIDDEN, ROOMS, Solution, solve

SPLITS = {"train": (0.0, 0.5), "rl": (0.5, 0.75), "dev": (0.75, 0.8), "validation": (0.8, 1.0)}
"""Split -> its share of the space of trips. A trip belongs to the split that its hash falls in, so splits never overlap."""
BUDGET = (1.1, 1.6)
"""Budget over the cost of the witness plan."""
CITIES = {3: 1, 5: 2, 7: 3}
DRAWS = 2000
"""Infeasible or foreign draws in a row before giving up."""


def split_of(trip: Trip) -> str:
    share = int.from_bytes(hashlib.sha256(trip.key.encode()).digest()[:8], "big") / 2**64
    return next(name for name, (low, high) in SPLITS.items() if low <= share < high)


SEASON = (datetime.date(2022, 3, 1), 31)
"""First day and number of days in which trips take place, as in TravelPlanner."""


def sample(
    database: Database,
    split: str,
    rng: random.Random,
    days: Sequence[int],
    mix: Sequence[float],
    seen: set[str],
    season: tuple[datetime.date, int] = SEASON,
) -> Solution:
    """Draw one new trip of a split, with its witness plan; add its key to `seen`."""
    cities = _usable(database)
    for _ in range(DRAWS):
        trip = _draw(database, cities, rng, rng.choice(list(days)), rng.choices(DIFFICULTIES, mix)[0], season)
        if trip is None or trip.key in seen or split_of(trip) != split:
            continue
        witness = solve(trip, database)
        if witness is not None:
            seen.add(trip.key)
            budget = math.ceil(witness.cost * rng.uniform(*BUDGET) / 50) * 50
            return dataclasses.replace(witness, trip=dataclasses.replace(trip, budget=budget))
    raise StarError(
        f"no new feasible {split} query in {DRAWS} draws (after {len(seen)} queries)",
        "Make the world larger (world.cities, world.restaurants, world.hotels) or ask for fewer queries",
    )


def _usable(database: Database) -> list[str]:
    """Cities with somewhere to sleep, eat and look at."""
    return [c for c in sorted(database.city_names) if database.hotels(c) and database.restaurants(c) and database.sights(c)]


def _draw(
    database: Database, cities: list[str], rng: random.Random, days: int, level: str, season: tuple[datetime.date, int]
) -> Trip | None:
    org, dest = rng.sample(cities, 2)
    if days > 3:
        state = database.state_of(dest)
        if state is None or state == database.state_of(org):
            return None
        reach = [city for city in database.cities(state) if city in set(cities)]
        if len(reach) < CITIES[days]:
            return None
        dest = state
    first, length = season
    start = first + datetime.timedelta(days=rng.randrange(length - days + 1))
    wishes = _wishes(rng, level)
    return Trip(
        org=org,
        dest=dest,
        days=days,
        cities=CITIES[days],
        date=tuple((start + datetime.timedelta(days=day)).isoformat() for day in range(days)),
        people=1 if level == "easy" else rng.randint(2, 6),
        house_rule=rng.choice(list(FORBIDDEN)) if "house rule" in wishes else None,
        cuisine=tuple(sorted(rng.sample(CUISINES, rng.choice((1, 1, 2))))) if "cuisine" in wishes else (),
        room_type=rng.choice(list(ROOMS)) if "room type" in wishes else None,
        transportation=rng.choice(("no flight", "no self-driving")) if "transportation" in wishes else None,
        budget=None,
        level=level,
    )


def _wishes(rng: random.Random, level: str) -> set[str]:
    """No wish, one, or three of four, as TravelPlanner's easy, medium and hard."""
    kinds = ["house rule", "cuisine", "room type"]
    if level == "easy":
        return set()
    return {rng.choice(kinds)} if level == "medium" else set(rng.sample([*kinds, "transportation"], 3))
