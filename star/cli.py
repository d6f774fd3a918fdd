"""The command line: parse, load the recipe, enter one room, print. The only module that prints.

Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted. Results go to stdout, logs and progress to stderr.
Heavy modules are imported in command bodies only, so that `star --help` stays quick.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import shlex
import sys
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from typer.exceptions import TyperException

from star import pipeline, plugins
from star.errors import StarError, UsageError
from star.manifest import Entry, Run
from star.options import Ablating, AsJson, Drawing, Exporting, Judging, Reinforcing, Teaching, overrides, spread
from star.pipeline import Stage
from star.recipe import SNAPSHOT, find, load
from star.records import plain
from star.worlds.travel.published import FOLDER

log = logging.getLogger(__name__)

app = typer.Typer(add_completion=False, rich_markup_mode=None, help="Train small models into tool-using agents.")
synth_app = typer.Typer(rich_markup_mode=None, help="Sample queries, and play them with a teacher.")
app.add_typer(synth_app, name="synth")
data_app = typer.Typer(rich_markup_mode=None, help="Fetch, build and look at the data of TravelPlanner.")
app.add_typer(data_app, name="data")


INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it."""

RunArgument = Annotated[Path, typer.Argument(metavar="RUN", help="A run directory, such as runs/demo.")]


@dataclass(frozen=True)
class Common:
    """The options that every stage has."""

    recipe: Annotated[
        str | None,
        typer.Option("--recipe", "-r", help="A shipped recipe or a file; default: the run's own, else demo."),
    ] = None
    run: Annotated[Path | None, typer.Option("--run", help="Run directory; default: runs/<name of the recipe>.")] = None
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting.")] = None
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of the run.")] = None
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print settings, inputs and outputs; do nothing.")] = False
    as_json: AsJson = False
    ancestor: Annotated[
        Path | None, typer.Option("--from", metavar="RUN", help="Share the finished stages of this run that are equal.")
    ] = None

    def open(self, settings: Sequence[str] = ()) -> Run:
        """The run that these options mean; `settings` come after those of `--set`."""
        own = self.run / SNAPSHOT if self.run else None
        path = own if self.recipe is None and own is not None and own.exists() else find(self.recipe or "demo")
        seed = [] if self.seed is None else [f"seed={self.seed}"]
        recipe = load(path, [*(self.sets or []), *seed, *settings])
        return Run.open(self.run or Path("runs") / recipe.name, recipe, self.ancestor)


