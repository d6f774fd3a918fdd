"""RL: improve a checkpoint by playing queries and rewarding what the judge says."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

from star import launch, pipeline, plugins
from star.errors import DataError, StarError, UsageError
from star.journal import play
from star.manifest import Entry, Run
from star.pipeline import job
from star.progress import Progress
from star.protocols import World
from star.recipe import build_world
from star.records import read_jsonl, write_json, write_jsonl
from star.rollout import Group, Rollout
from star.settings import Recipe, Rl
from star.stage import Work
from star.train import checkpoints, ranks, samplers, together, trackers
from star.train import model as models
from star.train.arguments import passes, steps
from star.train.dev import Dev, Keep, Row, Told
from star.train.grpo import Setup, StarGRPOTrainer
from star.train.playing import Recorded, batches, shared
from star.train.tokens import Renderer
from star.train.watch import Watch, collapses
from star.types import Query, Trajectory

logger = logging.getLogger(__name__)


def check(recipe: Recipe) -> None:
    """Raises what would stop RL on this machine and is known before its queries are made."""
    _check_machine(recipe.rl)
    if recipe.rl.recorded is None:
        _check_batch(recipe.rl, recipe.synth.rl, "synth.rl")


def _check_machine(settings: Rl) -> None:
    launch.check(settings.launch, "rl.launch")
    if settings.launch.accelerate is None:
        passes(settings, launch.processes(settings.launch))
    for name in settings.report_to:
        plugins.need(name, "rl.report_to")
    if settings.recorded is None or settings.eval_steps:
        samplers.check(settings.rollouts, "rl.rollouts", launch.sharded(settings.launch))


def rl(recipe: Recipe, run: Run, command: list[str]) -> Entry:
    """Train from the SFT checkpoint; leave the checkpoint that is best on the dev queries."""

    def body(work: Work) -> None:
        _check_machine(recipe.rl)
        _data(recipe, work)
        # What is wrong with the settings is told by now, before any other process starts.
        launch.train("star.rl:train", recipe.rl.launch, recipe, work, run.progress)

    return run.perform(job(recipe, "rl", command), body)


def rollouts(recipe: Recipe, run: Run, command: list[str]) -> Entry:
    """Only play what RL would play with the SFT checkpoint, batch by batch, and leave it as groups to train on."""
    if recipe.rl.recorded is not None:
        raise UsageError("--rollouts-only plays, and rl.recorded says not to", "Leave out one of them")

    def body(work: Work) -> None:
        trainer = _trainer(recipe, work, [])
        s = trainer.setup
        count = steps(s.settings, len(s.queries)) // s.settings.updates
        order = batches(len(s.queries), s.settings.queries, s.seed)
        asked = [[s.queries[number] for number in next(order)] for _ in range(count)]
        groups = [
            Group(query, s.settings.group, f"rl/{step}/{place}/{query.id}")
            for step, batch in enumerate(asked)
            for place, query in enumerate(batch)
        ]
        journal = work.directory / "journal.jsonl"
        with closing(trainer):
            rollout = trainer.rollout(trainer.policy(s.settings.temperature, s.seed), s.algorithm)
            rows = play(rollout, groups, journal, s.settings.queries, partial(run.progress, "rollouts"))
        write_jsonl(work.make("groups", "groups.jsonl"), rows)
        work.rows("groups", len(rows))
        good = sum(row.score is not None and row.score.success for row in rows)
        work.metrics.update(groups=len(groups), rollouts=len(rows), success=good / len(rows))
        journal.unlink()
        shutil.rmtree(work.directory / "trainer")

    return run.perform(job(recipe, pipeline.rollouts(), command), body)


def train(recipe: Recipe, work: Work, progress: Progress) -> None:
    """RL in one process, or as one of several; the first one writes."""
    dev_queries = read_jsonl(work.take("queries-dev"), Query)
    scratch = work.directory / "trainer"
    dev = Dev(partial(_play_dev, dev_queries), recipe.rl.eval_steps, scratch)
    keep = Keep(work.make("rollouts", "rollouts.jsonl"))
    watching = [dev, keep, Told(partial(progress, "rl")), Watch(lambda: dev.rows, recipe.rl.patience)]
    scratch.mkdir(exist_ok=True)
    title = trackers.title(scratch, recipe.name)
    with trackers.opened(recipe.rl.report_to, work.directory, title) as tracking:
        trainer = _trainer(recipe, work, [*tracking, *watching], title)
        dev.trainer = keep.trainer = trainer
        with closing(trainer):
            if recipe.rl.probe:
                _narrow(trainer, work, progress)
            _train(trainer, scratch)
            together.wait()
    step = dev.best if dev.rows else trainer.state.global_step
    if ranks.rank():
        return
    together.alone()
    best = dev.best_directory if dev.rows else checkpoints.trained(trainer)
    base = work.take("sft-checkpoint")
    model, tokenizer = models.stored(best, recipe.rl.bf16, base), trainer.setup.renderer.tokenizer
    models.save(model, tokenizer, work.make("rl-checkpoint", "model"), base.relative_to(work.root).as_posix(), step)
    history = trainer.state.log_history
    write_json(work.make("rl-log", "log.json"), {"steps": history, "dev": dev.rows, "best": step})
    last: dict[str, Any] = next((row for row in reversed(history) if "reward" in row), {})
    work.metrics["warnings"] = collapses(history, dev.rows)
    work.metrics.update(steps=trainer.state.global_step, best_step=step, dev=dev.rows.get(step), last=_summary(last))
    shutil.rmtree(scratch)


def _trainer(recipe: Recipe, work: Work, callbacks: list[Any], title: str | None = None) -> StarGRPOTrainer:
    """The trainer over the SFT checkpoint, with its files in the stage's `trainer/`."""
    settings = recipe.rl
    queries, recorded = _data(recipe, work)
    models.seeded(recipe.seed)
    model, tokenizer = models.load(work.take("sft-checkpoint"), models.halved(settings))
    if settings.freeze_embeddings:
        model.get_input_embeddings().weight.requires_grad_(False)
    if settings.lora is not None:
        model = models.lora(model, settings.lora)
    world = world_of(recipe)
    setup = Setup(
        settings=settings,
        world=world,
        judge=partial(world.score, mode=settings.mode),
        algorithm=plugins.build("algorithm", settings.algo),
        reward=plugins.build("reward", settings.reward),
        renderer=Renderer(tokenizer),
        queries=queries,
        seed=recipe.seed,
        recorded=recorded,
        checkpoint=str(work.take("sft-checkpoint")),
        title=title,
    )
    scratch = work.directory / "trainer"
    scratch.mkdir(exist_ok=True)
    return StarGRPOTrainer(model, setup, scratch, callbacks=callbacks)


