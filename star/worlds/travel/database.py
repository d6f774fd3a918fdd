"""Typed look-ups over the travel database, in memory or on disk, for the tools, the judge and the expert alike."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from star.errors import DataError
from star.worlds.travel import store
from star.worlds.travel.csv_tables import FILES, find, read_flights, read_places
from star.worlds.travel.published import STORE
from star.worlds.travel.store import Store, build
from star.worlds.travel.tables import Distance, Flight, Hotel, Restaurant, Sight, Tables
from star.worlds.travel.text import city_key, name_key, plain_key

__all__ = ["Database", "build", "city_key", "name_key"]

Venue = TypeVar("Venue", bound="Hotel | Restaurant | Sight")
_BETWEEN = "\0"
"""Between two names; in none of them."""
LARGE_BYTES = 64 * 2**20
log = logging.getLogger(__name__)


class Flights(Protocol):
    """Where flights are kept. Cities are given as normalised keys."""

    def route(self, origin: str, destination: str, date: str) -> Sequence[Flight]: ...

    def numbered(self, number: str) -> tuple[Flight, ...]: ...

    def flight_cities(self) -> set[str]: ...

    def routes(self) -> set[tuple[str, str]]: ...


class MemoryFlights:
    """Flights in memory, indexed by route and date and by number."""

    def __init__(self, flights: Iterable[Flight]) -> None:
        routes: dict[tuple[str, str, str], list[Flight]] = {}
        numbers: dict[str, list[Flight]] = {}
        self._cities: set[str] = set()
        self._pairs: set[tuple[str, str]] = set()
        for row in flights:
            routes.setdefault((city_key(row.origin), city_key(row.destination), row.date), []).append(row)
            numbers.setdefault(row.number, []).append(row)
            self._cities.update((row.origin, row.destination))
            self._pairs.add((row.origin, row.destination))
        self._routes = {key: tuple(rows) for key, rows in routes.items()}
        self._numbers = {key: tuple(rows) for key, rows in numbers.items()}

    def route(self, origin: str, destination: str, date: str) -> tuple[Flight, ...]:
        return self._routes.get((origin, destination, date), ())

    def numbered(self, number: str) -> tuple[Flight, ...]:
        return self._numbers.get(number, ())

    def flight_cities(self) -> set[str]:
        return set(self._cities)

    def routes(self) -> set[tuple[str, str]]:
        return set(self._pairs)


class Listing(Generic[Venue]):
    """The rows of one table by city, and within a city by name."""

    def __init__(self, rows: Iterable[Venue]) -> None:
        cities: dict[str, list[Venue]] = {}
        spelled: dict[str, list[Venue]] = {}
        self._named: dict[str, dict[str, tuple[Venue, ...]]] = {}
        for row in rows:
            key: str = city_key(row.city)
            cities.setdefault(key, []).append(row)
            spelled.setdefault(row.city, []).append(row)
            named: dict[str, tuple[Venue, ...]] = self._named.setdefault(key, {})
            name: str = plain_key(row.name)
            named[name] = (*named.get(name, ()), row)
        self._cities: dict[str, tuple[Venue, ...]] = {key: tuple(group) for key, group in cities.items()}
        self._names = {city: _Names(group) for city, group in spelled.items()}

    def of(self, key: str) -> tuple[Venue, ...]:
        """Rows of a city, by its normalised key."""
        return self._cities.get(key, ())

    def named(self, key: str, name: str) -> tuple[Venue, ...]:
        """Rows of exactly this city and name, both normalised."""
        return self._named.get(key, {}).get(name, ())

    def holding(self, city: str, part: str) -> tuple[Venue, ...]:
        """Rows of a city, written exactly so, whose name holds a text, in table order."""
        names = self._names.get(city)
        return () if names is None or _BETWEEN in part else names.holding(part)


class _Names(Generic[Venue]):
    """The names of some rows as one text, which is searched much faster than one after another."""

    def __init__(self, rows: list[Venue]) -> None:
        self._rows = rows
        self._text = _BETWEEN.join(row.name for row in rows)
        self._starts = list(accumulate((len(row.name) + 1 for row in rows[:-1]), initial=0))

    def holding(self, part: str) -> tuple[Venue, ...]:
        found: list[Venue] = []
        at = self._text.find(part)
        while at >= 0:
            following = bisect_right(self._starts, at)
            found.append(self._rows[following - 1])
            at = self._text.find(part, self._starts[following]) if following < len(self._starts) else -1
        return tuple(found)


class Database:
    """The whole travel database behind typed look-ups.

    A city is found whatever its case, its white space and a state in parentheses after it; rows come in table order.
    Nothing is changed after construction, so one object may serve many threads; a stored database may also be shared
    with forked and spawned processes.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables: Tables | None = tables
        self._flights: Flights = MemoryFlights(tables.flights)
        self._store: Store | None = None

    @classmethod
    def open(cls, path: Path) -> Database:
        """A store written by `build`, a folder of the published CSV files in either layout, or a folder that holds
        one of these, as `star data` leaves it."""
        if path.is_dir() and (path / STORE).is_file():
            return cls.open(path / STORE)
        if path.is_dir():
            inner = path / "database"
            known = any(find(path, *names) for names in FILES.values())
            return cls._from_folder(inner if inner.is_dir() and not known else path)
        if not path.exists():
            raise DataError(f"{path}: no such file or folder", "Check the path of the travel database")
        if not store.is_store(path):
            raise DataError(f"{path}:1: not a travel store", "Name a store made by `build` or a folder of CSV files")
        database = cls.__new__(cls)
        database._store = Store(path)
        database._flights = database._store
        database._tables = None
        return database

    @classmethod
    def _from_folder(cls, folder: Path) -> Database:
        places = read_places(folder)
        database = cls(places)
        flights = list(read_flights(folder))
        if len(flights) * 256 > LARGE_BYTES:
            log.warning("%s: %d flights are held in memory; `build` makes a store that is not", folder, len(flights))
        database._flights = MemoryFlights(flights)
        return database

    def __reduce__(self) -> tuple[Callable[..., Database], tuple[Any, ...]]:
        if self._store is not None:
            return Database.open, (self._store.path,)
        return _restore, (self._tables, self._flights)

    def _rows(self, table: str) -> tuple[Any, ...]:
        if self._store is not None:
            return self._store.table(table)
        rows: tuple[Any, ...] = getattr(self._tables, table)
        return rows

    @cached_property
    def states(self) -> Mapping[str, str]:
        """City -> state, as published."""
        if self._store is not None:
            return self._store.states()
        return {} if self._tables is None else self._tables.states

    @cached_property
    def _state_by_key(self) -> dict[str, str]:
        return {city_key(city): state for city, state in self.states.items()}

    @cached_property
    def state_keys(self) -> dict[str, str]:
        """Normalised key of each city -> that of its state."""
        return {city: name_key(state) for city, state in self._state_by_key.items()}

    @cached_property
    def _cities_by_state(self) -> dict[str, tuple[str, ...]]:
        cities: dict[str, list[str]] = {}
        for city, state in self.states.items():
            cities.setdefault(name_key(state), []).append(city)
        return {state: tuple(names) for state, names in cities.items()}

    @cached_property
    def hotel_listing(self) -> Listing[Hotel]:
        return Listing(self._rows("hotels"))

    @cached_property
    def restaurant_listing(self) -> Listing[Restaurant]:
        return Listing(self._rows("restaurants"))

    @cached_property
    def sight_listing(self) -> Listing[Sight]:
        return Listing(self._rows("sights"))

    @cached_property
    def _distances(self) -> dict[tuple[str, str], Distance]:
        found: dict[tuple[str, str], Distance] = {}
        for row in self._rows("distances"):
            found.setdefault((city_key(row.origin), city_key(row.destination)), row)
        return found

    @cached_property
    def city_names(self) -> frozenset[str]:
        """Every city of the list of states; without such a list, every city that any table names."""
        if self.states:
            return frozenset(self.states)
        names = self._flights.flight_cities()
        names.update(row.city for table in ("hotels", "restaurants", "sights") for row in self._rows(table))
        names.update(city for row in self._rows("distances") for city in (row.origin, row.destination))
        return frozenset(names)

    @cached_property
    def city_keys(self) -> frozenset[str]:
        """Normalised keys of `city_names`."""
        return frozenset(city_key(name) for name in self.city_names)

    def flights(self, origin: str, destination: str, date: str) -> Sequence[Flight]:
        """Flights on a day (YYYY-MM-DD), in published order."""
        return self._flights.route(city_key(origin), city_key(destination), date)

    def flight_routes(self) -> set[tuple[str, str]]:
        """Origin and destination of every route that is flown on some day."""
        return self._flights.routes()

    def flights_numbered(self, number: str) -> tuple[Flight, ...]:
        """Flights with exactly this number, in published order."""
        return self._flights.numbered(number)

    def hotels(self, city: str) -> tuple[Hotel, ...]:
        return self.hotel_listing.of(city_key(city))

    def restaurants(self, city: str) -> tuple[Restaurant, ...]:
        return self.restaurant_listing.of(city_key(city))

    def sights(self, city: str) -> tuple[Sight, ...]:
        return self.sight_listing.of(city_key(city))

    def distance(self, origin: str, destination: str) -> Distance | None:
        """The road from one city to another; of several published rows the first."""
        return self._distances.get((city_key(origin), city_key(destination)))

    def cities(self, state: str) -> tuple[str, ...]:
        """Cities of a state, in published order."""
        return self._cities_by_state.get(name_key(state), ())

    def state_of(self, city: str) -> str | None:
        return self._state_by_key.get(city_key(city))


def _restore(tables: Tables, flights: Flights) -> Database:
    database = Database(tables)
    database._flights = flights
    return database
