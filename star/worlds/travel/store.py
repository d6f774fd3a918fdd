"""The travel database as one compact, read-only file that many processes can share.

Flights stay on disk. Those of one route on one day are a bucket, with their columns packed one after another: what is asked for
together lies together, is read in one call and used in place. Cities, dates, times and durations repeat a lot, so a bucket holds
small integers that point into the table `texts`. The buckets lie one after another behind an SQLite database, in the same file;
their keys and lengths are rows of it, which are read once and searched in memory. Answers are not kept: the garbage collector
would walk through them, which costs more than it takes to read them again. The other tables are plain rows of the database and
are read whole, once, when they are first asked for.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import sqlite3
import struct
import sys
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from star.errors import DataError
from star.worlds.travel.buckets import BETWEEN, Buckets, Timetable, packed
from star.worlds.travel.csv_tables import read_flights, read_places
from star.worlds.travel.tables import Distance, Flight, Hotel, Restaurant, Sight, Tables
from star.worlds.travel.text import city_key

FORMAT = f"star-travel-5-{sys.byteorder}-endian"
"""Numbers are kept as the processor has them, so that they are read in place."""
MAGIC = b"SQLite format 3\x00"
_DAMAGE = (sqlite3.Error, struct.error, LookupError, TypeError, ValueError)
"""What reading a file raises that is not what was written."""
_TEXT_BITS = 21
"""Bits of a text's number in the key of a bucket; three of them fit into SQLite's signed integers of 64."""
_TEXT_MASK = (1 << _TEXT_BITS) - 1
_SCHEMA = """
create table meta (format text not null, flights integer not null, bytes integer not null);
create table hotels (name, room_type, price, minimum_nights, rating, house_rules, maximum_occupancy, city);
create table restaurants (name, city, cuisines, cost, rating);
create table sights (name, latitude, longitude, address, phone, website, city);
create table distances (origin, destination, duration, distance);
create table texts (id integer primary key, text text not null);
create table states (city text not null, state text not null);
create table routes (origin integer, destination integer, primary key (origin, destination)) without rowid;
create table buckets (keys blob not null, ends blob not null);
create table flight_numbers (number text, bucket integer, primary key (number, bucket)) without rowid;
"""
_SCRATCH = """
attach '' as scratch;
pragma scratch.journal_mode = off;
pragma scratch.synchronous = off;
create table scratch.flights (place integer primary key, bucket, number, price, distance, departure, arrival, elapsed);
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

_BY_NUMBER = "select bucket from flight_numbers where number = ? order by bucket"
_GROUPED = """select bucket, number, price, distance, departure, arrival, elapsed, place
from scratch.flights order by bucket, place"""
_NUMBERED = "insert into flight_numbers select distinct number, bucket from scratch.flights order by number, bucket"
_PRAGMAS = ("page_size = 4096", "journal_mode = off", "synchronous = off", "locking_mode = exclusive", "cache_size = -65536")
"""How a store is written."""
_SIZES = "select page_count * page_size, bytes from pragma_page_count, pragma_page_size, meta"
"""Bytes of the database, by its own account, and of the buckets behind it."""


class _Numbering(dict[str, int]):
    """Text -> its number; a new text gets the next one."""

    def __missing__(self, text: str) -> int:
        number = len(self)
        if number >> _TEXT_BITS:
            what = f"the flights name more than {number:,} different cities, dates and times"
            raise DataError(what, "Check the columns of their table")
        self[text] = number
        return number


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
    draft, tail = (target.with_name(f".{target.name}.{os.getpid()}.{part}.tmp") for part in ("head", "tail"))
    draft.unlink(missing_ok=True)
    connection = sqlite3.connect(draft)
    try:
        with tail.open("w+b") as buckets:
            _fill(connection, places, flights, buckets)
            connection.close()
            buckets.seek(0)
            with draft.open("ab") as file:
                shutil.copyfileobj(buckets, file, 1 << 20)
                file.flush()
                os.fsync(file.fileno())
        os.replace(draft, target)
    finally:
        connection.close()
        draft.unlink(missing_ok=True)
        tail.unlink(missing_ok=True)


def _fill(connection: sqlite3.Connection, places: Tables, flights: Iterable[Flight], buckets: BinaryIO) -> None:
    for pragma in _PRAGMAS:
        connection.execute(f"pragma {pragma}")
    connection.executescript(_SCHEMA)
    for table, (_, insert, _) in _ROWS.items():
        connection.executemany(insert, map(dataclasses.astuple, getattr(places, table)))
    connection.executemany("insert into states values (?, ?)", places.states.items())
    count = _write_flights(connection, flights, buckets)
    connection.execute("insert into meta values (?, ?, ?)", (FORMAT, count, buckets.tell()))
    connection.commit()


