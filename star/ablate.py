"""Ablations: one recipe under several settings and seeds, in one table.

A study is a small file: a recipe, seeds, settings for all, and named variants. For each seed everything up to SFT is done once
and shared; each variant is a run of its own beside it, made by the ordinary commands, so it has its own manifest and report, and
what is done is not done again.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate, count
from pathlib import Path
from typing import Any

from star import metrics, plugins, strictyaml
from star.errors import UsageError
from star.manifest import Run
from star.options import Ablating
from star.progress import Progress
from star.recipe import shipped_files
from star.records import parse, read_json, write_json
from star.report import PLAYED, figures

log = logging.getLogger(__name__)

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Study:
    base: str
    """A recipe."""
    variants: dict[str, Settings]
    """Name -> dotted settings of RL."""
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    settings: Settings = field(default_factory=dict)
    """Dotted settings of all runs."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One line of the table: a variant, or SFT alone, in one pass."""

    variant: str
    decoding: str
    successes: dict[int, float]
    """Seed -> share of the queries that succeed."""
    n: int
    """Queries of all seeds."""
    success: float
    interval: tuple[float, float]
    """95 %, Wilson, over the queries of all seeds: it covers the choice of queries, not the chance in training."""
    mode: str
    tool_calls: float | None
    """Calls that the rollouts of RL made, those of forks once, those of replaced groups included; mean over the seeds, None
    for SFT."""
    at_equal_calls: float | None
    """Share of training rollouts that succeed once as many tool calls were made as the thriftiest variant made in all: over the
    batches of the last 15 % of these calls; mean over the seeds. What DAPO replaced is not among the rollouts."""
    minutes: float | None
    """That RL took; mean over the seeds."""
    notes: list[str]
    """Signs of collapse."""


@dataclass(frozen=True, slots=True)
class Ablation:
    study: Study
    trials: list[Trial]
    failed: dict[str, str]
    """Run -> what it failed of."""


def find(name: str) -> Path:
    """The file of a study by its path, or one that comes with star by its name."""
    if Path(name).is_file():
        return Path(name)
    known = {path.stem: path for path in sorted((shipped_files() / "ablations").glob("*.yaml"))}
    if name not in known:
        raise plugins.unknown(f"{name}: no such file, and no study of this name", name, known)
    return known[name]


def read(name: str, seeds: str | None = None) -> Study:
    """A study, perhaps with other seeds ("0,1")."""
    path = find(name)
    values = strictyaml.read(path)
    if seeds is not None:
        try:
            values["seeds"] = [int(part) for part in seeds.split(",")]
        except ValueError:
            raise UsageError(f"--seeds {seeds}: not numbers with commas between", "Example: --seeds 0,1,2") from None
    study = parse(Study, values, str(path))
    if not study.variants or not study.seeds:
        raise UsageError(f"{path}: needs variants and seeds", "Name at least one of each")
    return study


def chains(study: Study, directory: Path, seed: int) -> dict[str, list[list[str]]]:
    """Run -> the commands that make it, one after another: first what the variants of a seed share, then each variant."""
    common = ["--recipe", study.base, "--seed", str(seed), *_sets(study.settings)]
    shared = directory / f"shared-{seed}"
    place = ["--run", str(shared)]
    found = {shared.name: [["run", *common, *place, "--until", "sft"], ["eval", *common, *place, "--checkpoint", "sft"]]}
    for name, settings in study.variants.items():
        own = [*common, *_sets(settings), "--run", str(directory / f"{name}-{seed}"), "--from", str(shared)]
        found[f"{name}-{seed}"] = [["rl", *own], ["eval", *own, "--checkpoint", "rl"]]
    return found


def _sets(settings: Settings) -> list[str]:
    return [word for key, value in settings.items() for word in ("--set", f"{key}={json.dumps(value)}")]


def planned(wanted: Ablating) -> list[list[str]]:
    """The commands of a study, in order."""
    study = read(wanted.study, wanted.seeds)
    return [words for seed in study.seeds for chain in chains(study, wanted.place, seed).values() for words in chain]


def ablate(wanted: Ablating, progress: Progress) -> Ablation:
    """Do all runs of a study, some at a time; the table is also in `ablation.json`.

    A run that fails leaves a note in the table and its messages in a `.log` beside it; the others go on.
    """
    study, directory, jobs = read(wanted.study, wanted.seeds), wanted.place, wanted.jobs
    directory.mkdir(parents=True, exist_ok=True)
    plans = [chains(study, directory, seed) for seed in study.seeds]
    total, faults = sum(map(len, plans)), dict[str, str]()
    done = count(1)

    def work(name: str, chain: list[list[str]]) -> None:
        fault = _run(chain, directory / f"{name}.log", jobs)
        if fault:
            faults[name] = fault
            log.warning("%s failed: %s", name, fault)
        progress("runs", next(done), total, name)

    progress("runs", 0, total)
    with ThreadPoolExecutor(jobs) as pool:
        for first in (True, False):
            waves = [(name, chain) for plan in plans for name, chain in plan.items() if name.startswith("shared-") is first]
            list(pool.map(lambda pair: work(*pair), waves))
    result = Ablation(study, table(study, directory), faults)
    write_json(directory / "ablation.json", result)
    return result


