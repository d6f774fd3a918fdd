"""The travel database as one compact, read-only SQLite file that many processes can share.

Flights stay on disk. Those of one route on one day are one row, a bucket, with their columns packed one after another: what
is asked for together lies together and is unpacked in a few calls. Cities, dates, times and durations repeat a lot, so a
bucket holds small integers that point into the table `texts`. The other tables are kept as plain rows and are read whole,
once, when they are first asked for.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sqlite3
import struct
import threading
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache, partial
from itertools import chain, groupby, repeat
from operator import itemgetter
from pathlib import Path
from typing import Any
from urllib.parse import quote

from star.errors import DataError
from star.worlds.travel.csv_tables import read_flights, read_places
from star.worlds.travel.tables import Distance, Flight, Hotel, Restaurant, Sight, Tables
from star.worlds.travel.text import city_key

FORMAT = "star-travel-2"
MAGIC = b"SQLite format 3\x00"
REMEMBERED = 1024
"""Answers of each kind that an open store keeps in memory."""

_SCHEMA = """
create table meta (format text not null);
create table hotels (name, room_type, price, minimum_nights, rating, house_rules, maximum_occupancy, city);
create table restaurants (name, city, cuisines, cost, rating);
create table sights (name, latitude, longitude, address, phone, website, city);
create table distances (origin, destination, duration, distance);
create table texts (id integer primary key, text text not null);
create table states (city text not null, state text not null);
create table flights (id integer primary key, origin integer, destination integer, date integer, numbers text, packed blob);
create table flight_numbers (number text, bucket integer, position integer,
                             primary key (number, bucket, position)) without rowid;
"""
_SCRATCH = """
attach '' as scratch;
pragma scratch.journal_mode = off;
pragma scratch.synchronous = off;
create table scratch.flights (place integer primary key, origin, destination, date, number, price, distance,
                              departure, arrival, elapsed);
