"""Certified queries: facts drawn by difficulty and length, a budget, a plan that proves them feasible, and a wording that
reads back as the same facts."""

from __future__ import annotations

import datetime
import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from star.errors import StarError
from star.types import Mode
from star.worlds.travel.catalogue import Catalogue
from star.worlds.travel.checks import judge
from star.worlds.travel.database import Database
from star.worlds.travel.exact import Certificate, certify, ordinary
from star.worlds.travel.extract import Extractor
from star.worlds.travel.facts import DIFFICULTIES, Trip
from star.worlds.travel.hard import HOUSE_RULES, ROOM_TYPES
from star.worlds.travel.places import CUISINES
from star.worlds.travel.wording import word

DRAWS = 4000
"""Draws without a new query before giving up."""
WORDINGS = 5
"""Wordings that are tried before a query is dropped."""
FLYING = 0.5
"""Share of the draws that start from a flight, as far as there are any."""
HABIT = (0.8, 1.3)
"""Budget over what a trip costs at mean prices."""
PARTY = (2, 2, 2, 2, 3, 4, 5, 6, 7, 8)
CITIES = {3: 1, 5: 2, 7: 3}
MODES: tuple[Mode, ...] = ("strict", "official")


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to draw."""

    days: Sequence[int] = (3, 5, 7)
    mix: Sequence[float] = (4, 3, 3)
    """Weights of easy, medium and hard."""
    slack: tuple[float, float] = (1.05, 8.0)
    """Least and greatest budget over the cheapest possible cost."""
    month: str = "2022-03"


@dataclass(frozen=True, slots=True)
class Row:
    """A certified query as it is written down; `star score` judges its plan against its facts."""

    id: str
    query: dict[str, Any]
    plan: list[dict[str, object]]
    cost: int
    """US dollars for the plan."""
    cheapest: int
    """US dollars for the cheapest plan there is."""
    slack: float
    """Budget over `cheapest`."""


@dataclass
class Sampler:
    """Draws queries. Query i depends on (seed, i) and, for being new, on those before it and on what is excluded."""

    database: Database
    wanted: Wanted
    seed: int
    excluded: frozenset[str] = frozenset()
    """Keys of trips that must not be drawn."""
    counts: Counter[str] = field(default_factory=Counter)
    """Why draws were dropped or repaired."""
    _seen: set[str] = field(default_factory=set)

    def rows(self) -> Iterator[Row]:
        """Row after row, without end."""
        return map(self._row, itertools.count())

    def _row(self, index: int) -> Row:
        rng = random.Random(f"{self.seed}/certified/{index}")
        days, level = rng.choice(list(self.wanted.days)), rng.choices(DIFFICULTIES, self.wanted.mix)[0]
        for _ in range(DRAWS):
            row, reason = self._attempt(index, rng, days, level)
            if row is not None:
                return row
            self.counts[reason] += 1
        fix = "Ask for fewer, widen --mix or --slack, exclude less, or use a larger world"
        raise StarError(f"no new query in {DRAWS} draws, after {len(self._seen)} queries", fix)

    def _attempt(self, index: int, rng: random.Random, days: int, level: str) -> tuple[Row | None, str]:
        """One draw: a row, or why it was dropped."""
        trip = self._places.draw(self.wanted.month, rng, days, level)
        if trip is None:
            return None, "no destination of that size"
        key = key_of(trip)
        if key in self._seen:
            return None, "duplicate"
        if key in self.excluded:
            return None, "in a file to be disjoint from"
        proof = certify(trip, self._places.catalogue)
        if proof is None:
            return None, self._why(trip)
        trip = replace(trip, budget=self._budget(proof, rng))
        plan = ordinary(trip, self._places.catalogue) or replace(proof.plan, trip=trip)
        if not all(judge(trip.facts(), plan.plan(), self.database, mode).success for mode in MODES):
            return None, "refused by the judge"
        text = self._text(trip, rng)
        if text is None:
            return None, "wording does not read back"
        self._seen.add(key)
        slack = round((trip.budget or 0) / proof.cheapest, 4)
        return Row(
            f"q{self.seed}-{index:06d}", {"query": text, **trip.facts()}, plan.plan(), plan.cost, int(proof.cheapest), slack
        ), ""

    @cached_property
    def _places(self) -> Places:
        return Places(self.database)

    def _why(self, trip: Trip) -> str:
        """The wish without which the trip would have a plan."""
        looser = {
            "no hotel with this rule or room": replace(trip, house_rule=None, room_type=None),
            "cuisines are not served": replace(trip, cuisine=()),
            "no transport but the unwanted": replace(trip, transportation=None),
        }
        free = (reason for reason, other in looser.items() if other != trip and certify(other, self._places.catalogue))
        return next(free, "no way, stay or food whatever the wishes")

    def _budget(self, proof: Certificate, rng: random.Random) -> int:
        """What such a trip costs at mean prices, give or take; repaired if that is not within the wanted slack."""
        low, high = (bound * proof.cheapest for bound in self.wanted.slack)
        usual = round(self._places.usual_cost(proof) * rng.uniform(*HABIT) / 100) * 100
        if low <= usual <= high:
            return usual
        self.counts["budget repaired"] += 1
        drawn = rng.uniform(low, min(high, 2 * low))
        rounded = (round(drawn / step) * step for step in (100, 10))
        return next((money for money in rounded if low <= money <= high), max(math.ceil(low), math.floor(drawn)))

    def _text(self, trip: Trip, rng: random.Random) -> str | None:
        texts = (word(trip, rng) for _ in range(WORDINGS))
        return next((text for text in texts if self._places.reader.says(text, trip)), None)


def key_of(trip: Trip) -> str:
    """Identity of a request apart from its budget and the order of its cuisines."""
    return replace(trip, cuisine=tuple(sorted(trip.cuisine))).key


@dataclass(slots=True)
class Places:
    """Where trips of a database can go."""

    database: Database
    catalogue: Catalogue = field(init=False)
    reader: Extractor = field(init=False)
    cities: list[str] = field(init=False)
    """Cities with somewhere to sleep, eat and look at."""
    routes: list[tuple[str, str]] = field(init=False)
    """Pairs of these cities with a flight on some day."""
    _served: dict[str, set[str]] = field(init=False)
    """State -> which of these cities it has."""

    def __post_init__(self) -> None:
        database = self.database
        self.catalogue, self.reader = Catalogue(database), Extractor(database.states)
        towns = (self.catalogue.town(city) for city in sorted(database.states))
        self.cities = [town.name for town in towns if town.lodgings and town.eateries and town.sights]
        known = set(self.cities)
        self._served = {state: known.intersection(database.cities(state)) for state in {*database.states.values()}}
        self.routes = sorted(route for route in database.flight_routes() if known.issuperset(route))

    def draw(self, month: str, rng: random.Random, days: int, level: str) -> Trip | None:
        """The facts of a trip without a budget; None if the drawn state has too few cities."""
        flies = bool(self.routes) and rng.random() < FLYING
        org, dest = rng.choice(self.routes) if flies else rng.sample(self.cities, 2)
        start = self._start(month, rng, days, (org, dest) if flies else None)
        if days > 3:
            state = self.database.state_of(dest)
            if state is None or state == self.database.state_of(org) or len(self._served[state]) < CITIES[days]:
                return None
            dest = state
        wishes = _wishes(rng, level)
        if flies and "transportation" in wishes:
            wishes["transportation"] = "no self-driving"
        return Trip(
            org, dest, days, CITIES[days], tuple((start + datetime.timedelta(day)).isoformat() for day in range(days)),
            1 if level == "easy" else rng.choice(PARTY), wishes.get("house rule"), tuple(wishes.get("cuisine", ())),
            wishes.get("room type"), wishes.get("transportation"), None, level,
        )  # fmt: skip

    def _start(self, month: str, rng: random.Random, days: int, route: tuple[str, str] | None) -> datetime.date:
        """A first day within the month; for a flight one on which it goes, if there is one."""
        first = datetime.date.fromisoformat(f"{month}-01")
        after = (first + datetime.timedelta(31)).replace(day=1)
        room = (after - first).days - days + 1
        if route is None:
            return first + datetime.timedelta(rng.randrange(room))
        starts = [first + datetime.timedelta(day) for day in rng.sample(range(room), room)]
        return next((day for day in starts if self.catalogue.fare(*route, day.isoformat())), starts[0])

    def usual_cost(self, proof: Certificate) -> float:
        """US dollars for the trip at the mean prices of the cities of its cheapest plan."""
        trip, plan = proof.trip, proof.plan
        total = float(sum(leg.cost for leg in plan.legs))
        for stay in plan.stays:
            town = self.catalogue.town(stay.city)
            fit = [i for i in town.lodgings if i.suits(trip.house_rule, trip.room_type) and i.nights <= stay.nights]
            total += stay.nights * sum(i.price(trip.people) for i in fit) / len(fit)
            meals = 3 * stay.nights * sum(i.restaurant.cost for i in town.eateries) / len(town.eateries)
            total += meals * trip.people
        return total


def _wishes(rng: random.Random, level: str) -> dict[str, Any]:
    """No wish, one, or three of four kinds, as TravelPlanner's easy, medium and hard; two cuisines, or four if hard."""
    drawn: dict[str, Any] = {
        "house rule": rng.choice(list(HOUSE_RULES)),
        "cuisine": rng.sample(CUISINES, 4 if level == "hard" else 2),
        "room type": rng.choice(list(ROOM_TYPES)),
        "transportation": rng.choice(("no flight", "no self-driving")),
    }
    kinds = list(drawn) if level == "hard" else list(drawn)[:3]
    chosen = rng.sample(kinds, {"easy": 0, "medium": 1, "hard": 3}[level])
    return {name: drawn[name] for name in chosen}
