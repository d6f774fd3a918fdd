"""Data: turn the published tables into one store, and say what is there."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from star.errors import DataError
from star.progress import Patient, Progress, silent
from star.records import parse, read_json
from star.worlds.travel import store
from star.worlds.travel.csv_tables import FILES, STATES, find, locate, read_flights, read_places
from star.worlds.travel.database import Database
from star.worlds.travel.published import FOLDER, RECORD, SOURCES, SPLITS, STORE
from star.worlds.travel.splits import read_queries
from star.worlds.travel.tables import Flight

STEP = 20_000
"""Flights between two reports of progress."""

Record = dict[str, dict[str, Any]]


def read_record(folder: Path) -> Record:
    """Place of a fetched file inside the folder -> where it came from and its sha256."""
    path = folder / RECORD
    return parse(dict[str, Record], read_json(path), str(path)).get("files", {}) if path.is_file() else {}


def build(source: Path | None = None, target: Path | None = None, progress: Progress = silent) -> dict[str, Any]:
    """Build the store from a folder of CSV files. An old store stays as it is until the new one is whole.

    Raises DataError, with file and line, for a table that cannot be read, or that is not what was fetched.
    """
    source = source or FOLDER / "database"
    target = target or FOLDER / STORE
    if not source.is_dir():
        raise DataError(f"{source}: no such folder", "Fetch it: star data fetch --only database; or name one with --from")
    started = time.monotonic()
    _want_whole(source)
    if find(source, *STATES) is None:
        fix = "The judge asks it which state a city is in: star data fetch --only database brings it"
        raise DataError(f"{source / STATES[0]}: no such file", fix)
    places = read_places(source)
    store.write(places, _counted(read_flights(source), locate(source, "flights"), Patient(progress)), target)
    seconds = round(time.monotonic() - started, 1)
    return {"path": str(source), "store": _store(target), "seconds": seconds}


def _want_whole(source: Path) -> None:
    """Compare the tables with what was fetched, so that a file cut short is not taken for a small one."""
    parts = sorted(source.rglob(".*.part"))
    record = read_record(source.parent)
    for name, subfolder in (*FILES.values(), STATES):
        path = find(source, name, subfolder)
        entry = record.get(f"{source.name}/{name}")
        if path is None and any(part.name.startswith(f".{name}.") for part in parts):
            raise DataError(f"{source / name}: is downloaded in part only", "Go on: star data fetch --only database")
        if path is None or entry is None:
            continue
        if path.stat().st_size != entry["bytes"] or _sha256(path) != entry["sha256"]:
            line = _lines(path)
            what = f"{path}:{line}: the file is not the one that was fetched (it ends here, with {path.stat().st_size} bytes)"
            raise DataError(what, f"Remove it and run star data fetch; or remove its entry in {source.parent / RECORD}")


def _counted(flights: Iterator[Flight], path: Path, progress: Progress) -> Iterator[Flight]:
    """The same flights; progress is told now and then."""
    total = _lines(path) - 1
    progress("flights", 0, total)
    for done, row in enumerate(flights, 1):
        yield row
        if done % STEP == 0:
            progress("flights", done, total)
    progress("flights", total, total)


def _lines(path: Path) -> int:
    with path.open("rb") as file:
        return sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def info(path: Path | None = None) -> dict[str, Any]:
    """What a store, a folder of CSV files or a whole data folder holds, checked against the record of what was fetched."""
    path = path or FOLDER
    if path.is_file() and path.suffix in (".csv", ".jsonl"):
        return {"path": str(path), "queries": _queries(path)}
    if path.is_file():
        return {"path": str(path), "store": _store(path)}
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder", "Fetch it: star data fetch, then star data build")
    found: dict[str, Any] = {"path": str(path)}
    if (path / STORE).is_file():
        found["store"] = _store(path / STORE)
    record = read_record(path)
    found["files"] = {
        place: _state(path / place, record.get(place))
        for group in SOURCES.values()
        for source in group
        for place in (f"{source.folder}/{Path(name).name}" for name in source.files)
    }
    tables = {name: find(path, *names) for name, names in FILES.items()}
    if any(tables.values()):
        del found["files"]
        found["tables"] = {name: _state(table, None) if table else {"state": "missing"} for name, table in tables.items()}
    found["splits"] = {
        name: _queries(path / "splits" / f"{name}.csv") for name in SPLITS if (path / "splits" / f"{name}.csv").is_file()
    }
    return found


def _store(path: Path) -> dict[str, Any]:
    Database.open(path)
    return {"file": str(path), "bytes": path.stat().st_size, "rows": store.Store(path).counts()}


def _state(path: Path, entry: dict[str, Any] | None) -> dict[str, Any]:
    if not path.is_file():
        begun = sum(part.stat().st_size for part in path.parent.glob(f".{path.name}.*.part"))
        return {"state": "begun", "bytes": begun} if begun else {"state": "missing"}
    seen = {"bytes": path.stat().st_size, "sha256": _sha256(path)}
    if entry is None:
        return {"state": "there, not fetched by star", **seen}
    same = seen["sha256"] == entry["sha256"]
    return {"state": "verified" if same else "changed", **seen, "repo": entry["repo"], "revision": entry["revision"]}


def _queries(path: Path) -> dict[str, Any]:
    """How many queries, and how many constraints they carry where their facts are public."""
    queries = read_queries(path)
    wishes = [query.facts.get("local_constraint") for query in queries]
    known = all(isinstance(wish, dict) for wish in wishes)
    hard = sum(1 + sum(bool(value) for value in wish.values()) for wish in wishes if isinstance(wish, dict))
    return {"queries": len(queries), "commonsense": 8 * len(queries), "hard": hard if known else None}


def tables(found: dict[str, Any]) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """What `build` or `info` found, as tables: title, head, rows."""
    if "store" in found:
        rows = [[name, f"{count:,}"] for name, count in found["store"]["rows"].items()]
        yield f"store {found['store']['file']}, {found['store']['bytes'] / 1e6:,.1f} MB", ["table", "rows"], rows
    if "seconds" in found:
        yield f"built in {found['seconds']} s", [], []
    for part in ("files", "tables"):
        rows = [[name, s["state"], f"{s.get('bytes', 0):,}", s.get("sha256", "")[:12]] for name, s in found.get(part, {}).items()]
        if rows:
            yield f"{part} in {found['path']}", ["file", "state", "bytes", "sha256"], rows
    splits = found.get("splits") or ({Path(found["path"]).name: found["queries"]} if "queries" in found else {})
    rows = [[n, str(s["queries"]), str(s["commonsense"]), str(s["hard"] or "not public")] for n, s in splits.items()]
    if rows:
        yield "queries", ["split", "queries", "commonsense", "hard"], rows
