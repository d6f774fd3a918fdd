"""Build, open and look up the travel database at its full size.

    python benchmarks/database.py DATA [--flights 3830000] [--reference DIR] [--json]

DATA holds the small tables. Flights are synthetic, with the columns of the published table: 5,000 pairs of cities, some
of them much busier than others, over two months. Where DATA holds `train.jsonl`, its human plans are judged on this store
and on the few flights of DATA. With `--reference DIR`, the flight search of a TravelPlanner checkout
reads the same table and answers some of the same look-ups. A look-up finds the flights with their columns, as the reference's
does; `flight_look_up_and_rows_us` is with every flight put together as a row.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any

from checkout import LOAD

from star.worlds.travel.csv_tables import COLUMNS, FILES, STATES, find, read_flights
from star.worlds.travel.database import Database, build

LOOK_UPS = 2000
PROBE = """
import json, resource, sys, time
from pathlib import Path
from star.worlds.travel.database import Database
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 2**20
before, started = resident(), time.perf_counter()
database = Database.open(Path(sys.argv[1]))
opened = time.perf_counter() - started
keys = json.loads(sys.stdin.read())
database.flights(*keys[0]), database.hotels("x"), database.restaurants("x"), database.sights("x")
database.distance("x", "y")
ready = time.perf_counter() - started
started = time.perf_counter()
found = sum(len(database.flights(*key)) for key in keys)
each, started = (time.perf_counter() - started) / len(keys), time.perf_counter()
read = sum(len(list(database.flights(*key))) for key in keys)
rows = (time.perf_counter() - started) / len(keys)
assert read == found
print(json.dumps({"open_s": opened, "first_look_ups_s": ready, "flight_look_up_us": each * 1e6,
                  "flight_look_up_and_rows_us": rows * 1e6, "found": found,
                  "resident_mib": resident(), "of_database_mib": resident() - before}))
"""
JUDGING = """
import json, sys, time
from pathlib import Path
from star.worlds.travel.checks import judge
from star.worlds.travel.database import Database
plans = [json.loads(line) for line in (Path(sys.argv[1]) / "train.jsonl").read_text(encoding="utf-8").splitlines()]
database, count, started = Database.open(Path(sys.argv[2])), 0, None
for again in range(40):
    if again == 1:
        started = time.process_time()
    passed = sum(judge(row, row["plan"], database, "official").success for row in plans)
    count += len(plans) * bool(again)
print(json.dumps({"plans_per_second": count / (time.process_time() - started), "human_plans_passed": passed}))
"""
REFERENCE = (
    LOAD
    + """
import contextlib, importlib, io, json, os, resource, sys, time, types
sys.path.insert(0, sys.argv[1])
os.chdir(sys.argv[1] + "/evaluation")
started = time.perf_counter()
with contextlib.redirect_stdout(io.StringIO()):
    flights = load("tools.flights.apis").Flights(path=sys.argv[2])
opened = time.perf_counter() - started
keys = json.loads(sys.stdin.read())[:20]
started = time.perf_counter()
for key in keys:
    flights.run(*key)
each = (time.perf_counter() - started) / len(keys)
print(json.dumps({"open_s": opened, "flight_look_up_us": each * 1e6,
                  "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}))
"""
)


def cities(data: Path) -> list[str]:
    path = find(data, *STATES)
    if path is None:
        raise SystemExit(f"{data}: no {STATES[0]}")
    return [line.partition("\t")[0] for line in path.read_text(encoding="utf-8").splitlines() if line]


def synthesise(data: Path, folder: Path, count: int) -> list[tuple[str, str, str]]:
    """Copy the small tables, write `count` flights, and return keys of some of them."""
    for table, names in FILES.items():
        if table != "flights":
            source = find(data, *names)
            if source is not None:
                shutil.copy(source, folder / names[0])
    background = find(data, *STATES)
    if background is not None:
        shutil.copy(background, folder / STATES[0])
    draw, names = random.Random(0), cities(data)
    days = [(date(2022, 2, 28) + timedelta(days=day)).isoformat() for day in range(62)]
    pairs = [tuple(draw.sample(names, 2)) for _ in range(5000)]
    keys: list[tuple[str, str, str]] = []
    with (folder / FILES["flights"][0]).open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS["flights"])
        for index in range(count):
            (origin, destination), day = pairs[int(draw.random() ** 2 * 5000)], days[index * 62 // count]
            start, minutes = draw.randrange(1440), draw.randrange(30, 400)
            end = (start + minutes) % 1440
            times = (f"{start // 60:02d}:{start % 60:02d}", f"{end // 60:02d}:{end % 60:02d}")
            elapsed = f"{minutes // 60} hours {minutes % 60} minutes"
            price, length = draw.randrange(30, 900), float(minutes * 8)
            writer.writerow((f"F{10_000_000 + index}", price, *times, elapsed, day, origin, destination, length))
            if index % (count // LOOK_UPS + 1) == 0:
                keys.append((origin, destination, day))
        # The flights of DATA come last, so that the human plans can be judged.
        writer.writerows((f.number, f.price, *f[2:]) for f in read_flights(data))
    return keys


def child(code: str, *arguments: str, keys: list[tuple[str, str, str]]) -> dict[str, float]:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, input=json.dumps(keys), check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"a measurement failed: {done.stderr.strip().splitlines()[-1]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def measure(data: Path, count: int, reference: Path | None) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        keys = synthesise(data, folder, count)
        target, started = folder / "travel.sqlite", time.perf_counter()
        build(folder, target)
        result: dict[str, Any] = {
            "flights": count,
            "build_s": time.perf_counter() - started,
            "build_peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "store_mib": target.stat().st_size / 2**20,
            **child(PROBE, str(target), keys=keys),
        }
        assert Database.open(target).flights(*keys[0])
        if (data / "train.jsonl").is_file():
            few, many = (child(JUDGING, str(data.resolve()), str(path.resolve()), keys=[]) for path in (data, target))
            result["judge"] = {**many, "over_few_flights": many["plans_per_second"] / few["plans_per_second"]}
        if reference:
            table = str(folder / FILES["flights"][0])
            result["reference"] = child(REFERENCE, str(reference.resolve()), table, keys=keys)
            result["ratio"] = result["reference"]["flight_look_up_us"] / result["flight_look_up_us"]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--flights", type=int, default=3_830_000)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = measure(options.data, options.flights, options.reference)
    if options.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:20} {value if isinstance(value, dict) else format(value, ',.4g')}")


if __name__ == "__main__":
    main()