create table scratch.numbers (number, bucket, position);
"""
"""What is needed only while a store is built: an attached file without a name, which SQLite removes by itself."""
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

_ON_ROUTE = "select numbers, packed from flights where origin = ? and destination = ? and date = ?"
_BY_NUMBER = """select position, origin, destination, date, packed
from flight_numbers join flights on id = bucket where number = ?"""
_GROUPED = """select origin, destination, date, number, price, distance, departure, arrival, elapsed, place
from scratch.flights order by origin, destination, date, place"""
_make_flight = partial(tuple.__new__, Flight)


@lru_cache(maxsize=1024)
def _packing(count: int) -> struct.Struct:
    """How `count` flights are packed: price and distance, then departure, arrival, elapsed time and place in published order."""
    return struct.Struct(f"<{2 * count}d{4 * count}I")


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
    _write_flights(connection, flights)
    connection.commit()


def _write_flights(connection: sqlite3.Connection, flights: Iterable[Flight]) -> None:
    texts: dict[str, int] = {}
    connection.executescript(_SCRATCH)
    connection.executemany("insert into scratch.flights values (null, ?, ?, ?, ?, ?, ?, ?, ?, ?)", _pointing(flights, texts))
    connection.executemany("insert into texts values (?, ?)", ((number, text) for text, number in texts.items()))
    for bucket, (route, rows) in enumerate(groupby(connection.execute(_GROUPED), itemgetter(0, 1, 2))):
        numbers, *columns = list(zip(*rows, strict=True))[3:]
        packed = _packing(len(numbers)).pack(*chain(*columns))
        row = (bucket, *route, json.dumps(numbers, ensure_ascii=False), packed)
        connection.execute("insert into flights values (?, ?, ?, ?, ?, ?)", row)
        connection.executemany("insert into scratch.numbers values (?, ?, ?)", zip(numbers, repeat(bucket), range(len(numbers))))
    connection.execute("insert into flight_numbers select * from scratch.numbers order by number, bucket, position")
    connection.execute("create unique index flight_route on flights (origin, destination, date)")
    connection.commit()
    connection.execute("detach scratch")


def _pointing(flights: Iterable[Flight], texts: dict[str, int]) -> Iterator[tuple[object, ...]]:
    """Flights with each repeating text replaced by its number in `texts`, which is filled on the way."""
    for row in flights:
        route = [texts.setdefault(text, len(texts)) for text in (row.origin, row.destination, row.date)]
        times = [texts.setdefault(text, len(texts)) for text in (row.departure, row.arrival, row.elapsed)]
        yield (*route, row.number, row.price, row.distance, *times)


class Store:
    """A built store, open for reading. Safe to share between threads and across fork: each opens its own handle."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        # The rollouts of a group, and the judge after them, ask for the same flights again and again.
        self._routes = lru_cache(maxsize=REMEMBERED)(self._read_route)
        self._numbered = lru_cache(maxsize=REMEMBERED)(self._read_number)
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
        tables = {"flights": "flight_numbers", **{name: name for name in (*_ROWS, "states")}}
        count = "select count(*) from {}"
        return {name: self._connection.execute(count.format(table)).fetchone()[0] for name, table in tables.items()}

    def states(self) -> dict[str, str]:
        return dict(self._connection.execute("select city, state from states order by rowid"))

    @cached_property
    def _texts(self) -> list[str]:
        return [text for (text,) in self._connection.execute("select text from texts order by id")]

    @cached_property
    def _numbers(self) -> dict[str, tuple[int, ...]]:
        """Normalised text -> numbers of the texts that read so."""
        numbers: dict[str, tuple[int, ...]] = {}
        for number, text in enumerate(self._texts):
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
        return self._routes(origin, destination, date)

    def numbered(self, number: str) -> tuple[Flight, ...]:
        """Flights of this number, in published order."""
        return self._numbered(number)

    def _read_route(self, origin: str, destination: str, date: str) -> tuple[Flight, ...]:
        numbers = self._numbers
        choices = [
            (start, end, day)
            for start in numbers.get(origin, ())
            for end in numbers.get(destination, ())
            for day in numbers.get(date, ())
        ]
        if len(choices) == 1:
            row = self._connection.execute(_ON_ROUTE, choices[0]).fetchone()
            return self._bucket(*choices[0], *row)[1] if row else ()
        found = [
            pair
            for choice in choices
            for row in self._connection.execute(_ON_ROUTE, choice)
            for pair in zip(*self._bucket(*choice, *row), strict=True)
        ]
        return tuple(flight for _, flight in sorted(found, key=itemgetter(0)))

    def _read_number(self, number: str) -> tuple[Flight, ...]:
        rows = self._connection.execute(_BY_NUMBER, (number,))
        found = sorted((self._single(number, *row) for row in rows), key=itemgetter(0))
        return tuple(flight for _, flight in found)

    def _single(self, number: str, position: int, origin: int, destination: int, date: int, packed: bytes) -> tuple[int, Flight]:
        """Place in the published table, and the flight, at one position of a bucket."""
        text, values = self._texts, _packing(len(packed) // _packing(1).size).unpack(packed)
        price, distance, departure, arrival, elapsed, place = values[position :: len(values) // 6]
        flight = Flight(
            number, price, text[departure], text[arrival], text[elapsed], text[date], text[origin], text[destination], distance
        )
        return place, flight

    def _bucket(
        self, origin: int, destination: int, date: int, numbers: str, packed: bytes
    ) -> tuple[tuple[int, ...], tuple[Flight, ...]]:
        """Places in the published table, and flights, of a bucket."""
        text = self._texts
        named = json.loads(numbers)
        count = len(named)
        values = _packing(count).unpack(packed)
        price, distance, departure, arrival, elapsed, places = (values[at * count : (at + 1) * count] for at in range(6))
        columns = zip(
            named,
            price,
            map(text.__getitem__, departure),
            map(text.__getitem__, arrival),
            map(text.__getitem__, elapsed),
            repeat(text[date]),
            repeat(text[origin]),
            repeat(text[destination]),
            distance,
        )
        return places, tuple(map(_make_flight, columns))
