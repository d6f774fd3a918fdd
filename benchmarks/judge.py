"""Plans a second of the judge, by mode, on the human plans of a folder of TravelPlanner data.

    python benchmarks/judge.py DATA [--reference DIR] [--seconds 3] [--json]

DATA holds the tables and `train.jsonl` (queries with a field `plan`). Two figures a mode: `first`, every plan once with
nothing remembered but the tables, and `steady`, the same plans again and again. With `--reference DIR`, a checkout of
TravelPlanner with its database, its own evaluator judges the same plans right after, and the ratio is given.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from star.types import MODES
from star.worlds.travel.checks import judge
from star.worlds.travel.database import Database

REFERENCE = """
import contextlib, io, json, sys, time
sys.path.insert(0, sys.argv[1])
import os
os.chdir(sys.argv[1] + "/evaluation")
with contextlib.redirect_stdout(io.StringIO()):
    from commonsense_constraint import evaluation as commonsense
    from hard_constraint import evaluation as hard
    rows = [json.loads(line) for line in open(sys.argv[2], encoding="utf-8")]
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < float(sys.argv[3]):
        row = rows[count % len(rows)]
        commonsense(row, row["plan"]), hard(row, row["plan"])
        count += 1
    rate = count / (time.perf_counter() - started)
print(rate)
"""


def rates(rows: list[dict[str, Any]], data: Path, seconds: float) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for mode in MODES:
        database = Database.open(data)
        for look_up in (database.hotels, database.restaurants, database.sights):
            look_up("")
        database.distance("", "")
        started = time.perf_counter()
        passed = sum(judge(row, row["plan"], database, mode).success for row in rows)
        first = len(rows) / (time.perf_counter() - started)
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            for row in rows:
                judge(row, row["plan"], database, mode)
            count += len(rows)
        steady = count / (time.perf_counter() - started)
        found[mode] = {"first": first, "steady": steady, "passed": passed, "plans": len(rows)}
    return found


def reference_rate(folder: Path, train: Path, seconds: float) -> float:
    command = [sys.executable, "-c", REFERENCE, str(folder.resolve()), str(train.resolve()), str(seconds)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    train = options.data / "train.jsonl"
    rows = [json.loads(line) for line in train.read_text(encoding="utf-8").splitlines()]
    result: dict[str, Any] = {"plans_per_second": rates(rows, options.data, options.seconds)}
    if options.reference:
        result["reference"] = reference_rate(options.reference, train, options.seconds)
        result["ratio"] = result["plans_per_second"]["official"]["steady"] / result["reference"]
    if options.json:
        print(json.dumps(result))
        return
    for mode, figures in result["plans_per_second"].items():
        print(f"{mode:10} first {figures['first']:8,.0f}/s  steady {figures['steady']:8,.0f}/s  {figures['passed']} pass")
    if options.reference:
        print(f"reference  {result['reference']:.1f}/s, ratio {result['ratio']:,.0f}")


if __name__ == "__main__":
    main()