def _run(chain: Sequence[Sequence[str]], log_file: Path, jobs: int) -> str | None:
    """Do some commands; what the first of them that fails says."""
    threads = str(max(1, (os.cpu_count() or 1) // jobs))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE"}
    with log_file.open("w", encoding="utf-8") as file:
        for words in chain:
            line = [sys.executable, "-m", "star", *words]
            done = subprocess.run(line, check=False, stdout=file, stderr=subprocess.STDOUT, env=environment)
            if done.returncode:
                said = log_file.read_text(encoding="utf-8").splitlines()
                errors = [text.removeprefix("error: ") for text in said if text.startswith("error: ")]
                return errors[-1] if errors else f"exit code {done.returncode}, see {log_file}"
    return None


def table(study: Study, directory: Path) -> list[Trial]:
    """The lines of SFT and of each variant, over the seeds that have finished."""
    found, every = [], dict[str, dict[int, Measured]]()
    for variant in ("sft", *study.variants):
        runs = {seed: directory / f"{'shared' if variant == 'sft' else variant}-{seed}" for seed in study.seeds}
        every[variant] = {seed: _measured(run, variant) for seed, run in runs.items()}
    budgets = {seed: _least([seen[seed].tool_calls for seen in every.values()]) for seed in study.seeds}
    for variant, seen in every.items():
        notes = [f"seed {seed}: {sign}" for seed, one in seen.items() for sign in one.signs]
        for decoding in PLAYED:
            done = {seed: one.passes[decoding] for seed, one in seen.items() if decoding in one.passes}
            if not done:
                continue
            n = sum(row["n"] for row in done.values())
            rate = metrics.wilson(round(sum(row["n"] * row["success"] for row in done.values())), n)
            successes = {seed: row["success"] for seed, row in done.items()}
            calls, minutes = (_mean([getattr(seen[seed], what) for seed in done]) for what in ("tool_calls", "minutes"))
            equal = _mean([seen[seed].success_within(budgets[seed]) for seed in done])
            mode, interval = next(iter(done.values()))["mode"], (rate.low, rate.high)
            found.append(Trial(variant, decoding, successes, n, rate.value, interval, mode, calls, equal, minutes, notes))
    return found


def _least(values: Sequence[float | None]) -> float:
    return min((value for value in values if value is not None), default=0.0)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


@dataclass(frozen=True, slots=True)
class Measured:
    """What one run has of one variant."""

    passes: dict[str, Any] = field(default_factory=dict)
    """Figures by pass."""
    signs: list[str] = field(default_factory=list)
    tool_calls: float | None = None
    minutes: float | None = None
    learning: list[tuple[float, float]] = field(default_factory=list)
    """(tool calls so far, share of rollouts that succeed) of each batch."""

    def success_within(self, budget: float) -> float | None:
        """Mean success of the batches that end in the last 15 % of the budget, and at least of the last one within it."""
        within = [(calls, success) for calls, success in self.learning if calls <= budget]
        late = [success for calls, success in within if calls > 0.85 * budget] or [success for _, success in within[-1:]]
        return _mean(late)


def _measured(directory: Path, variant: str) -> Measured:
    if not (directory / "manifest.json").exists():
        return Measured()
    run = Run.open(directory)
    if variant == "sft":
        return Measured(figures(run).get("sft", {}))
    entry = run.entries().get("rl")
    if entry is None:
        return Measured()
    rows = read_json(run.path("rl", "rl-log"))["steps"]
    rollouts = run.recipe.rl.queries * run.recipe.rl.group
    played = [row for row in rows if "rollout/tool_calls" in row]
    made = [row["rollout/tool_calls"] * rollouts + row.get("rollout/refilled_tool_calls", 0.0) for row in played]
    learning = list(zip(accumulate(made), (row["rewards/success/mean"] for row in played), strict=True))
    return Measured(figures(run).get("rl", {}), entry.metrics.get("warnings", []), sum(made), entry.seconds / 60, learning)


def tables(result: Ablation) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, head, rows) for a terminal; rates in percent."""
    trials = result.trials
    seeds = sorted({seed for trial in trials for seed in trial.successes})
    head = [
        "variant",
        "decoding",
        *(f"seed {seed}" for seed in seeds),
        "success %",
        "95 %",
        "n",
        "mode",
        "RL tool calls",
        "at equal calls %",
        "RL minutes",
        "notes",
    ]
    rows = [
        [
            trial.variant,
            trial.decoding,
            *(f"{100 * trial.successes[seed]:.1f}" if seed in trial.successes else "" for seed in seeds),
            f"{100 * trial.success:.1f}",
            f"[{100 * trial.interval[0]:.1f}, {100 * trial.interval[1]:.1f}]",
            str(trial.n),
            trial.mode,
            "" if trial.tool_calls is None else f"{trial.tool_calls:,.0f}",
            "" if trial.at_equal_calls is None else f"{100 * trial.at_equal_calls:.1f}",
            "" if trial.minutes is None else f"{trial.minutes:.1f}",
            "; ".join(trial.notes),
        ]
        for trial in trials
    ]
    found = [("Success on the validation queries", head, rows)]
    if result.failed:
        found.append(("\nFailed runs", ["run", "what it failed of"], [[run, fault] for run, fault in result.failed.items()]))
    return found