def _write_flights(connection: sqlite3.Connection, flights: Iterable[Flight], buckets: BinaryIO) -> int:
    """Write the flights, and return how many there are."""
    texts = _Numbering()
    routes: set[tuple[int, int]] = set()
    connection.executescript(_SCRATCH)
    connection.executemany("insert into scratch.flights values (null, ?, ?, ?, ?, ?, ?, ?)", _pointing(flights, texts, routes))
    connection.executemany("insert into texts values (?, ?)", ((number, text) for text, number in texts.items()))
    connection.executemany("insert into routes values (?, ?)", sorted(routes))
    keys, ends = array("q"), array("q")
    for bucket, rows in groupby(connection.execute(_GROUPED), itemgetter(0)):
        _, *columns = zip(*rows, strict=True)
        buckets.write(packed(*columns))
        keys.append(bucket)
        ends.append(buckets.tell())
    connection.execute("insert into buckets values (?, ?)", (keys.tobytes(), ends.tobytes()))
    connection.execute(_NUMBERED)
    count: int = connection.execute("select count(*) from scratch.flights").fetchone()[0]
    connection.commit()
    connection.execute("detach scratch")
    return count


def _pointing(flights: Iterable[Flight], texts: _Numbering, routes: set[tuple[int, int]]) -> Iterator[tuple[object, ...]]:
    """Flights with their bucket, and each repeating text replaced by its number; `texts` and `routes` are filled on the way."""
    for number, price, departure, arrival, elapsed, date, origin, destination, distance in flights:
        if BETWEEN in number:
            raise DataError(f"the flight number {number!r} has a line break", "Correct it in the table of flights")
        start, end = texts[origin], texts[destination]
        routes.add((start, end))
        bucket = _bucket(start, end, texts[date])
        yield bucket, number, price, distance, texts[departure], texts[arrival], texts[elapsed]


def _bucket(origin: int, destination: int, date: int) -> int:
    """Key of the bucket of a route on a day, of the numbers of their texts."""
    return (origin << _TEXT_BITS | destination) << _TEXT_BITS | date


class _Texts(dict[int, str]):
    """Number -> text."""

    def __init__(self, texts: Iterable[tuple[int, str]], damaged: Callable[[Exception], DataError]) -> None:
        super().__init__(texts)
        self._damaged = damaged

    def __missing__(self, number: int) -> str:
        raise self._damaged(LookupError(f"no text {number}"))


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

    @cached_property
    def _buckets(self) -> Buckets:
        try:
            base, size = self._connection.execute(_SIZES).fetchone()
            keys, ends = self._connection.execute("select keys, ends from buckets").fetchone()
            return Buckets(self.path, base, size, array("q", keys), array("q", ends))
        except _DAMAGE as error:
            raise self._damaged(error) from None

    def table(self, name: str) -> tuple[Any, ...]:
        """All rows of a small table, in published order."""
        kind, _, select = _ROWS[name]
        return tuple(kind(*row) for row in self._connection.execute(select))

    def counts(self) -> dict[str, int]:
        """Rows of each table."""
        count = "select count(*) from {}"
        queries = {"flights": "select flights from meta", **{name: count.format(name) for name in (*_ROWS, "states")}}
        return {name: self._connection.execute(query).fetchone()[0] for name, query in queries.items()}

    def states(self) -> dict[str, str]:
        return dict(self._connection.execute("select city, state from states order by rowid"))

    @cached_property
    def _texts(self) -> _Texts:
        return _Texts(self._connection.execute("select id, text from texts"), self._damaged)

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
        return {city for route in self.routes() for city in route}

    def routes(self) -> set[tuple[str, str]]:
        """Origin and destination of every route."""
        rows = self._connection.execute("select origin, destination from routes")
        return {(self._texts[origin], self._texts[destination]) for origin, destination in rows}

    def route(self, origin: str, destination: str, date: str) -> Sequence[Flight]:
        """Flights between two cities, given as normalised keys, on a date, in published order."""
        numbers, read, named = self._numbers, self._buckets.read, self._named
        starts, ends, days = numbers.get(origin, ()), numbers.get(destination, ()), numbers.get(date, ())
        keys = [_bucket(start, end, day) for start in starts for end in ends for day in days]
        try:
            found = [Timetable(data, *named(key)) for key in keys if (data := read(key)) is not None]
            return found[0] if len(found) == 1 else _merged(found)
        except _DAMAGE as error:
            raise self._damaged(error) from None

    def numbered(self, number: str) -> tuple[Flight, ...]:
        """Flights of this number, in published order."""
        try:
            keys = [key for (key,) in self._connection.execute(_BY_NUMBER, (number,))]
            return _merged([Timetable(self._buckets.read(key) or b"", *self._named(key)) for key in keys], number)
        except _DAMAGE as error:
            raise self._damaged(error) from None

    def _named(self, key: int) -> tuple[_Texts, str, str, str]:
        """The texts, and those of a bucket's date, origin and destination."""
        text = self._texts
        return text, text[key & _TEXT_MASK], text[key >> 2 * _TEXT_BITS], text[key >> _TEXT_BITS & _TEXT_MASK]

    def _damaged(self, error: Exception) -> DataError:
        return DataError(f"{self.path}:1: the store is damaged ({error})", "Build it again with `build`")


def _merged(timetables: Iterable[Timetable], number: str | None = None) -> tuple[Flight, ...]:
    """Flights of some buckets, perhaps only those of one number, in published order."""
    found = [
        (table.places[at], table[at])
        for table in timetables
        for at, name in enumerate(table.numbers)
        if number is None or name == number
    ]
    return tuple(flight for _, flight in sorted(found, key=itemgetter(0)))
