"""The travel database as one compact, read-only SQLite file that many processes can share.

Flights stay on disk, indexed by (origin, destination, date) and by number. Cities, dates, times and durations repeat a
lot, so a flight holds small integers that point into the table `texts`. The other tables are kept as plain rows and are
read whole, once, when they are first asked for.
"""

from __future__ import annotations

import dataclasses
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from star.errors import DataError
from star.worlds.travel.csv_tables import read_flights, read_places
from star.worlds.travel.tables import Distance, Flight, Hotel, Restaurant, Sight, Tables
from star.worlds.travel.text import city_key

FORMAT = "star-travel-1"
MAGIC = b"SQLite format 3\x00"

_SCHEMA = """
create table meta (format text not null);
create table hotels (name, room_type, price, minimum_nights, rating, house_rules, maximum_occupancy, city);
create table restaurants (name, city, cuisines, cost, rating);
create table sights (name, latitude, longitude, address, phone, website, city);
create table distances (origin, destination, duration, distance);
create table texts (id integer primary key, text text not null);
create table states (city text not null, state text not null);
create table flights (id integer primary key, number text, price real, departure integer, arrival integer,
                      elapsed integer, date integer, origin integer, destination integer, distance real);
"""
_ROWS: dict[str, tuple[type[Any], str, str]] = {
    "hotels": (Hotel, "insert into hotels values (?, ?, ?, ?, ?, ?, ?, ?)", "select * from hotels order by rowid"),
    "restaurants": (
        Restaurant,
        "insert into restaurants values (?, ?, ?, ?, ?)",
        "select * from restaurants order by rowid",
    ),
    "sights": (Sight, "insert into sights values (?, ?, ?, ?, ?, ?, ?)", "select * from sights order by rowid"),
    "distances": (Distance, "insert into distances values (?, ?, ?, ?)", "select * from distances order by rowid"),
}
"""Small table -> record of a row, how rows are written, and how read; columns in the order of the record's fields."""

# Column 0 is the number that keeps the published order.
_ON_ROUTE = "select * from flights where origin = ? and destination = ? and date = ? order by id"
_BY_NUMBER = "select * from flights where number = ? order by id"


