"""Evaluation: play the queries of a split with a checkpoint, greedily and sampled, and judge every plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Any

from star import metrics, plugins
from star.journal import play
from star.manifest import Entry, Run
from star.pipeline import evaluation, job
from star.policies.drawing import Draws
from star.recipe import build_world
from star.records import plain, read_jsonl, write_json, write_jsonl
from star.rollout import Group, Rollout
from star.settings import Recipe
from star.stage import Work
from star.train import model as models
from star.train import samplers
from star.train.samplers import Sampler
from star.types import Prediction, Query, Report, Trajectory

CHUNK = 256
"""Queries between two writes to disk."""
OTHER_WORLD = 1000
"""Added to the seed for the world that the transfer measurement plays in."""


def check(recipe: Recipe) -> None:
    """Raises what would stop an evaluation on this machine and is known before there is a model."""
    samplers.check(recipe.eval.rollouts, "eval.rollouts")


def evaluate(recipe: Recipe, run: Run, command: list[str], checkpoint: str = "rl", split: str = "validation") -> Entry:
    """Two passes over a split: greedy (temperature 0) and sampled. With `eval.transfer` two more, to know what was learned."""
    stage = evaluation(recipe, checkpoint, split)

    def body(work: Work) -> None:
        source = models.source(_source(recipe, work, checkpoint), recipe.eval.limits.context, recipe.eval.bf16)
        queries = read_jsonl(work.take(f"queries-{split}"), Query)
        passes = {"greedy": 0.0, "sampled": recipe.eval.temperature}
        reports: dict[str, Any] = {}
        played: dict[str, list[Trajectory]] = {}
        with closing(plugins.build("sampler", recipe.eval.rollouts).open(source)) as sampler:
            player = _Player(recipe, run, work, stage.name, sampler)
            for name, temperature in passes.items():
                played[name] = player.play(name, queries, temperature)
                write_jsonl(work.make(f"trajectories-{name}", f"{name}.jsonl"), played[name])
                reports[name] = player.report(queries, played[name], split)
            if recipe.eval.transfer and checkpoint != "base":
                reports |= _transfer(player, queries, split)
        rows = [(name, row) for name, group in played.items() for row in group]
        write_jsonl(work.make("predictions", "predictions.jsonl"), [{"pass": n, **plain(player.prediction(r))} for n, r in rows])
        write_jsonl(work.make("scores", "scores.jsonl"), [{"pass": n, **plain(r.score)} for n, r in rows])
        write_json(work.make("report", "report.json"), reports)
        work.metrics.update({name: _headline(report) for name, report in reports.items()})
        for journal in work.directory.glob("journal-*.jsonl"):
            journal.unlink()

    return run.perform(job(recipe, stage, command), body)


def _source(recipe: Recipe, work: Work, checkpoint: str) -> str:
    if checkpoint in ("sft", "rl"):
        return str(work.take(f"{checkpoint}-checkpoint"))
    if checkpoint == "base":
        return str(work.take("base")) if recipe.sft.model == "tiny" else recipe.sft.model
    return checkpoint


class _Player:
    """One model playing passes."""

    def __init__(self, recipe: Recipe, run: Run, work: Work, stage: str, sampler: Sampler) -> None:
        self.recipe, self._run, self._work, self._stage = recipe, run, work, stage
        self._sampler, self._world = sampler, build_world(recipe)

    def play(self, name: str, queries: Sequence[Query], temperature: float, **world: Any) -> list[Trajectory]:
        """Every query once. `world` changes settings of the world that answers and judges."""
        settings = self.recipe.eval
        place = build_world(self.recipe, **world)
        top_p = settings.top_p if temperature else 1.0
        policy = self._sampler.policy(Draws(settings.limits, temperature, top_p, self.recipe.seed, self._stage))
        rollout = Rollout(policy, place, settings.limits, partial(place.score, mode=settings.mode), batch=settings.in_flight)
        groups = [Group(query, 1, f"{name}/{query.id}") for query in queries]
        journal = self._work.directory / f"journal-{name}.jsonl"
        label = f"{self._stage} {name}"
        return play(rollout, groups, journal, CHUNK, lambda done, total: self._run.progress(label, done, total))

    def prediction(self, row: Trajectory) -> Prediction:
        return Prediction(row.query_id, row.id, row.answer, self._world.plan(row.answer), row.stop)

    def report(self, queries: Sequence[Query], played: Sequence[Trajectory], split: str) -> Report:
        scores = [row.score for row in played if row.score is not None]
        name, mode = self.recipe.name, self.recipe.eval.mode
        report = metrics.report(scores, {query.id: query for query in queries}, run=name, split=split, mode=mode)
        errors = Counter(turn.error for row in played for turn in row.turns if turn.error)
        turns = sum(len(row.turns) for row in played) / max(1, len(played))
        return replace(report, stops=dict(Counter(row.stop for row in played)), errors=dict(errors), turns=turns)


def _transfer(player: _Player, queries: Sequence[Query], split: str) -> dict[str, Report]:
    """Greedy success where knowing the training world by heart does not help, and where nothing else does.

    "other-world": queries, tools and judge of a world generated from another seed. "no-tools": the same queries, but every tool
    only says that it is switched off. Half of the queries suffice for both.
    """
    recipe, queries = player.recipe, queries[: (len(queries) + 1) // 2]
    seed = build_world(recipe).seed + OTHER_WORLD
    other = build_world(recipe, seed=seed).queries(split, len(queries), recipe.seed)
    foreign = player.play("other-world", other, 0.0, seed=seed)
    blind = player.play("no-tools", queries, 0.0, tools_off=True)
    return {"other-world": player.report(other, foreign, split), "no-tools": player.report(queries, blind, split)}


def _headline(report: Report) -> dict[str, Any]:
    success = report.metrics["success"]
    return {
        "n": report.n,
        "mode": report.mode,
        "success": success.value,
        "success_interval": [success.low, success.high],
    }
