"""The walk: which stages there are, what each depends on, takes and makes, and which room does it."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from star.errors import UsageError
from star.manifest import Entry, Job, Run
from star.plugins import load, unknown
from star.recipe import effective
from star.settings import Recipe

log = logging.getLogger(__name__)

SPLITS = ("validation", "dev")
"""Splits that `star eval` plays."""

CHECKPOINTS = ("base", "sft", "rl")
"""Checkpoints by name: before training, after SFT, after RL."""

PLAYED = ("predictions", "trajectories-greedy", "trajectories-sampled", "scores", "report")
"""What an evaluation makes."""


@dataclass(frozen=True, slots=True)
class Stage:
    name: str
    room: str
    """The function that does it, as "module:function"."""
    settings: tuple[str, ...]
    """Dotted keys of the recipe it depends on."""
    takes: Mapping[str, str] = field(default_factory=dict)
    """Label of an input -> the stage that makes it."""
    makes: tuple[str, ...] = ()
    """Kinds of its outputs."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    """Keyword arguments of the room."""
    check: str = ""
    """The function that raises what would stop the room on this machine, before its inputs are made."""
    grows: tuple[str, ...] = ()
    """Of `settings` and "inputs.LABEL", what may change without loss of what was done before."""


def stages(recipe: Recipe) -> tuple[Stage, ...]:
    """All stages of a recipe in the order of the walk."""
    tiny = recipe.sft.model == "tiny"
    queries = Stage(
        "queries",
        "star.synth:queries",
        ("world", "synth.train", "synth.rl", "synth.dev", "synth.validation"),
        makes=("queries-train", "queries-rl", "queries-dev", "queries-validation", "world"),
    )
    trajectories = Stage(
        "trajectories",
        "star.synth:trajectories",
        ("world", "synth.teacher", "synth.samples", "synth.max_queries", "synth.mode"),
        {"queries-train": "queries"},
        ("trajectories", "dataset", "card"),
        grows=("synth.samples", "synth.max_queries", "synth.mode", "synth.teacher.max_cost", "inputs.queries-train"),
    )
    sft = Stage(
        "sft",
        "star.sft:sft",
        ("sft", "world") if tiny else ("sft",),
        {"dataset": "trajectories"},
        (*(("base",) if tiny else ()), "sft-checkpoint", "sft-log"),
        check="star.sft:check",
    )
    rl = Stage(
        "rl",
        "star.rl:rl",
        ("rl", "world"),
        {"sft-checkpoint": "sft", "queries-train": "queries", "queries-rl": "queries", "queries-dev": "queries"},
        ("rl-checkpoint", "rl-log", "rollouts", *(("probe",) if recipe.rl.probe else ())),
        check="star.rl:check",
    )
    evaluations = tuple(evaluation(recipe, checkpoint) for checkpoint in CHECKPOINTS)
    walk = (queries, trajectories, sft, rl, *evaluations)
    return (*walk, _report({stage.name: stage.makes for stage in walk}))


def rollouts() -> Stage:
    """The stage that only plays what RL would play at its beginning."""
    takes = {"sft-checkpoint": "sft", "queries-train": "queries", "queries-rl": "queries"}
    return Stage("rollouts", "star.rl:rollouts", ("rl", "world"), takes, ("groups",))


def evaluation(recipe: Recipe, checkpoint: str = "rl", split: str = "validation") -> Stage:
    """The stage that evaluates a checkpoint (base, sft, rl, or the path of a model directory) on a split."""
    if split not in SPLITS:
        raise unknown(f"--split {split}: this split is not for evaluation", split, SPLITS)
    takes = {f"queries-{split}": "queries"}
    settings: tuple[str, ...] = ("eval", "world")
    if checkpoint in ("sft", "rl"):
        takes[f"{checkpoint}-checkpoint"] = checkpoint
    elif checkpoint == "base" and recipe.sft.model == "tiny":
        takes["base"] = "sft"
    elif checkpoint == "base":
        settings = (*settings, "sft.model")
    elif not Path(checkpoint).is_dir():
        what = f"--checkpoint {checkpoint}: neither {', '.join(CHECKPOINTS)} nor a model directory"
        raise UsageError(what, "Name one of these, or the path of a directory with config.json")
    suffix = "" if split == "validation" else f"-{split}"
    arguments = {"checkpoint": checkpoint, "split": split}
    return Stage(f"eval-{_slug(checkpoint)}{suffix}", "star.eval:evaluate", settings, takes, PLAYED, arguments, "star.eval:check")


def find(recipe: Recipe, name: str) -> Stage:
    """A stage of the walk by its name."""
    walk = {stage.name: stage for stage in stages(recipe)}
    if name not in walk:
        raise unknown(f"{name}: no such stage", name, walk)
    return walk[name]


def job(recipe: Recipe, stage: Stage | str, command: list[str]) -> Job:
    """What a stage has to do under a recipe; enters `Run.perform`."""
    stage = find(recipe, stage) if isinstance(stage, str) else stage
    config = _slice(effective(recipe), stage.settings)
    if stage.arguments.get("checkpoint", "base") not in CHECKPOINTS:
        config["checkpoint"] = str(Path(stage.arguments["checkpoint"]).resolve())
    if stage.name == "rl" and recipe.rl.recorded is not None:
        config["rl"]["recorded"] = _digest(Path(recipe.rl.recorded))
    return Job(stage.name, command, config, dict(stage.takes), recipe.seed, stage.grows)


def report_job(run: Run, command: list[str]) -> Job:
    """The report over whatever stages the run has finished."""
    made = {name: tuple(a.kind for a in entry.outputs) for name, entry in run.entries().items()}
    return job(run.recipe, _report(made), command)


def jobs(run: Run) -> list[Job]:
    """The jobs of the whole walk as the run's recipe wants them, for `Run.status`."""
    walk = [job(run.recipe, stage, []) for stage in stages(run.recipe) if stage.name != "report"]
    return [*walk, report_job(run, [])]


