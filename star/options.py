"""Options of commands that have many, as records: the command line spreads a record into options and hands it on whole."""

from __future__ import annotations

import dataclasses
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from star import plugins

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]


@dataclass(frozen=True, slots=True)
class Judging:
    """Which plans to judge, by what, and where the verdicts go."""

    plans: Annotated[Path, typer.Argument(metavar="PLANS", help="JSONL of plans, predictions or a submission; or a run.")]
    mode: Annotated[str | None, typer.Option(help="strict, official, agent-star or all; default: the recipe's, else strict.")] = (
        None
    )
    database: Annotated[
        Path | None, typer.Option(help="A built store or a folder of CSV files; default: the run's, else the fetched one.")
    ] = None
    queries: Annotated[Path | None, typer.Option(help="The queries that were asked: JSONL, or CSV of a split.")] = None
    out: Annotated[Path | None, typer.Option(help="Write a verdict a plan there, as JSONL.")] = None
    formatter_url: Annotated[
        str | None, typer.Option(metavar="URL", help="OpenAI-compatible server that puts free text into typed plans.")
    ] = None
    formatter_model: Annotated[str | None, typer.Option(metavar="MODEL", help="Model that does it.")] = None
    recipe: Annotated[str | None, typer.Option("--recipe", "-r", help="Recipe whose world judges.")] = None
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of it.")] = None
    as_json: AsJson = False


@dataclass(frozen=True, slots=True)
class Drawing:
    """Certified queries to draw into a file, outside any run."""

    count: Annotated[int | None, typer.Option(min=1, help="Draw so many certified queries into --out, outside any run.")] = None
    out: Annotated[Path | None, typer.Option(help="File for them: a row a query with facts, text and a plan.")] = None
    database: Annotated[Path | None, typer.Option(help="Store or CSV folder; default: the world of the recipe.")] = None
    mix: Annotated[str | None, typer.Option(metavar="E:M:H", help="Weights of easy, medium, hard; default 4:3:3.")] = None
    slack: Annotated[str | None, typer.Option(metavar="LOW:HIGH", help="Budget over the cheapest cost; default 1.05:8.")] = None
    phraser_url: Annotated[
        str | None, typer.Option(metavar="URL", help="OpenAI-compatible server that words the queries; default: our own forms.")
    ] = None
    phraser_model: Annotated[str | None, typer.Option(metavar="MODEL", help="Model that does it.")] = None
    disjoint_from: Annotated[list[Path] | None, typer.Option(metavar="FILE", help="No trip of this file; repeatable.")] = None


@dataclass(frozen=True, slots=True)
class Teaching:
    """How far the teacher goes."""

    samples: Annotated[int | None, typer.Option(min=1, help="Tries a query; the best accepted, shortest, is kept.")] = None
    max_queries: Annotated[int | None, typer.Option(min=1, help="Play only so many of the training queries.")] = None
    max_cost: Annotated[float | None, typer.Option(metavar="DOLLARS", help="Begin no query once this is spent.")] = None

    def overrides(self) -> list[str]:
        names = {"samples": "synth.samples", "max_queries": "synth.max_queries", "max_cost": "synth.teacher.max_cost"}
        return overrides({key: getattr(self, name) for name, key in names.items()})


@dataclass(frozen=True, slots=True)
class Reinforcing:
    """How RL plays and learns."""

    algo: Annotated[str | None, typer.Option(help=f"{', '.join(plugins.TABLE['algorithm'])}, or module:Class.")] = None
    reward: Annotated[str | None, typer.Option(help=f"{', '.join(plugins.TABLE['reward'])}, or module:Class.")] = None
    tool_failure_rate: Annotated[float | None, typer.Option(metavar="SHARE", help="Of tool calls, on purpose.")] = None
    processes: Annotated[int | None, typer.Option(min=1, help="Train in so many; default: one a GPU.")] = None
    rollouts_only: Annotated[bool, typer.Option("--rollouts-only", help="Only play, and leave the groups in a file.")] = False
    from_rollouts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Train on the groups of such a file; play nothing.")
    ] = None

    def overrides(self) -> list[str]:
        names = {"algo": "rl.algo", "reward": "rl.reward", "tool_failure_rate": "rl.tool_failure_rate"}
        settings = overrides({key: getattr(self, name) for name, key in names.items()})
        recorded = None if self.from_rollouts is None else str(self.from_rollouts)
        return [*settings, *overrides({"rl.launch.processes": self.processes, "rl.recorded": recorded})]


@dataclass(frozen=True, slots=True)
class Ablating:
    """Which study to run, and how."""

    study: Annotated[str, typer.Argument(metavar="STUDY", help="A study by its name, such as algorithms, or its file.")]
    directory: Annotated[Path | None, typer.Option("--run", help="Where the runs go; default: runs/<study>.")] = None
    seeds: Annotated[str | None, typer.Option(metavar="N,N,...", help="Other seeds than the study's.")] = None
    jobs: Annotated[int, typer.Option(min=1, help="Runs at a time.")] = 1
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the commands; do nothing.")] = False
    as_json: AsJson = False

    @property
    def place(self) -> Path:
        return self.directory or Path("runs") / Path(self.study).stem


@dataclass(frozen=True, slots=True)
class Exporting:
    """A dataset for another trainer."""

    form: Annotated[str, typer.Option("--format", metavar="FORMAT", help="messages (TRL), sharegpt (LLaMA-Factory) or parquet.")]
    out: Annotated[Path, typer.Option(help="The file to write.")]
    run: Annotated[Path, typer.Option("--run", help="Run directory whose dataset it is.")] = Path("runs/demo")
    as_json: AsJson = False


def overrides(options: Mapping[str, str | float | None]) -> list[str]:
    """Settings as `--set` takes them, of the options that were given; text is quoted, so that it stays text."""
    return [f"{key}={json.dumps(value)}" for key, value in options.items() if value is not None]


def spread(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """A command in which each parameter that is a record of options stands for the options themselves, after its own."""
    own = inspect.signature(function, eval_str=True)
    records: dict[str, Any] = {n: p.annotation for n, p in own.parameters.items() if dataclasses.is_dataclass(p.annotation)}
    inner = {name: inspect.signature(record, eval_str=True).parameters for name, record in records.items()}

    def command(**options: Any) -> int | None:
        for name, record in records.items():
            options[name] = record(**{key: options.pop(key) for key in inner[name]})
        return function(**options)

    flat = [parameter for name, parameter in own.parameters.items() if name not in inner]
    flat += [parameter for record in inner.values() for parameter in record.values()]
    flat = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in flat]
    command.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in flat}
    command.__name__, command.__doc__ = function.__name__, function.__doc__
    return command
