"""The database finds the same rows in memory, in CSV files of either layout and in a store, and names broken files."""

from __future__ import annotations

import multiprocessing
import pickle
import sqlite3
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from star.errors import DataError
from star.worlds.travel.csv_tables import FILES, STATES
from star.worlds.travel.database import Database, Listing, build, city_key, name_key
from star.worlds.travel.tables import Sight, Tables

CSV = {
    "flights": "Flight Number,Price,DepTime,ArrTime,ActualElapsedTime,FlightDate,OriginCityName,DestCityName,Distance\n"
    "F1,100,09:00,11:00,2 hours 0 minutes,2022-03-01,Wichita,Salina,90.0\n"
    "F2,80.5,08:00,10:00,2 hours 0 minutes,2022-03-01,Wichita,Salina,90.0\n"
    "F3,70,,10:00,2 hours 0 minutes,2022-03-01,Wichita,Salina,90.0\n"
    "F1,60,07:00,08:00,1 hours 0 minutes,2022-03-02,Salina,Wichita,90.0\n",
    "hotels": ",NAME,room type,price,minimum nights,review rate number,house_rules,maximum occupancy,city\n"
    '0,"Loft, the ""Old"" one",Private room,50.0,2.0,4.0,No pets,2,Wichita\n'
    "1,Bare,Private room,50.0,2.0,,No pets,2,Wichita\n"
    "2,Ruleless,Private room,50.0,2.0,3.0,,2,Wichita\n"
    '3,"Two\nlines",Shared room,20.0,1.0,3.0,No smoking & No pets,1,Salina\n',
    "restaurants": ",Name,City,Cuisines,Average Cost,Aggregate Rating\n"
    '0,Café,Wichita,"Tea, Pizza",46,4.8\n1,None,Wichita,Tea,3,4\n2,Second,Wichita,Tea,3,4\n',
    "sights": "Name,Latitude,Longitude,Address,Phone,Website,City\nZoo,1.5,-2,Main St,5,http://x,Salina\n",
    "distances": "origin,destination,cost,duration,distance\n"
    'Wichita,Salina,,1 hour,"1,044 km"\nWichita,Salina,,9 hours,9 km\nSalina,Wichita,,,\n',
}
SPELLINGS = ("Wichita", "WICHITA", "Wichita (Kansas)", "Wichita")
TOWNS = "Wichita\tKansas\nSalina\tKansas\nBoulder\tColorado"


def write(folder: Path, nested: bool, **changed: str) -> Path:
    for table, (name, subfolder) in FILES.items():
        path = folder / subfolder / name if nested else folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(changed.get(table, CSV[table]), encoding="utf-8")
    name, subfolder = STATES
    (folder / subfolder).mkdir(exist_ok=True)
    (folder / subfolder / name).write_text(changed.get("states", TOWNS), encoding="utf-8")
    return folder


