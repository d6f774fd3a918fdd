"""The travel world: queries, episodes, the judge and the expert over one database."""

from __future__ import annotations

import datetime
import random
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from star.errors import UsageError
from star.protocols import Env, Expert
from star.tools import Flaky, Toolbox
from star.types import Mode, Query, Score
from star.worlds.travel.catalogue import Catalogue
from star.worlds.travel.checks import judge
from star.worlds.travel.database import Database
from star.worlds.travel.episode import Episode
from star.worlds.travel.exact import certify, ordinary
from star.worlds.travel.expert import Manner, expert
from star.worlds.travel.facts import Trip
from star.worlds.travel.generate import Size, generate
from star.worlds.travel.phrasing import phrase
from star.worlds.travel.plan import read_plan
from star.worlds.travel.route import LONGEST_CITY_TRIP
from star.worlds.travel.sampler import SEASON, SPLITS, sample
from star.worlds.travel.solver import solve
from star.worlds.travel.tools import toolbox
from star.worlds.travel.witness import Witness
from star.worlds.travel.wording import word


@dataclass
class TravelWorld:
    """Settings of the travel world. Without `database` it is the embedded one, generated from `seed`."""

    _: KW_ONLY
    database: str | None = None
    """A built store, or a directory with the published CSV files."""
    size: dict[str, Any] = field(default_factory=dict)
    """Fields of `generate.Size` for the embedded world."""
    days: tuple[int, ...] = (3, 5, 7)
    """Lengths of the sampled trips."""
    mix: tuple[float, ...] = (4, 3, 3)
    """Weights of easy, medium and hard queries."""
    varied_thoughts: bool = True
    """Whether the expert words its thoughts in more than one way."""
    varied_order: bool = False
    """Whether it looks for hotels, restaurants and attractions in any order."""
    mistakes: float = 0.0
    """Share of its calls that go wrong at first, so that the trajectories show how errors are mended."""
    phrasing: Literal["plain", "varied"] = "plain"
    """Wording of the queries: a few forms that a tiny model can learn, or many."""
    tool_failure_rate: float = 0.0
    """Share of tool calls that fail on purpose."""
    tools_off: bool = False
    """Whether every tool only says that it is switched off."""
    seed: int = 0

    def __post_init__(self) -> None:
        self.days, self.mix = tuple(self.days), tuple(self.mix)
        if not set(self.days) <= {3, 5, 7} or not self.days:
            raise UsageError(f"world.days: {list(self.days)}", "Trips last 3, 5 or 7 days")
        if len(self.mix) != 3 or min(self.mix) < 0 or sum(self.mix) <= 0:
            raise UsageError(f"world.mix: {list(self.mix)}", "Give three weights, for easy, medium and hard")
        if not 0 <= self.tool_failure_rate < 1:
            raise UsageError(f"world.tool_failure_rate: {self.tool_failure_rate}", "Give a share between 0 and 1")
        if not 0 <= self.mistakes < 1:
            raise UsageError(f"world.mistakes: {self.mistakes}", "Give a share between 0 and 1")
        if self.database and self.size:
            raise UsageError("world.size has no effect with world.database", "Give one of the two")

    @cached_property
    def tables(self) -> Database:
        if self.database:
            return Database.open(Path(self.database))
        try:
            return Database(generate(self._size, self.seed))
        except ValueError as error:
            raise UsageError(f"world.size: {error}", "Choose another size") from None

    @cached_property
    def _size(self) -> Size:
        try:
            return Size(**self.size)
        except (TypeError, ValueError) as error:
            raise UsageError(f"world.size: {error}", f"The settings are {', '.join(Size.__slots__)}") from None

    @property
    def _season(self) -> tuple[datetime.date, int]:
        """First day and number of days in which trips take place."""
        if self.database:
            return SEASON
        season = datetime.date.fromisoformat(f"{self._size.month}-01"), self._size.season
        if season[1] < max(self.days):
            raise UsageError(f"world.size: season: {season[1]} days hold no trip of {max(self.days)}", "Lengthen the season")
        return season

    @cached_property
    def catalogue(self) -> Catalogue:
        return Catalogue(self.tables)

    @cached_property
    def tools(self) -> Toolbox:
        return toolbox(self.tables)

    def queries(self, split: str, count: int, seed: int) -> list[Query]:
        """Sample a split. A longer list starts with the shorter one; splits share no trip."""
        if split not in SPLITS:
            raise UsageError(f"unknown split {split!r}", f"The splits are {', '.join(SPLITS)}")
        seen: set[str] = set()
        return [self._query(split, index, seed, seen) for index in range(count)]

    def _query(self, split: str, index: int, seed: int, seen: set[str]) -> Query:
        rng = random.Random(f"{seed}/{split}/{index}")
        trip = sample(self.tables, split, rng, self.days, self.mix, seen, self._season).trip
        text = (word if self.phrasing == "varied" else phrase)(trip, rng)
        return Query(f"{split}-{index:05d}", text, trip.facts(), trip.level, trip.days, split)

    def open(self, query: Query, key: str) -> Env:
        return Episode(query.text, self.tools, Flaky(self.tool_failure_rate, self.seed), key, self.tools_off)

    def score(self, query: Query, answer: str | None, mode: Mode = "strict") -> Score:
        return judge(query.facts, answer, self.tables, mode, query.id)

    def plan(self, answer: str | None) -> list[dict[str, Any]] | None:
        days, _ = read_plan(answer)
        return days and [dict(day) for day in days]

    def expert(self, query: Query) -> Expert:
        trip = Trip.of(query.facts)
        # A short trip has one order of cities, for which the plain solver is quicker than a catalogue is made.
        plain = solve(trip, self.tables) if trip.days <= LONGEST_CITY_TRIP else ordinary(trip, self.catalogue)
        solution = plain or self._certified(trip)
        if solution is None:
            raise UsageError(f"query {query.id}: no plan exists within its budget", "Sample queries from this world")
        manner = Manner(self.varied_thoughts, self.varied_order, self.mistakes)
        return expert(solution, random.Random(f"expert/{query.id}/{query.text}"), manner)

    def _certified(self, trip: Trip) -> Witness | None:
        """The cheapest plan there is, for a trip that no ordinary plan fits."""
        proof = certify(trip, self.catalogue)
        return proof.plan if proof and (trip.budget is None or proof.cheapest <= trip.budget) else None

    def summary(self) -> dict[str, Any]:
        """What the world is made of, for the record."""
        tables, cities = self.tables, sorted(self.tables.city_names)
        counts = {
            name: sum(len(rows(city)) for city in cities)
            for name, rows in (
                ("hotels", tables.hotels),
                ("restaurants", tables.restaurants),
                ("sights", tables.sights),
            )
        }
        return {"database": self.database or "embedded", "seed": self.seed, "cities": cities, **counts}

    def names(self) -> list[str]:
        """All proper names and category values of the database, for a vocabulary that can copy them."""
        tables, found = self.tables, set[str]()
        for city in tables.city_names:
            found.update({city, tables.state_of(city) or city})
            found.update(row.name for rows in (tables.hotels, tables.restaurants, tables.sights) for row in rows(city))
            found.update(kind for row in tables.restaurants(city) for kind in row.cuisines.split(", "))
            found.update(kind for row in tables.hotels(city) for kind in (row.room_type, *row.house_rules.split(" & ")))
        return sorted(found)
