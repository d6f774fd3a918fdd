"""Score: judge answers that lie in a file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from star import metrics, plugins
from star.errors import DataError
from star.recipe import Recipe
from star.records import parse, read_jsonl, read_lines
from star.types import Mode, Query, Report, Score


@dataclass(frozen=True, slots=True)
class Answer:
    """What a row must have; predictions and trajectories have more."""

    query_id: str
    answer: str | None


def score(recipe: Recipe, answers: Path, queries: Path, mode: Mode) -> Report:
    """The official metrics of answers to queries of the recipe's world. A query without an answer counts as failed.

    Raises DataError, with the line, for a row that is no answer or that answers a query not in the file.
    """
    asked = {query.id: query for query in read_jsonl(queries, Query)}
    world = plugins.build("world", recipe.world)
    scores: list[Score] = []
    for number, row in read_lines(answers):
        answer = parse(Answer, row, f"{answers}:{number}")
        if answer.query_id not in asked:
            what = f"{answers}:{number}: it answers {answer.query_id!r}, which is not in {queries}"
            raise DataError(what, "Give the file of the queries that were asked")
        scores.append(world.score(asked[answer.query_id], answer.answer, mode))
    splits = sorted({query.split for query in asked.values()})
    return metrics.report(scores, asked, run=str(answers), split=", ".join(splits), mode=mode)