@pytest.fixture(params=["flat", "nested", "store", "pickled store", "pickled folder"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    folder = write(tmp_path / "csv", nested=request.param == "nested")
    if "store" not in request.param:
        database = Database.open(folder)
        return pickle.loads(pickle.dumps(database)) if "pickled" in request.param else database
    build(folder, tmp_path / "travel.sqlite")
    database = Database.open(tmp_path / "travel.sqlite")
    return pickle.loads(pickle.dumps(database)) if "pickled" in request.param else database


def test_look_ups(opened: Database) -> None:
    assert [row.number for row in opened.flights("wichita", " SALINA (Kansas)", "2022-03-01")] == ["F1", "F2"]
    assert opened.flights("Wichita", "Salina", "2022-03-02") == opened.flights("x", "y", "z") == ()
    assert [(row.origin, row.price) for row in opened.flights_numbered("F1")] == [("Wichita", 100.0), ("Salina", 60.0)]
    assert opened.flights_numbered("F3") == ()
    assert [(row.name, row.maximum_occupancy) for row in opened.hotels("Wichita")] == [('Loft, the "Old" one', 2)]
    assert [row.name for row in opened.hotels("salina(Kansas)")] == ["Two\nlines"]
    assert [(row.name, row.cuisines, row.cost) for row in opened.restaurants("WICHITA")] == [
        ("Café", "Tea, Pizza", 46.0),
        ("Second", "Tea", 3.0),
    ]
    assert [row.longitude for row in opened.sights("Salina")] == [-2.0]
    assert opened.hotels("Boulder") == opened.sights("nowhere") == ()


def test_the_first_of_two_roads_wins_and_a_missing_road_is_empty(opened: Database) -> None:
    there, back = opened.distance("Wichita", "salina"), opened.distance("Salina", "Wichita")
    assert there is not None
    assert (there.duration, there.distance) == ("1 hour", "1,044 km")
    assert back is not None
    assert (back.duration, back.distance) == ("", "")
    assert opened.distance("Wichita", "Boulder") is None


def test_states(opened: Database) -> None:
    assert opened.cities("kansas") == ("Wichita", "Salina")
    assert opened.cities("Ohio") == ()
    assert opened.state_of("wichita ") == "Kansas"
    assert opened.state_of("Atlantis") is None
    assert opened.city_names == {"Wichita", "Salina", "Boulder"}


def test_cities_without_a_list_of_states(tmp_path: Path) -> None:
    folder = write(tmp_path / "csv", nested=False)
    (folder / STATES[1] / STATES[0]).unlink()
    database = Database.open(folder)
    assert database.states == {}
    assert database.city_names == {"Wichita", "Salina"}


def test_an_empty_database() -> None:
    database = Database(Tables())
    assert database.city_names == frozenset()
    assert database.flights("a", "b", "2022-03-01") == ()
    assert database.distance("a", "b") is None


@pytest.mark.parametrize(
    ("table", "text", "where"),
    [
        ("flights", CSV["flights"].replace("80.5", "cheap"), "clean_Flights_2022.csv:3: "),
        ("flights", CSV["flights"].replace("Price", "Cost"), "clean_Flights_2022.csv:1: no column 'Price'"),
        ("flights", CSV["flights"] + "F9,1\n", "clean_Flights_2022.csv:6: 2 cells"),
        ("hotels", CSV["hotels"].replace(",2,Wichita", ",0,Wichita"), "clean_accommodations_2022.csv:2: "),
        ("hotels", CSV["hotels"].replace(",2,Wichita", ",two,Wichita"), "clean_accommodations_2022.csv:2: "),
        ("restaurants", "", "clean_restaurant_2022.csv:1: no column"),
        ("sights", CSV["sights"].replace("1.5", "north"), "attractions.csv:2: "),
        ("states", "Wichita\tKansas\nSalina", "citySet_with_states.txt:2: "),
    ],
)
def test_a_broken_file_is_named_with_its_line(table: str, text: str, where: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "csv", nested=False, **{table: text})
    with pytest.raises(DataError) as caught:
        Database.open(folder)
    assert where in str(caught.value)
    with pytest.raises(DataError):
        build(folder, tmp_path / "store.sqlite")
    assert list(tmp_path.iterdir()) == [folder]


def test_a_file_in_another_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    folder = write(tmp_path, nested=False)
    path = folder / FILES["restaurants"][0]
    path.write_bytes(path.read_text(encoding="utf-8").encode("latin-1"))
    with pytest.raises(DataError, match=r"clean_restaurant_2022.csv:2: not UTF-8"):
        Database.open(folder)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    folder = write(tmp_path, nested=True)
    (folder / "attractions" / "attractions.csv").unlink()
    with pytest.raises(DataError, match="attractions.csv: no such file"):
        Database.open(folder)
    with pytest.raises(DataError, match="no such file or folder"):
        Database.open(tmp_path / "nowhere")


def test_a_file_that_is_no_store_is_refused(tmp_path: Path) -> None:
    text, foreign = tmp_path / "text.sqlite", tmp_path / "foreign.sqlite"
    text.write_text("hello", encoding="utf-8")
    connection = sqlite3.connect(foreign)
    connection.execute("create table t (x)")
    connection.commit()
    connection.close()
    for path in (text, foreign):
        with pytest.raises(DataError, match="not a travel store"):
            Database.open(path)


def test_a_damaged_store_is_named(tmp_path: Path) -> None:
    target = tmp_path / "travel.sqlite"
    build(write(tmp_path / "csv", nested=False), target)
    whole = target.read_bytes()
    flights = next(place for place in range(0, len(whole), 4096) if whole[place:].startswith(struct.pack("=q", 2)))
    damaged = {
        "cut in the middle": whole[: len(whole) // 2],
        "cut by a byte": whole[:-1],
        "longer": whole + b"x",
        "more flights": whole[:flights] + struct.pack("=q", 3) + whole[flights + 8 :],
        "no flights": whole[:flights] + struct.pack("=q", 0) + whole[flights + 8 :],
        "no such texts": whole[: flights + 40] + b"\xff" * 4 + whole[flights + 44 :],
        "no such letters": whole[: flights + 72] + b"\xff" + whole[flights + 73 :],
    }
    for kind, data in damaged.items():
        target.write_bytes(data)
        for look_up in (lambda d: d.flights("Wichita", "Salina", "2022-03-01"), lambda d: d.flights_numbered("F1")):
            with pytest.raises(DataError, match=r"travel.sqlite:1: "):
                pytest.fail(f"{kind}: {list(look_up(Database.open(target)))}")


def test_a_store_of_another_format_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "travel.sqlite"
    build(write(tmp_path / "csv", nested=False), target)
    with sqlite3.connect(target) as connection:
        connection.execute("update meta set format = 'star-travel-2'")
    connection.close()
    with pytest.raises(DataError, match="a store of format 'star-travel-2', not 'star-travel-5-"):
        Database.open(target)


def test_spellings_of_a_city_share_a_look_up_in_published_order(tmp_path: Path) -> None:
    lines = [f"F{place},{place},09:00,11:00,2 hours,2022-03-01,{city},Salina,90.0\n" for place, city in enumerate(SPELLINGS)]
    folder = write(tmp_path / "csv", nested=False, flights=CSV["flights"].partition("\n")[0] + "\n" + "".join(lines))
    build(folder, tmp_path / "travel.sqlite")
    for database in (Database.open(folder), Database.open(tmp_path / "travel.sqlite")):
        found = database.flights("wichita", "Salina", "2022-03-01")
        assert [(row.number, row.origin) for row in found] == [(f"F{place}", city) for place, city in enumerate(SPELLINGS)]
        assert database.flight_routes() == {(city, "Salina") for city in SPELLINGS}


def test_a_flight_number_with_a_line_break_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "csv", nested=False, flights=CSV["flights"].replace("F2,", '"F\n2",'))
    with pytest.raises(DataError, match="has a line break"):
        build(folder, tmp_path / "travel.sqlite")
    assert list(tmp_path.iterdir()) == [folder]


def test_a_build_replaces_the_target_whole(tmp_path: Path) -> None:
    folder, target = write(tmp_path / "csv", nested=False), tmp_path / "deep" / "travel.sqlite"
    build(folder, target)
    before = target.read_bytes()
    build(folder, target)
    assert target.read_bytes() == before
    assert [path.name for path in target.parent.iterdir()] == ["travel.sqlite"]


def _count(path: Path) -> int:
    return len(Database.open(path).flights("Wichita", "Salina", "2022-03-01"))


def test_a_store_is_shared_by_threads_and_processes(tmp_path: Path) -> None:
    build(write(tmp_path / "csv", nested=False), tmp_path / "travel.sqlite")
    database = Database.open(tmp_path / "travel.sqlite")
    assert len(database.flights("Wichita", "Salina", "2022-03-01")) == 2
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(len(database.flights_numbered("F1")))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [2] * 4
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_count, [tmp_path / "travel.sqlite"] * 4) == [2] * 4


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("Chicago", "chicago"),
        ("  New   YORK\t", "new york"),
        ("Chicago(Illinois)", "chicago"),
        ("Chicago (Illinois) ", "chicago"),
        ("(Illinois)", "(illinois)"),
        ("", ""),
    ],
)
def test_city_keys(text: str, key: str) -> None:
    assert city_key(text) == key


def test_name_keys_keep_parentheses() -> None:
    assert name_key(" Loft  (Old) ") == "loft (old)"


@given(st.lists(st.text("ab \0"), max_size=6), st.text("ab \0", max_size=3))
def test_names_that_hold_a_text(names: list[str], part: str) -> None:
    names = [name.replace("\0", "") for name in names]
    rows = [Sight(name, 1.0, 2.0, "", "", "", city) for name in names for city in ("A", "B")]
    expected = tuple(row for row in rows if row.city == "A" and part in row.name)
    assert Listing(rows).holding("A", part) == expected
    assert Listing(rows).holding("a", part) == ()


def test_a_data_folder_opens_by_its_store(tmp_path: Path) -> None:
    write(tmp_path / "database", nested=True)
    assert Database.open(tmp_path).flights_numbered("F2")[0].price == 80.5, "the tables, while there is no store"
    build(tmp_path / "database", tmp_path / "travel.sqlite")
    assert Database.open(tmp_path)._store is not None
