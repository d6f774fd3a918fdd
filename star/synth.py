"""Synthesis: queries for every split, and teacher trajectories that the judge accepts."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from star import plugins
from star.corpus import MEASURES, statistics
from star.dataset import best, card, example
from star.endpoint import OVER_BUDGET
from star.errors import StarError
from star.journal import play_singly
from star.manifest import Entry, Run
from star.pipeline import job
from star.recipe import build_world
from star.records import parse, plain, read_json, read_jsonl, write_json, write_jsonl, write_text
from star.rollout import Group, Rollout
from star.settings import Limits, Recipe
from star.stage import Work
from star.types import Query, Trajectory

log = logging.getLogger(__name__)

JOURNAL, USAGE = "journal.jsonl", "usage.json"
"""What has been played and spent so far, while the teacher plays."""
SPARE = "spare.jsonl"
"""Tries beyond the limits of the stage, kept for when these are raised again."""


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
    """Let the teacher play the training queries; keep what the judge accepts as the dataset.

    Where only limits differ from those of the finished stage, what that has played and paid is taken over.
    """

    def body(work: Work) -> None:
        asked = {query.id: query for query in read_jsonl(work.take("queries-train"), Query)[: recipe.synth.max_queries]}
        teacher = _Play(recipe, run, work)
        played, spare = teacher.play(list(asked.values()))
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
        write_text(work.make("card", "README.md"), card(recipe.name, found, settings, MEASURES))
        teacher.forget(spare)

    return run.perform(job(recipe, "trajectories", command), body)


class _Play:
    """The teacher at work."""

    def __init__(self, recipe: Recipe, run: Run, work: Work) -> None:
        self._run, self._work, self._synth = run, work, recipe.synth
        self._world = build_world(recipe)
        self._teacher = plugins.build("policy", recipe.synth.teacher, world=self._world)
        self._journal, self._spent = work.directory / JOURNAL, work.directory / USAGE
        self._begun, self._ended, self._good = time.monotonic(), 0, 0
        self._saved: Any = None

    def play(self, asked: Sequence[Query]) -> tuple[list[list[Trajectory]], list[Trajectory]]:
        """The tries at each query, in order, and those beyond the limits. What has been played is not played again."""
        self._take_over()
        if self._spent.exists() and hasattr(self._teacher, "usage"):
            self._teacher.usage = parse(type(self._teacher.usage), read_json(self._spent), str(self._spent))
        judge = partial(self._world.score, mode=self._synth.mode)
        rollout = Rollout(self._teacher, self._world, Limits(), judge, enough=lambda: getattr(self._teacher, "spent", False))
        rollout.batch = getattr(self._teacher, "concurrency", rollout.batch)
        groups = [Group(query, self._synth.samples, f"teacher/{query.id}") for query in asked]
        total = sum(group.size for group in groups)

        def ended(row: Trajectory) -> None:
            self._save()
            self._ended += 1
            self._good += row.score is not None and row.score.success
            self._run.progress("trajectories", self._ended, total, self._note())

        played = play_singly(rollout, groups, self._journal, ended, cut=lambda row: row.error == OVER_BUDGET)
        if hasattr(self._teacher, "usage"):
            self._save()
            self._work.metrics["teacher"] = plain(self._teacher.usage)
        return played.tries, played.spare

    def forget(self, spare: Sequence[Trajectory]) -> None:
        """Drop what only an interrupted run needs, once the rest is written."""
        if spare:
            write_jsonl(self._work.directory / SPARE, spare)
        for path in (self._journal, self._spent):
            path.unlink(missing_ok=True)

    def _take_over(self) -> None:
        """Begin with what the finished stage has played and spent, if this one only has other limits."""
        earlier = self._work.earlier
        if earlier is None or self._journal.exists():
            return
        path = self._work.root / earlier.output("trajectories").path
        held = [file.read_text(encoding="utf-8") for file in (path, path.with_name(SPARE)) if file.exists()]
        if "teacher" in earlier.metrics:
            write_json(self._spent, earlier.metrics["teacher"])
        write_text(self._journal, "".join(held))
        log.info("trajectories: what was played before is taken over")

    def _save(self) -> None:
        """Put on disk what the teacher has used, if that is more than before."""
        usage = plain(getattr(self._teacher, "usage", None))
        if usage not in (None, self._saved):
            write_json(self._spent, usage)
            self._saved = usage

    def _note(self) -> str:
        """Rate, share of accepted tries, and cost so far."""
        rate = self._ended / max(1e-3, time.monotonic() - self._begun)
        words = [f"{rate:.1f}/s", f"{self._good / self._ended:.0%} accepted"]
        if hasattr(self._teacher, "usage") and self._teacher.usage.dollars:
            words.append(f"${self._teacher.usage.dollars:.2f}")
        return ", ".join(words)