class Stderr(logging.Handler):
    """Writes to what sys.stderr is at that moment, so that lines go above the progress bars and not through them."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


@app.callback()
def top(debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks and debug logs.")] = False) -> None:
    logging.basicConfig(handlers=[Stderr()], format="%(message)s", level=logging.WARNING, force=True)
    logging.getLogger("star").setLevel(logging.DEBUG if debug else logging.INFO)


@synth_app.callback(invoke_without_command=True)
@spread
def synth(context: typer.Context, common: Common) -> None:
    """Sample queries, and play those for training with the teacher. Alone it does both."""
    if context.invoked_subcommand is None:
        walk(context, common, ["queries", "trajectories"])
    elif common != Common():
        raise UsageError("star synth: options stand before the subcommand", "Put them after it")


@synth_app.command()
@spread
def queries(context: typer.Context, wanted: Drawing, common: Common) -> None:
    """Sample the queries of all splits; with --count and --out, draw certified queries into a file instead."""
    if wanted == Drawing():
        walk(context, common, ["queries"])
        return
    if common.run or common.dry_run or common.ancestor:
        raise UsageError("--run, --dry-run and --from have no effect on queries for a file", "Leave them out")
    with plugins.load("star.console:listening")(sys.stderr) as progress:
        result = plugins.load("star.draw:draw")(wanted, common.recipe, common.sets, common.seed or 0, progress)
    _show("star.draw:tables", result, common.as_json)


@synth_app.command()
@spread
def trajectories(context: typer.Context, wanted: Teaching, common: Common) -> None:
    """Play the training queries with the teacher; keep what the judge accepts."""
    walk(context, common, ["trajectories"], wanted.overrides())


@synth_app.command("export")
@spread
def export_dataset(wanted: Exporting) -> None:
    """Write the dataset of a run in the form that another trainer reads."""
    _show("star.dataset:exported", plugins.load("star.dataset:export")(wanted), wanted.as_json)


@synth_app.command()
def stats(
    run: Annotated[Path, typer.Option("--run", help="Run directory whose dataset it is.")] = Path("runs/demo"),
    as_json: AsJson = False,
) -> None:
    """Show what the dataset of a run is like: what was kept and why not, lengths, tokens, wording."""
    _show("star.corpus:tables", plugins.load("star.corpus:show")(run), as_json)


@app.command()
@spread
def sft(
    context: typer.Context,
    common: Common,
    model: Annotated[str | None, typer.Option(help="tiny, a model directory, or a name on the hub.")] = None,
) -> None:
    """Fine-tune on the kept trajectories."""
    walk(context, common, ["sft"], overrides({"sft.model": model}))


@app.command()
@spread
def rl(context: typer.Context, wanted: Reinforcing, common: Common) -> None:
    """Reinforce the SFT checkpoint by playing the RL queries."""
    run = common.open(wanted.overrides())
    enter(context, common, run, [pipeline.rollouts() if wanted.rollouts_only else pipeline.find(run.recipe, "rl")])


@app.command("eval")
@spread
def evaluate(
    context: typer.Context,
    common: Common,
    split: Annotated[str, typer.Option(help=f"{' or '.join(pipeline.SPLITS)}.")] = "validation",
    checkpoint: Annotated[str, typer.Option(help="base, sft, rl, or a model directory.")] = "rl",
) -> None:
    """Play held-out queries greedily and sampled, and measure."""
    run = common.open()
    enter(context, common, run, [pipeline.evaluation(run.recipe, checkpoint, split)])


@app.command("run")
@spread
def run_all(
    context: typer.Context,
    common: Common,
    recipe_name: Annotated[str | None, typer.Argument(metavar="[RECIPE]", help="As --recipe.")] = None,
    until: Annotated[str | None, typer.Option(metavar="STAGE", help="Stop after this stage.")] = None,
) -> None:
    """Walk all stages of a recipe; what is up to date is not done again."""
    if recipe_name is not None and common.recipe is not None:
        raise UsageError(f"both RECIPE {recipe_name} and --recipe {common.recipe} are given", "Give one of them")
    common = dataclasses.replace(common, recipe=recipe_name or common.recipe)
    run = common.open()
    stages = pipeline.stages(run.recipe)
    if until is not None:
        last = stages.index(pipeline.find(run.recipe, until))
        stages = stages[: last + 1]
    enter(context, common, run, stages)


@app.command()
@spread
def ablate(wanted: Ablating) -> int:
    """Run a recipe under several settings and seeds, and show them in one table; 1 if a run failed."""
    if wanted.dry_run:
        for words in plugins.load("star.ablate:planned")(wanted):
            print(shlex.join(["star", *words]))
        return 0
    with plugins.load("star.console:listening")(sys.stderr) as progress:
        result = plugins.load("star.ablate:ablate")(wanted, progress)
    _show("star.ablate:tables", result, wanted.as_json)
    return int(bool(result.failed))


@app.command()
def status(
    directory: RunArgument,
    verify: Annotated[bool, typer.Option("--verify", help="Hash every artifact, checkpoints too.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show which stages are done, stale, partial, missing or tampered with; 1 if any was tampered with."""
    run = Run.open(directory)
    states = run.status(pipeline.jobs(run), verify)
    entries = run.entries()
    if as_json:
        _print_json({"run": str(directory), "stages": states})
    else:
        rows = [[s.stage, s.state, s.why, _took(entries.get(s.stage))] for s in states]
        _print_table(["stage", "state", "why", "seconds"], rows)
    return int(any(s.state == "tampered" for s in states))


@app.command()
def report(
    context: typer.Context,
    directory: RunArgument,
    as_json: AsJson = False,
    show: Annotated[bool, typer.Option("--open", help="Open the report in a browser.")] = False,
) -> None:
    """Write the report of a run from what it has finished, and say where it lies."""
    run = Run.open(directory)
    entry: Entry = plugins.load("star.report:report")(run, _command(context))
    figures = plugins.load("star.report:figures")(run)
    page = run.directory / entry.output("html").path
    if as_json:
        _print_json(figures)
    else:
        _print_table(*plugins.load("star.report:table")(figures))
        print(f"\nreport: {page}")
    if show:
        webbrowser.open(page.resolve().as_uri())


@app.command()
@spread
def score(wanted: Judging) -> None:
    """Judge plans that lie in a file, or those of a finished run once more, by the official metrics."""
    with plugins.load("star.console:listening")(sys.stderr) as progress:
        result = plugins.load("star.score:score")(wanted, progress)
    _show("star.score:tables", result, wanted.as_json)


@data_app.command()
def fetch(
    to: Annotated[Path, typer.Option(help="The data folder.")] = FOLDER,
    only: Annotated[str | None, typer.Option(metavar="PART", help="database, queries or splits.")] = None,
    as_json: AsJson = False,
) -> None:
    """Bring the database, the query sets and the official splits from the Hugging Face Hub; goes on where it stopped."""
    with plugins.load("star.console:listening")(sys.stderr) as progress:
        result = plugins.load("star.fetch:fetch")(to, only, progress)
    _show("star.fetch:tables", result, as_json)


