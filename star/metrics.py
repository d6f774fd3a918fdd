"""Scores of many plans as the official metrics, with intervals.

Every rate has its denominator from the queries: a query without a score, and a score without a plan, count as failed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from star.types import Mode, Query, Rate, Report, Score

Z = 1.959963984540054
"""Normal quantile of a two-sided 95 % interval."""
COMMONSENSE_CONSTRAINTS = 8

Row = tuple[Query, Score | None]


def wilson(passed: int, n: int) -> Rate:
    """The share `passed` of `n` with its 95 % Wilson interval; with n = 0 nothing is known: the interval is [0, 1]."""
    if n == 0:
        return Rate(0.0, 0, 0, 0.0, 1.0)
    share = passed / n
    spread = Z * math.sqrt(share * (1 - share) / n + Z * Z / (4 * n * n))
    middle = share + Z * Z / (2 * n)
    scale = 1 + Z * Z / n
    low, high = (middle - spread) / scale, (middle + spread) / scale
    return Rate(share, passed, n, max(0.0, min(low, share)), min(1.0, max(high, share)))


def report(scores: Sequence[Score], queries: Mapping[str, Query], *, run: str, split: str, mode: Mode) -> Report:
    """The six metrics over `queries`, whole, by difficulty and by days. Several scores of one query all count."""
    by_query: dict[str, list[Score]] = {}
    for score in scores:
        by_query.setdefault(score.query_id, []).append(score)
    unknown = by_query.keys() - queries.keys()
    if unknown:
        raise ValueError(f"scores of queries that are not in the split: {sorted(unknown)[:3]}")
    rows: list[Row] = []
    for name, query in queries.items():
        rows.extend((query, score) for score in by_query.get(name, [None]))
    return Report(
        run=run,
        split=split,
        mode=mode,
        n=len(rows),
        metrics=metrics(rows),
        by_difficulty=_grouped(rows, lambda query: query.difficulty),
        by_days=_grouped(rows, lambda query: str(query.days)),
    )


def metrics(rows: Sequence[Row]) -> dict[str, Rate]:
    """delivery, commonsense_micro, commonsense_macro, hard_micro, hard_macro and success of (query, score) pairs."""
    scored = [score for _, score in rows if score is not None and score.delivered]
    n = len(rows)
    commonsense = sum(v is not False for score in scored for v in score.commonsense.values())
    hard = sum(v is True for score in scored if score.hard_counts for v in score.hard.values())
    return {
        "delivery": wilson(len(scored), n),
        "commonsense_micro": wilson(commonsense, COMMONSENSE_CONSTRAINTS * n),
        "commonsense_macro": wilson(sum(score.commonsense_macro for score in scored), n),
        "hard_micro": wilson(hard, sum(_applicable(query, score) for query, score in rows)),
        "hard_macro": wilson(sum(score.hard_macro for score in scored), n),
        "success": wilson(sum(score.success for score in scored), n),
    }


def _applicable(query: Query, score: Score | None) -> int:
    """How many hard constraints apply: those that the judge looked at; without a score, the budget and every wish."""
    if score is not None:
        return sum(verdict is not None for verdict in score.hard.values())
    wishes = query.facts.get("local_constraint")
    return 1 + (sum(bool(wish) for wish in wishes.values()) if isinstance(wishes, Mapping) else 0)


def _grouped(rows: Iterable[Row], key: Callable[[Query], str]) -> dict[str, dict[str, Rate]]:
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row[0]), []).append(row)
    return {name: metrics(groups[name]) for name in sorted(groups)}


def paired_difference(before: Sequence[Score], after: Sequence[Score]) -> tuple[float, float, float]:
    """Mean change of the success rate on the queries that both have, with its 95 % interval (mean, low, high).

    The interval is normal, from the standard error of the paired differences. Several scores of one query are averaged
    first, so that queries stay the unit.
    """
    old, new = _success_by_query(before), _success_by_query(after)
    shared = sorted(old.keys() & new.keys())
    if not shared:
        raise ValueError("the two sets of scores share no query")
    changes = [new[name] - old[name] for name in shared]
    mean = sum(changes) / len(changes)
    if len(changes) == 1:
        return mean, -1.0, 1.0
    variance = sum((change - mean) ** 2 for change in changes) / (len(changes) - 1)
    spread = Z * math.sqrt(variance / len(changes))
    return mean, mean - spread, mean + spread


def _success_by_query(scores: Iterable[Score]) -> dict[str, float]:
    found: dict[str, list[bool]] = {}
    for score in scores:
        found.setdefault(score.query_id, []).append(score.success)
    return {name: sum(values) / len(values) for name, values in found.items()}
