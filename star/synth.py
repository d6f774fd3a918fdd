"""Synthesis: queries for every split, and teacher trajectories that the judge accepts."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial

from star import plugins
from star.dataset import best, card, example, statistics
from star.errors import StarError
from star.journal import play_singly
from star.manifest import Entry, Run
from star.pipeline import job
from star.recipe import Limits, Recipe, build_world
from star.records import parse, plain, read_json, read_jsonl, write_json, write_jsonl, write_text
from star.rollout import Group, Rollout
from star.stage import Work
from star.types import Query, Trajectory

JOURNAL, USAGE = "journal.jsonl", "usage.json"
"""What has been played and spent so far, while the teacher plays."""


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
        asked = {query.id: query for query in read_jsonl(work.take("queries-train"), Query)[: recipe.synth.max_queries]}
        teacher = _Play(recipe, run, work)
        played = teacher.play(list(asked.values()))
        rows = [row for tries in played for row in tries]
        write_jsonl(work.make("trajectories", "trajectories.jsonl"), rows)
        work.rows("trajectories", len(rows))
        kept = [row for tries in played if (row := best(tries)) is not None]
        found = statistics(rows, kept, asked)
        work.metrics.update(found, unplayed=sum(not tries for tries in played))
        if not kept:
            fix = "Read the reasons in trajectories.jsonl, or use another synth.teacher"
            raise StarError(f"the judge accepted none of {len(rows)} trajectories", fix)
        write_jsonl(work.make("dataset", "dataset.jsonl"), map(example, kept))
        work.rows("dataset", len(kept))
        settings = {"teacher": recipe.synth.teacher, "mode": recipe.synth.mode, "world": recipe.world, "seed": recipe.seed}
        write_text(work.make("card", "README.md"), card(recipe.name, found, settings))
        teacher.forget()

    return run.perform(job(recipe, "trajectories", command), body)


class _Play:
    """The teacher at work."""

    def __init__(self, recipe: Recipe, run: Run, work: Work) -> None:
        self._run, self._work, self._synth = run, work, recipe.synth
        self._world = build_world(recipe)
        self._teacher = plugins.build("policy", recipe.synth.teacher, world=self._world)
        self._begun, self._ended, self._tries, self._good = time.monotonic(), 0, 0, 0

    def play(self, asked: Sequence[Query]) -> list[list[Trajectory]]:
        """The tries at each query, in order. What a run that was interrupted has played is not played again."""
        spent = self._work.directory / USAGE
        if spent.exists() and hasattr(self._teacher, "usage"):
            self._teacher.usage = parse(type(self._teacher.usage), read_json(spent), str(spent))
        judge = partial(self._world.score, mode=self._synth.mode)
        rollout = Rollout(self._teacher, self._world, Limits(), judge, enough=lambda: getattr(self._teacher, "spent", False))
        groups = [Group(query, self._synth.samples, f"teacher/{query.id}") for query in asked]

        def ended(rows: list[Trajectory]) -> None:
            if hasattr(self._teacher, "usage"):
                write_json(spent, self._teacher.usage)
            self._ended += 1
            self._tries += len(rows)
            self._good += sum(row.score is not None and row.score.success for row in rows)
            self._run.progress("trajectories", self._ended, len(groups), self._note())

        played = play_singly(rollout, groups, self._work.directory / JOURNAL, ended)
        if hasattr(self._teacher, "usage"):
            self._work.metrics["teacher"] = plain(self._teacher.usage)
        return played

    def forget(self) -> None:
        """Drop what only an interrupted run needs, once the rest is written."""
        for name in (JOURNAL, USAGE):
            (self._work.directory / name).unlink(missing_ok=True)

    def _note(self) -> str:
        """Rate, share of accepted tries, and cost so far."""
        rate = self._ended / max(1e-3, time.monotonic() - self._begun)
        words = [f"{rate:.1f}/s", f"{self._good / self._tries:.0%} accepted"]
        if hasattr(self._teacher, "usage") and self._teacher.usage.dollars:
            words.append(f"${self._teacher.usage.dollars:.2f}")
        return ", ".join(words)