def check(run: Run, walk: Sequence[Stage]) -> None:
    """Raises what would stop a later stage of a walk on this machine, before those ahead of it take their hours."""
    done = {state.stage for state in run.status(jobs(run)) if state.state == "done"}
    for stage in [stage for stage in walk if stage.name not in done][1:]:
        if stage.check:
            load(stage.check)(run.recipe)


def warn_of_stale(run: Run, walk: Sequence[Stage]) -> None:
    """Say so if a stage builds on work that the recipe no longer means."""
    used = {maker for stage in walk for maker in stage.takes.values()} - {stage.name for stage in walk}
    for state in run.status(jobs(run)):
        if state.state == "stale" and state.stage in used:
            log.warning("%s is stale (%s) and is used as it is; star run does it again", state.stage, state.why)


def plan(run: Run, stage: Stage) -> dict[str, Any]:
    """What a stage would do: its settings, where its inputs come from, what it would leave. Reads the manifest only."""
    entries = run.entries()
    wanted = job(run.recipe, stage, [])
    state = next(state for state in run.status([*jobs(run), wanted]) if state.stage == stage.name)
    return {
        "stage": stage.name,
        "state": state.state,
        "why": state.why,
        "room": stage.room,
        "seed": wanted.seed,
        "settings": dict(wanted.config),
        "inputs": {label: _where(entries.get(maker), label, maker) for label, maker in stage.takes.items()},
        "outputs": dict.fromkeys(stage.makes, f"{run.directory / stage.name}/"),
    }


def _report(made: Mapping[str, Collection[str]]) -> Stage:
    """The report over stages that make these kinds."""
    takes = {}
    for maker, kinds in made.items():
        takes.update({f"{maker}/{kind}": maker for kind in kinds if maker.startswith("eval-")})
        takes.update({kind: maker for kind in kinds if kind in ("sft-log", "rl-log", "rollouts", "queries-validation")})
    return Stage("report", "star.report:report", ("name",), takes, ("html", "figures"))


def _slice(settings: dict[str, Any], keys: tuple[str, ...]) -> dict[str, Any]:
    """The part of nested settings under dotted keys, still nested."""
    part: dict[str, Any] = {}
    for key in keys:
        *parents, last = key.split(".")
        source, target = settings, part
        for parent in parents:
            source, target = source[parent], target.setdefault(parent, {})
        target[last] = source[last]
    return part


def _slug(checkpoint: str) -> str:
    """A checkpoint as part of a directory name; paths get a digest, so that they collide with nothing."""
    if checkpoint in CHECKPOINTS:
        return checkpoint
    path = Path(checkpoint).resolve()
    word = re.sub(r"[^A-Za-z0-9]+", "-", path.name).strip("-") or "model"
    return f"{word}-{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"


def _digest(path: Path) -> str:
    """Hash of a file that is no artifact of a run, so that a stage knows when it changes."""
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else f"{path}: no such file"


def _where(entry: Entry | None, label: str, maker: str) -> str:
    kind = label.rpartition("/")[2]
    found = next((a for a in entry.outputs if a.kind == kind), None) if entry else None
    return found.path if found else f"not made yet, by stage {maker}"
