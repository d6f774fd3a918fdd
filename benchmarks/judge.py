"""Plans a second of the judge, by mode, on the human plans of a folder of TravelPlanner data.

    python benchmarks/judge.py DATA [--reference DIR] [--seconds 3] [--json]

DATA holds the tables and `train.jsonl` (queries with a field `plan`). Two figures a mode: `first`, every plan once with
nothing remembered but the tables, and `steady`, the same plans again and again. With `--reference DIR`, a checkout of
TravelPlanner or of Agent-STAR with its database, its own evaluator judges the same plans right after, and the ratios
are given. Seconds are those of the processor, since the machine may be busy with other things.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from checkout import LOAD

from star.types import MODES
from star.worlds.travel.checks import judge
from star.worlds.travel.database import Database

REFERENCE = (
    LOAD
    + """
import contextlib, importlib, io, json, os, sys, time, types
folder, train, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
star = os.path.exists(folder + "/Inference/eval_commonsense.py")
os.chdir(folder + ("/Inference" if star else "/evaluation"))
sys.path[:0] = [os.getcwd(), folder]
with contextlib.redirect_stdout(io.StringIO()):
    if star:
        commonsense = load("eval_commonsense").check_commonsense
        hard = load("eval_hardconstraint").check_hardconstraint
    else:
        commonsense, hard = load("commonsense_constraint").evaluation, load("hard_constraint").evaluation
    rows = [json.loads(line) for line in open(train, encoding="utf-8")]
    started, count = time.process_time(), 0
    while time.process_time() - started < seconds:
        row = rows[count % len(rows)]
        with contextlib.suppress(ArithmeticError, LookupError, TypeError, ValueError):  # it raises on some plans
            found = commonsense(row, row["plan"])
            if found["is_not_absent"][0] and found["is_valid_information_in_sandbox"][0]:
                hard(row, row["plan"])
        count += 1
    rate = count / (time.process_time() - started)
print("agent-star" if star else "official", rate)
"""
)


def rates(rows: list[dict[str, Any]], data: Path, seconds: float) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for mode in MODES:
        database = Database.open(data)
        for look_up in (database.hotels, database.restaurants, database.sights):
            look_up("")
        database.distance("", "")
        gc.collect()
        started = time.process_time()
        passed = sum(judge(row, row["plan"], database, mode).success for row in rows)
        first = len(rows) / (time.process_time() - started)
        started, count = time.process_time(), 0
        while time.process_time() - started < seconds:
            for row in rows:
                judge(row, row["plan"], database, mode)
            count += len(rows)
        steady = count / (time.process_time() - started)
        found[mode] = {"first": first, "steady": steady, "passed": passed, "plans": len(rows)}
    return found


def reference_rate(folder: Path, train: Path, seconds: float) -> tuple[str, float]:
    """The mode that a checkout is the reference of, and how many plans a second it judges."""
    command = [sys.executable, "-c", REFERENCE, str(folder.resolve()), str(train.resolve()), str(seconds)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{folder}: its evaluator does not run: {done.stderr.strip().splitlines()[-1]}")
    mode, rate = done.stdout.split()[-2:]
    return mode, float(rate)


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
        mode, rate = reference_rate(options.reference, train, options.seconds)
        ours = result["plans_per_second"].items()
        ratios = {name: {key: figures[key] / rate for key in ("first", "steady")} for name, figures in ours}
        result["reference"] = {"mode": mode, "plans_per_second": rate, "ratio": ratios}
    if options.json:
        print(json.dumps(result))
        return
    for mode, figures in result["plans_per_second"].items():
        print(f"{mode:10} first {figures['first']:8,.0f}/s  steady {figures['steady']:8,.0f}/s  {figures['passed']} pass")
    if options.reference:
        print(f"reference  {result['reference']['mode']}: {rate:.1f}/s")
        for name, ratio in ratios.items():
            print(f"{name:10} first {ratio['first']:8,.0f} x  steady {ratio['steady']:8,.0f} x")


if __name__ == "__main__":
    main()
