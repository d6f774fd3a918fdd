"""The published CSV files of the travel database, read into typed rows.

Two folder layouts are understood: all files side by side, and TravelPlanner's own with one sub-folder a table. A row
with a missing cell in any column is left out, which is what every published tool and evaluator does; distance rows are
kept, as a missing duration or distance there says that no road was found.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Protocol, TypeVar

from star.errors import DataError
from star.worlds.travel.tables import Distance, Flight, Hotel, Restaurant, Sight, Tables

Row = TypeVar("Row")

FILES: dict[str, tuple[str, str]] = {
    "flights": ("clean_Flights_2022.csv", "flights"),
    "hotels": ("clean_accommodations_2022.csv", "accommodations"),
    "restaurants": ("clean_restaurant_2022.csv", "restaurants"),
    "sights": ("attractions.csv", "attractions"),
    "distances": ("distance.csv", "googleDistanceMatrix"),
}
"""Table -> (file name, its sub-folder in TravelPlanner's layout)."""

STATES = ("citySet_with_states.txt", "background")

COLUMNS: dict[str, tuple[str, ...]] = {
    "flights": (
        "Flight Number",
        "Price",
        "DepTime",
        "ArrTime",
        "ActualElapsedTime",
        "FlightDate",
        "OriginCityName",
        "DestCityName",
        "Distance",
    ),
    "hotels": (
        "NAME",
        "room type",
        "price",
        "minimum nights",
        "review rate number",
        "house_rules",
        "maximum occupancy",
        "city",
    ),
    "restaurants": ("Name", "City", "Cuisines", "Average Cost", "Aggregate Rating"),
    "sights": ("Name", "Latitude", "Longitude", "Address", "Phone", "Website", "City"),
    "distances": ("origin", "destination", "duration", "distance"),
}

MISSING = frozenset(
    ["", "NA", "N/A", "n/a", "NaN", "nan", "-NaN", "-nan", "null", "NULL", "None", "<NA>", "#N/A", "#NA", "#N/A N/A",
     "1.#IND", "1.#QNAN", "-1.#IND", "-1.#QNAN"]
)  # fmt: skip
"""Cells that mean "no value" in the published files."""
_LONGEST_CELL = 1 << 24
"""Characters; the reference information of one query is longer than what csv reads by default."""


def find(folder: Path, name: str, subfolder: str) -> Path | None:
    """The file `name` in either layout."""
    for path in (folder / name, folder / subfolder / name):
        if path.is_file():
            return path
    return None


def locate(folder: Path, table: str) -> Path:
    name, subfolder = FILES[table]
    path = find(folder, name, subfolder)
    if path is None:
        fix = f"Put it there or into {folder / subfolder}; the list of files is in data/README.md"
        raise DataError(f"{folder / name}: no such file", fix)
    return path


def cells(path: Path, columns: tuple[str, ...], complete: bool) -> Iterator[tuple[int, tuple[str, ...]]]:
    """(line number, the cells of `columns`) of each row; with `complete`, only rows without a missing cell anywhere."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = _lines(path, csv.reader(file))
        _, header = next(lines, (1, []))
        absent = [column for column in columns if column not in header]
        if absent:
            raise DataError(f"{path}:1: no column {absent[0]!r}", f"The columns are {', '.join(columns)}")
        pick = itemgetter(*(header.index(column) for column in columns))
        for line, row in lines:
            if len(row) != len(header):
                what = f"{path}:{line}: {len(row)} cells where the header has {len(header)}"
                raise DataError(what, "Restore the file; a quote or a line is probably broken")
            if not complete or MISSING.isdisjoint(row):
                yield line, pick(row)


def records(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, column -> cell) of each row of a CSV file with a header."""
    if not path.is_file():
        raise DataError(f"{path}: no such file", "Check the path, or fetch it: star data fetch")
    csv.field_size_limit(_LONGEST_CELL)
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = _lines(path, csv.reader(file))
        _, header = next(lines, (1, []))
        for line, row in lines:
            if len(row) != len(header):
                what = f"{path}:{line}: {len(row)} cells where the header has {len(header)}"
                raise DataError(what, "Restore the file; a quote or a line is probably broken")
            yield line, dict(zip(header, row, strict=True))


class _Reader(Protocol):
    """What `csv.reader` returns."""

    @property
    def line_num(self) -> int: ...

    def __iter__(self) -> Iterator[list[str]]: ...


def _lines(path: Path, reader: _Reader) -> Iterator[tuple[int, list[str]]]:
    """(line number, row) of each row that is not empty; what cannot be decoded or parsed raises DataError."""
    try:
        for row in reader:
            if row:
                yield reader.line_num, row
    except UnicodeDecodeError:
        raise DataError(f"{path}:{_undecodable(path)}: not UTF-8", "Save the file in UTF-8 encoding") from None
    except csv.Error as error:
        raise DataError(f"{path}:{reader.line_num}: {error}", "Restore the file") from None


def _undecodable(path: Path) -> int:
    """Number of the first line that is not UTF-8."""
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                return number
    return 1


def rows(path: Path, table: str, make: Callable[[tuple[str, ...]], Row]) -> Iterator[Row]:
    """Typed rows of one table; a cell that is no number where one belongs raises DataError with file and line."""
    for line, values in cells(path, COLUMNS[table], complete=table != "distances"):
        try:
            row = make(values)
        except (ValueError, OverflowError) as error:
            raise DataError(f"{path}:{line}: {error}", "Correct the cell or restore the file") from None
        yield row


def flight(values: tuple[str, ...]) -> Flight:
    number, price, departure, arrival, elapsed, date, origin, destination, distance = values
    return Flight(number, float(price), departure, arrival, elapsed, date, origin, destination, float(distance))


def _hotel(values: tuple[str, ...]) -> Hotel:
    name, kind, price, nights, rating, rules, occupancy, city = values
    beds = int(float(occupancy))
    if beds < 1:
        raise ValueError(f"maximum occupancy {occupancy} is below 1")
    return Hotel(name, kind, float(price), float(nights), float(rating), rules, beds, city)


def _restaurant(values: tuple[str, ...]) -> Restaurant:
    name, city, cuisines, cost, rating = values
    return Restaurant(name, city, cuisines, float(cost), float(rating))


def _sight(values: tuple[str, ...]) -> Sight:
    name, latitude, longitude, address, phone, website, city = values
    return Sight(name, float(latitude), float(longitude), address, phone, website, city)


def _distance(values: tuple[str, ...]) -> Distance:
    origin, destination, duration, distance = values
    missing = duration in MISSING or distance in MISSING
    return Distance(origin, destination, "" if missing else duration, "" if missing else distance)


def read_states(folder: Path) -> dict[str, str]:
    """City -> state; empty where the folder has no such file."""
    path = find(folder, *STATES)
    states: dict[str, str] = {}
    if path is None:
        return states
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path}:{_undecodable(path)}: not UTF-8", "Save the file in UTF-8 encoding") from None
    for number, line in enumerate(text.split("\n"), 1):
        city, tab, state = line.rstrip("\r").partition("\t")
        if not line.strip():
            continue
        if not tab or not city or not state:
            raise DataError(f"{path}:{number}: not a city, a tab and a state", "Restore the file")
        states[city] = state
    return states


def read_flights(folder: Path) -> Iterator[Flight]:
    return rows(locate(folder, "flights"), "flights", flight)


def read_places(folder: Path) -> Tables:
    """Every table but the flights."""
    return Tables(
        hotels=tuple(rows(locate(folder, "hotels"), "hotels", _hotel)),
        restaurants=tuple(rows(locate(folder, "restaurants"), "restaurants", _restaurant)),
        sights=tuple(rows(locate(folder, "sights"), "sights", _sight)),
        distances=tuple(rows(locate(folder, "distances"), "distances", _distance)),
        states=read_states(folder),
    )