@data_app.command()
def build(
    source: Annotated[Path | None, typer.Option("--from", help="A folder of CSV files, in either layout.")] = None,
    target: Annotated[Path | None, typer.Option("--to", help="The store to write.")] = None,
    as_json: AsJson = False,
) -> None:
    """Turn the CSV files into one compact read-only store, whole or not at all."""
    with plugins.load("star.console:listening")(sys.stderr) as progress:
        result = plugins.load("star.data:build")(source, target, progress)
    _show("star.data:tables", result, as_json)


@data_app.command()
def info(
    path: Annotated[Path | None, typer.Argument(help="A data folder, a folder of CSV files, a store or a split.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what data is there, and whether it is what was fetched."""
    _show("star.data:tables", plugins.load("star.data:info")(path), as_json)


@data_app.command()
def export(
    plans: Annotated[Path, typer.Argument(metavar="PLANS", help="Answers to the queries of a split, as for star score.")],
    queries_file: Annotated[Path, typer.Option("--queries", help="The split: test.csv, or its queries as JSONL.")],
    target: Annotated[Path, typer.Option("--to", help="The file to hand in.")],
    as_json: AsJson = False,
) -> None:
    """Write answers as the file that TravelPlanner's leaderboard takes, which alone can score the test split."""
    _show("star.score:exported", plugins.load("star.score:export")(plans, queries_file, target), as_json)


def walk(context: typer.Context, common: Common, names: Sequence[str], settings: Sequence[str] = ()) -> None:
    """Do these stages of the walk."""
    run = common.open(settings)
    enter(context, common, run, [pipeline.find(run.recipe, name) for name in names])


def enter(context: typer.Context, common: Common, run: Run, stages: Sequence[Stage]) -> None:
    """Enter the rooms of some stages one after another, or only say what they would do."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise UsageError("star was started in several processes", "Start it once: it starts those of rl.launch and sft.launch")
    if common.dry_run:
        _print_plans(common, run, stages)
        return
    if run.ancestor is not None:
        run.share(pipeline.jobs(run))
    pipeline.warn_of_stale(run, stages)
    pipeline.check(run, stages)
    console = plugins.load("star.console:listening")
    entries: list[Entry] = []
    for stage in stages:
        room = plugins.load(stage.room)
        with console(sys.stderr) as run.progress:
            recipe = [] if stage.name == "report" else [run.recipe]
            entries.append(room(*recipe, run, _command(context), **stage.arguments))
        if entries[-1].fresh:
            log.info("%s: %.0f s", stage.name, entries[-1].seconds)
    if common.as_json:
        _print_json({"run": str(run.directory), "stages": [{**e.stored(), "fresh": e.fresh} for e in entries]})
        return
    paths = [a.path for a in entries[0].outputs] if len(entries) == 1 else [entry.stage for entry in entries]
    for path in paths:
        print(run.directory / path)


def _command(context: typer.Context) -> list[str]:
    return ["star", *(context.obj or {}).get("words", [])]


def _print_plans(common: Common, run: Run, stages: Sequence[Stage]) -> None:
    plans = [pipeline.plan(run, stage) for stage in stages]
    if common.as_json:
        _print_json({"run": str(run.directory), "stages": plans})
        return
    for plan in plans:
        print(yaml.safe_dump(plain(plan), sort_keys=False, allow_unicode=True, width=120))


def _print_json(value: Any) -> None:
    print(json.dumps(plain(value), ensure_ascii=False, allow_nan=False, indent=2))


def _print_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    plugins.load("star.console:table")(sys.stdout, head, rows)


def _took(entry: Entry | None) -> str:
    return f"{entry.seconds:.1f}" if entry else ""


def _show(tables: str, result: Any, as_json: bool) -> None:
    """The result of a room: as JSON, or as the tables that `tables` makes of it."""
    if as_json:
        _print_json(result)
        return
    for title, head, rows in plugins.load(tables)(result):
        print(title)
        if rows:
            _print_table(head, rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in words
    try:
        result = app(args=words or ["--help"], standalone_mode=False, prog_name="star", obj={"words": words})
    except (KeyboardInterrupt, typer.Abort):
        result = INTERRUPTED
    except StarError as error:
        return _fail(error, str(error), error.exit_code, debug)
    except OSError as error:
        return _fail(error, f"{error.filename or 'system'}: {error.strerror or error}", 1, debug)
    except TyperException as error:
        return _fail(error, f"{error.format_message().rstrip('.')}. See star --help", 2, debug)
    if result == INTERRUPTED:
        print(f"interrupted. To go on: {shlex.join(['star', *words])}", file=sys.stderr)
    return result if isinstance(result, int) else 0


def entry() -> None:
    """The console script."""
    # Threads that spin while they wait make training several times slower as soon as anything else runs on the machine.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    sys.exit(main())


def _fail(error: BaseException, message: str, code: int, debug: bool) -> int:
    if debug:
        log.debug("", exc_info=error)
    print(f"error: {' '.join(message.split())}", file=sys.stderr)
    return code
