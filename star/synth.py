"""Synthesis: queries for every split, and teacher trajectories that the judge accepts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import partial

from star import plugins
from star.errors import StarError
from star.journal import play
from star.manifest import Entry, Run
from star.pipeline import job
from star.recipe import Limits, Recipe, build_world
from star.records import plain, read_jsonl, write_json, write_jsonl
from star.rollout import Group, Rollout
from star.stage import Work
from star.types import Example, Message, Query, Trajectory

CHUNK = 256
"""Queries between two writes to disk."""


def queries(recipe: Recipe, run: Run, command: list[str]) -> Entry:
    """Sample the queries of each split; splits share no trip."""

    def body(work: Work) -> None:
        world = build_world(recipe)
        counts = {name: getattr(recipe.synth, name) for name in ("train", "rl", "dev", "validation")}
        done, total = 0, sum(counts.values())
        for split, count in counts.items():
            rows = world.queries(split, count, recipe.seed)
            write_jsonl(work.make(f"queries-{split}", f"{split}.jsonl"), rows)
            work.rows(f"queries-{split}", len(rows))
            work.metrics[split] = {"queries": len(rows), **Counter(row.difficulty for row in rows)}
            done += count
            run.progress("queries", done, total, split)
        write_json(work.make("world", "world.json"), world.summary())

    return run.perform(job(recipe, "queries", command), body)


def trajectories(recipe: Recipe, run: Run, command: list[str]) -> Entry:
    """Let the teacher play the training queries; keep what the judge accepts as the dataset."""

    def body(work: Work) -> None:
        world = build_world(recipe)
        teacher = plugins.build("policy", recipe.synth.teacher, world=world)
        asked = read_jsonl(work.take("queries-train"), Query)
        rollout = Rollout(teacher, world, Limits(), partial(world.score, mode=recipe.synth.mode))
        groups = [Group(query, 1, f"teacher/{query.id}") for query in asked]
        journal = work.directory / "journal.jsonl"
        played = play(rollout, groups, journal, CHUNK, lambda done, total: run.progress("trajectories", done, total))
        write_jsonl(work.make("trajectories", "trajectories.jsonl"), played)
        work.rows("trajectories", len(played))
        if hasattr(teacher, "usage"):
            work.metrics["teacher"] = plain(teacher.usage)
        kept = [row for row in played if row.score is not None and row.score.success]
        _count(work, played, kept, {query.id: query for query in asked})
        if not kept:
            fix = "Read the reasons in trajectories.jsonl, or use another synth.teacher"
            raise StarError(f"the judge accepted none of {len(played)} trajectories", fix)
        write_jsonl(work.make("dataset", "dataset.jsonl"), [_example(row) for row in kept])
        work.rows("dataset", len(kept))
        journal.unlink(missing_ok=True)

    return run.perform(job(recipe, "trajectories", command), body)


def _count(work: Work, played: Sequence[Trajectory], kept: Sequence[Trajectory], asked: dict[str, Query]) -> None:
    """Statistics of the rejection, for the manifest."""
    why = Counter(reason for row in played for reason in _faults(row))
    work.metrics.update(
        played=len(played),
        kept=len(kept),
        kept_by_difficulty=dict(Counter(asked[row.query_id].difficulty for row in kept)),
        stops=dict(Counter(row.stop for row in played)),
        rejected_for=dict(why.most_common()),
        mean_turns=round(sum(len(row.turns) for row in played) / max(1, len(played)), 2),
    )


def _faults(row: Trajectory) -> list[str]:
    if row.score is None:
        return ["unjudged"]
    return [name for name, value in {**row.score.commonsense, **row.score.hard}.items() if value is False]


def _example(row: Trajectory) -> Example:
    return Example(row.query_id, row.id, messages_of(row))


def messages_of(row: Trajectory) -> tuple[Message, ...]:
    """A trajectory as chat messages: the form in which training data is kept."""
    messages = list(row.prompt)
    for turn in row.turns:
        messages.append(Message("assistant", turn.completion.text))
        if turn.observation is not None:
            messages.append(Message("user", turn.observation))
    return tuple(messages)