def is_store(path: Path) -> bool:
    """Whether the file is an SQLite database at all."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def build(source: Path, target: Path) -> None:
    """Turn a folder of published CSV files into one store. `target` appears whole, at the end, or not at all."""
    places = read_places(source)
    write(places, read_flights(source), target)


def write(places: Tables, flights: Iterable[Flight], target: Path) -> None:
    """Write the small tables of `places` and `flights` as a store, atomically."""
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    draft.unlink(missing_ok=True)
    connection = sqlite3.connect(draft)
    try:
        _fill(connection, places, flights)
        connection.close()
        with draft.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(draft, target)
    finally:
        connection.close()
        draft.unlink(missing_ok=True)


def _fill(connection: sqlite3.Connection, places: Tables, flights: Iterable[Flight]) -> None:
    for pragma in ("journal_mode = off", "synchronous = off", "locking_mode = exclusive", "cache_size = -65536"):
        connection.execute(f"pragma {pragma}")
    connection.executescript(_SCHEMA)
    connection.execute("insert into meta values (?)", (FORMAT,))
    for table, (_, insert, _) in _ROWS.items():
        connection.executemany(insert, map(dataclasses.astuple, getattr(places, table)))
    connection.executemany("insert into states values (?, ?)", places.states.items())
    texts: dict[str, int] = {}
    connection.executemany("insert into flights values (null, ?, ?, ?, ?, ?, ?, ?, ?, ?)", _packed(flights, texts))
    connection.executemany("insert into texts values (?, ?)", ((number, text) for text, number in texts.items()))
    connection.commit()
    connection.execute("create index flight_route on flights (origin, destination, date)")
    connection.execute("create index flight_number on flights (number)")
    connection.commit()


def _packed(flights: Iterable[Flight], texts: dict[str, int]) -> Iterator[tuple[object, ...]]:
    """Flights with each repeating text replaced by its number in `texts`, which is filled on the way."""
    for row in flights:
        repeated = (row.departure, row.arrival, row.elapsed, row.date, row.origin, row.destination)
        numbers = [texts.setdefault(text, len(texts)) for text in repeated]
        yield (row.number, row.price, *numbers, row.distance)


class Store:
    """A built store, open for reading. Safe to share between threads and across fork: each opens its own handle."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        try:
            found = self._connection.execute("select format from meta").fetchone()[0]
        except (sqlite3.Error, TypeError) as error:
            raise DataError(f"{path}:1: not a travel store ({error})", "Build it again with `build`") from None
        if found != FORMAT:
            raise DataError(f"{path}:1: a store of format {found!r}, not {FORMAT!r}", "Build it again with `build`")

    @property
    def _connection(self) -> sqlite3.Connection:
        if getattr(self._local, "process", None) != os.getpid():
            address = f"file:{quote(str(self.path.absolute()))}?mode=ro&immutable=1"
            self._local.connection = sqlite3.connect(address, uri=True)
            self._local.process = os.getpid()
        connection: sqlite3.Connection = self._local.connection
        return connection

    def table(self, name: str) -> tuple[Any, ...]:
        """All rows of a small table, in published order."""
        kind, _, select = _ROWS[name]
        return tuple(kind(*row) for row in self._connection.execute(select))

    def counts(self) -> dict[str, int]:
        """Rows of each table."""
        names = ("flights", *_ROWS, "states")
        return {name: self._connection.execute(f"select count(*) from {name}").fetchone()[0] for name in names}  # noqa: S608

    def states(self) -> dict[str, str]:
        return dict(self._connection.execute("select city, state from states order by rowid"))

    @cached_property
    def _texts(self) -> dict[int, str]:
        return dict(self._connection.execute("select id, text from texts"))

    @cached_property
    def _numbers(self) -> dict[str, tuple[int, ...]]:
        """Normalised text -> numbers of the texts that read so."""
        numbers: dict[str, tuple[int, ...]] = {}
        for number, text in self._texts.items():
            key = city_key(text)
            numbers[key] = (*numbers.get(key, ()), number)
        return numbers

    def flight_cities(self) -> set[str]:
        """Names of the cities that a flight leaves from or reaches."""
        found: set[str] = set()
        for walk in ("select distinct origin from flights", "select distinct destination from flights"):
            found.update(self._texts[number] for (number,) in self._connection.execute(walk))
        return found

    def routes(self) -> set[tuple[str, str]]:
        """Origin and destination of every route."""
        rows = self._connection.execute("select distinct origin, destination from flights")
        return {(self._texts[origin], self._texts[destination]) for origin, destination in rows}

    def route(self, origin: str, destination: str, date: str) -> tuple[Flight, ...]:
        """Flights between two cities, given as normalised keys, on a date, in published order."""
        numbers = self._numbers
        choices = [
            (start, end, day)
            for start in numbers.get(origin, ())
            for end in numbers.get(destination, ())
            for day in numbers.get(date, ())
        ]
        rows = [row for choice in choices for row in self._connection.execute(_ON_ROUTE, choice)]
        return tuple(self._flight(row) for row in rows)

    def numbered(self, number: str) -> tuple[Flight, ...]:
        rows = self._connection.execute(_BY_NUMBER, (number,))
        return tuple(self._flight(row) for row in rows)

    def _flight(self, row: tuple[Any, ...]) -> Flight:
        _, number, price, departure, arrival, elapsed, date, origin, destination, distance = row
        text = self._texts
        return Flight(
            number,
            price,
            text[departure],
            text[arrival],
            text[elapsed],
            text[date],
            text[origin],
            text[destination],
            distance,
        )