def world_of(recipe: Recipe) -> World:
    """The world in which RL plays: the recipe's, perhaps with tools that fail more often."""
    rate = recipe.rl.tool_failure_rate
    world: World = build_world(recipe, **({} if rate is None else {"tool_failure_rate": rate}))
    return world


def _data(recipe: Recipe, work: Work) -> tuple[list[Query], Recorded | None]:
    """The queries of RL, and the groups to train on instead of playing them. Raises UsageError for less than a batch."""
    settings = recipe.rl
    queries = _disjoint(work)
    recorded = Recorded.read(Path(settings.recorded), settings.group, settings.mode) if settings.recorded else None
    held, source = (len(recorded), settings.recorded) if recorded else (len(queries), work.take("queries-rl"))
    _check_batch(settings, held, f"what {source} holds")
    return queries, recorded


def _check_batch(settings: Rl, held: int, what: str) -> None:
    if held < settings.queries:
        raise UsageError(
            f"rl.queries = {settings.queries} is more than {what}, which is {held}", "Lower it, or make more of them"
        )


def _disjoint(work: Work) -> list[Query]:
    """The queries of RL. Raises DataError for one that SFT has seen."""
    queries = read_jsonl(work.take("queries-rl"), Query)
    seen = {key for query in read_jsonl(work.take("queries-train"), Query) for key in (query.id, query.text)}
    both = next((number for number, query in enumerate(queries, 1) if {query.id, query.text} & seen), None)
    if both is not None:
        what = f"{work.take('queries-rl')}:{both}: query {queries[both - 1].id} is one of those for SFT as well"
        raise DataError(what, "Sample the queries again: star synth queries")
    return queries


def _narrow(trainer: StarGRPOTrainer, work: Work, progress: Progress) -> None:
    """Play each query a few times and train only on those that are worth it."""
    s = trainer.setup
    rollout = trainer.rollout(trainer.policy(s.settings.temperature, s.seed, "probe"), None)
    journal = work.directory / "trainer" / f"probe-{ranks.rank()}.jsonl"

    def played(queries: Sequence[Query]) -> list[Trajectory]:
        groups = [Group(query, s.settings.probe, f"probe/{query.id}") for query in queries]
        return play(rollout, groups, journal, s.settings.queries, partial(progress, "probe"))

    solved = dict.fromkeys((query.id for query in s.queries), 0)
    for row in shared(played, s.queries):
        solved[row.query_id] += row.score is not None and row.score.success
    wrong = {"always": s.settings.probe, "never": 0}
    dropped = {wrong[name] for name in s.settings.drop}
    kept = [query for query in s.queries if solved[query.id] not in dropped]
    found = {name: sum(times == count for times in solved.values()) for name, count in wrong.items()}
    work.metrics["probe"] = {"rollouts": s.settings.probe, **found, "kept": len(kept)}
    logger.info("probe: %d of %d queries are left; solved always: %d, never: %d", len(kept), len(solved), *found.values())
    if len(kept) < s.settings.queries:
        what = f"the probe leaves {len(kept)} of {len(solved)} queries, fewer than rl.queries = {s.settings.queries}"
        raise StarError(what, "Sample more with synth.rl, drop less with rl.drop, or lower rl.queries")
    if ranks.rank() == 0:
        write_json(work.make("probe", "probe.json"), {key: times / s.settings.probe for key, times in solved.items()})
    trainer.narrow(kept)


def _train(trainer: StarGRPOTrainer, scratch: Path) -> None:
    checkpoints.finish(trainer, scratch)
    done, wanted = trainer.state.global_step, trainer.state.max_steps
    if done < wanted:
        raise StarError(f"RL ended at step {done} of {wanted}", "Run the same command again to go on")


def _play_dev(queries: Sequence[Query], trainer: StarGRPOTrainer) -> Row:
    """Success on the dev queries, greedy and sampled; the value is their mean."""
    row: Row = {}
    for name, temperature in (("greedy", 0.0), ("sampled", 1.0)):
        rollout = trainer.rollout(trainer.policy(temperature, trainer.setup.seed, "dev"), None)

        def played(share: Sequence[Query], name: str = name, rollout: Rollout = rollout) -> list[Trajectory]:
            return [group[0] for group in rollout.run([Group(query, 1, f"dev-{name}/{query.id}") for query in share])]

        rows = shared(played, queries)
        trainer.rest()
        row[name] = sum(t.score is not None and t.score.success for t in rows) / max(1, len(rows))
    return {**row, "value": sum(row.values()) / len(row)}


def _summary(row: dict[str, Any]) -> dict[str, float]:
    names = ("reward", "entropy", "rewards/success/mean", "rollout/tool_calls", "rollout/forks", "frac_reward_zero_std")
    return {name: float(row[name]) for name in names if name in row}
