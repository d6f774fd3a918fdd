"""Answers that lie in a file or in a finished run, each beside the query it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from star.errors import DataError, ManifestError, UsageError
from star.manifest import Run
from star.recipe import SNAPSHOT
from star.records import read_jsonl, read_lines
from star.types import Query
from star.worlds.travel.splits import query_of, read_queries

_SHAPES = "A row has query (facts) and plan, or query_id and answer, or idx, query (text) and plan"
_ASKED = "Name the file of the queries with --queries, or a run directory"


@dataclass(frozen=True, slots=True)
class Answer:
    id: str | int
    """As the file has it; its line number where it has none."""
    query: Query
    plan: Any
    """What was handed in: text, a list of days, or anything else."""
    stated: bool = False
    """Whether the file itself states the facts of the query."""


@dataclass(slots=True)
class Sheet:
    """Answers that are counted together."""

    name: str
    asked: dict[str, Query] = field(default_factory=dict)
    """By id, every query that should have an answer."""
    answers: list[Answer] = field(default_factory=list)

    @property
    def split(self) -> str:
        return ", ".join(sorted({query.split for query in self.asked.values()}))


def read(path: Path, queries: Path | None = None) -> list[Sheet]:
    """The answers of a run directory or of a JSONL file; rows that name a pass are counted by pass.

    Raises DataError, with the line, for a row that holds no answer or that answers a query which was not asked.
    """
    if path.is_dir():
        if queries is not None:
            raise UsageError("--queries: has no effect on a run, which knows its queries", "Leave it out")
        return of_run(Run.open(path))
    home = run_of(path)
    pools = [read_queries(queries)] if queries else _pools(home) if home else []
    reader = _Reader(path, pools)
    sheets = reader.sheets(path.stem)
    if queries is not None and not reader.looked_up:
        raise UsageError(f"--queries: has no effect, since {path} states the facts of its queries", "Leave it out")
    return sheets


def of_run(run: Run) -> list[Sheet]:
    """The predictions of every finished evaluation of a run."""
    sheets: list[Sheet] = []
    for entry in run.entries().values():
        kinds = {artifact.kind: artifact.path for artifact in entry.outputs}
        asked = [i.artifact.path for i in entry.inputs if i.artifact.kind.startswith("queries-")]
        if "predictions" in kinds and asked:
            pool = read_jsonl(run.directory / asked[0], Query)
            sheets += _Reader(run.directory / kinds["predictions"], [pool]).sheets(entry.stage)
    if not sheets:
        raise ManifestError(f"{run.directory}: no evaluation is finished", f"Run: star eval --run {run.directory}")
    return sheets


def run_of(path: Path) -> Run | None:
    """The run whose stage a file belongs to, if it does."""
    directory = path.absolute().parent.parent
    return Run.open(directory) if (directory / SNAPSHOT).is_file() else None


def _pools(run: Run) -> list[list[Query]]:
    """The queries of each split of a run."""
    made = [artifact for entry in run.entries().values() for artifact in entry.outputs]
    return [read_jsonl(run.directory / a.path, Query) for a in made if a.kind.startswith("queries-")]


class _Reader:
    """Rows of one file; `pools` are lists of queries, any of which may be the ones that it answers."""

    def __init__(self, path: Path, pools: Sequence[Sequence[Query]]) -> None:
        self._path, self._pools = path, pools
        self._by_id = {query.id: query for pool in pools for query in pool}
        self._by_text = {query.text: query for pool in pools for query in pool}
        self.looked_up = 0

    def sheets(self, name: str) -> list[Sheet]:
        found: dict[str, Sheet] = {}
        for number, row in read_lines(self._path):
            answer = self._answer(number, row)
            part = row.get("pass")
            label = f"{name} {part}" if isinstance(part, str) else name
            sheet = found.setdefault(label, Sheet(label))
            sheet.asked.setdefault(answer.query.id, answer.query)
            sheet.answers.append(answer)
        if not found:
            raise DataError(f"{self._path}:1: holds no answer", _SHAPES)
        for sheet in found.values():
            for pool in self._pools:
                if any(query.id in sheet.asked for query in pool):
                    sheet.asked = {query.id: query for query in pool} | sheet.asked
        return list(found.values())

    def _answer(self, number: int, row: Any) -> Answer:
        where = f"{self._path}:{number}"
        if not isinstance(row, dict):
            raise DataError(f"{where}: not a row of an answer", _SHAPES)
        name = next((row[key] for key in ("id", "idx") if isinstance(row.get(key), int | str)), number)
        facts = _facts(row)
        if "plan" in row and facts is not None:
            text = next((row[k] for k in ("query", "text") if isinstance(row.get(k), str)), str(facts.get("query", "")))
            return Answer(name, query_of(f"line {number}", text, facts, self._path.stem), row["plan"], True)
        if "answer" in row and isinstance(row.get("query_id"), str):
            query = self._find(self._by_id, row["query_id"], where)
            own = next((row[key] for key in ("trajectory_id", "id") if isinstance(row.get(key), str)), query.id)
            return Answer(own, query, row["answer"])
        if "plan" in row and isinstance(row.get("query"), str):
            return Answer(name, self._find(self._by_text, row["query"], where), row["plan"])
        raise DataError(f"{where}: not a row of an answer (it has {', '.join(map(str, row)) or 'no field'})", _SHAPES)

    def _find(self, queries: Mapping[str, Query], key: str, where: str) -> Query:
        if not self._pools:
            raise DataError(f"{where}: it answers a query that is not stated here", _ASKED)
        if key not in queries:
            raise DataError(f"{where}: it answers {key[:60]!r}, which was not asked", _ASKED)
        self.looked_up += 1
        return queries[key]


def _facts(row: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The facts that a row states itself: under a key, or beside its plan."""
    stated = next((row[key] for key in ("query", "facts", "item") if isinstance(row.get(key), dict)), None)
    if stated is None and "org" in row and "days" in row:
        return row
    return stated
