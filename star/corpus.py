"""What a dataset is like: what was kept of what was tried, how long it is, how it is worded, why the rest was left out."""

from __future__ import annotations

import re
import statistics as sums
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from star.dataset import messages_of, said
from star.manifest import Run
from star.types import Query, Trajectory

Table = tuple[str, list[str], list[list[str]]]
"""Title, head, rows."""
THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)
WORD = re.compile(r"\w+")
LONGEST = 3
"""Words of the longest n-grams that are counted."""
REASONS = 10
"""Different reasons of failed tries that are kept, the most frequent."""
MEASURES = {
    "turns": "turns",
    "tool_calls": "tool calls",
    "tokens_said": "tokens of the teacher",
    "tokens": "tokens in all",
    "trained_tokens": "tokens to learn from",
    "characters_said": "characters of the teacher",
    "characters": "characters in all",
}
"""What is measured of a kept conversation, in words."""


def statistics(played: Sequence[Trajectory], kept: Sequence[Trajectory], asked: Mapping[str, Query]) -> dict[str, Any]:
    """What was played, what was kept of it, and why the rest was not.

    "tokens_said" is there only if they were counted for every kept turn, and "tokens_counted_by" says by whom.
    """
    tried = [asked[name] for name in {row.query_id: None for row in played}]
    taken = [asked[row.query_id] for row in kept]
    turns = [turn for row in played for turn in row.turns]
    return {
        "queries": len(tried),
        "played": len(played),
        "accepted": sum(row.score is not None and row.score.success for row in played),
        "kept": len(kept),
        "by_difficulty": _shares(tried, taken, lambda query: query.difficulty),
        "by_days": _shares(tried, taken, lambda query: f"{query.days} days"),
        "stops": dict(Counter(row.stop for row in played).most_common()),
        "failed_for": dict(Counter(" ".join(row.error.split()) for row in played if row.error).most_common(REASONS)),
        "rejected_for": dict(Counter(reason for row in played for reason in faults(row)).most_common()),
        "turns": spread([len(row.turns) for row in kept]),
        "tool_calls": spread([sum(turn.call is not None for turn in row.turns) for row in kept]),
        **_tokens(kept),
        "characters_said": spread([said(row) for row in kept]),
        "characters": spread([sum(len(message.content) for message in messages_of(row)) for row in kept]),
        "thoughts": variety([thought for row in kept for turn in row.turns for thought in THOUGHT.findall(turn.completion.text)]),
        "errors": dict(Counter(turn.error for turn in turns if turn.error).most_common()),
        "faults": sum(turn.fault is not None for turn in turns),
    }


def faults(row: Trajectory) -> list[str]:
    """Constraints that a trajectory failed."""
    if row.score is None:
        return ["unjudged"]
    return [name for name, value in {**row.score.commonsense, **row.score.hard}.items() if value is False]


def spread(values: Sequence[int]) -> dict[str, float]:
    """Least, median, mean, greatest and standard deviation; nothing of nothing."""
    if not values:
        return {}
    return {
        "least": min(values),
        "median": sums.median(values),
        "mean": round(sums.fmean(values), 2),
        "greatest": max(values),
        "deviation": round(sums.pstdev(values), 2),
    }


def variety(texts: Sequence[str]) -> dict[str, float]:
    """How differently texts are worded. distinct_n is the share of different sequences among all sequences of n words inside
    a text, all in lower case; it falls as a corpus grows, so only corpora of one size compare."""
    words = [WORD.findall(text.lower()) for text in texts]
    found: dict[str, float] = {"texts": len(texts), "different": len(set(texts)), "words": sum(map(len, words))}
    for n in range(1, LONGEST + 1):
        grams = Counter(gram for row in words for gram in zip(*(row[k:] for k in range(n)), strict=False))
        if grams:
            found[f"distinct_{n}"] = round(len(grams) / grams.total(), 5)
    return found


def _tokens(kept: Sequence[Trajectory]) -> dict[str, Any]:
    """Tokens that the teacher wrote, as it counted them itself; nothing if it did not."""
    said = [[turn.completion for turn in row.turns] for row in kept]
    everything = [completion for row in said for completion in row]
    if everything and all(completion.token_ids for completion in everything):
        by, counts = "the teacher's tokenizer", [sum(len(completion.token_ids) for completion in row) for row in said]
    elif everything and all(completion.tokens is not None for completion in everything):
        by, counts = "the teacher's server", [sum(completion.tokens or 0 for completion in row) for row in said]
    else:
        return {}
    return {"tokens_said": spread(counts), "tokens_counted_by": by}


def _shares(tried: Sequence[Query], taken: Sequence[Query], part: Callable[[Query], str]) -> dict[str, dict[str, int]]:
    """Queries and kept trajectories of each part."""
    before, after = Counter(map(part, tried)), Counter(map(part, taken))
    return {name: {"queries": count, "kept": after[name]} for name, count in sorted(before.items())}


def show(directory: Path) -> dict[str, Any]:
    """The statistics of a run's dataset; "learner" has its tokens as the model to be trained counts them, if SFT on this very
    dataset has counted them."""
    run = Run.open(directory)
    dataset = run.path("trajectories", "dataset")
    entries = run.entries()
    found = {"dataset": str(dataset), "teacher_settings": entries["trajectories"].config["synth"]["teacher"]}
    sft, made = entries.get("sft"), entries["trajectories"].output("dataset").sha256
    if (
        sft is not None
        and "conversation" in sft.metrics
        and any(i.label == "dataset" and i.artifact.sha256 == made for i in sft.inputs)
    ):
        found["learner"] = {"tokenizer": sft.config["sft"]["model"], **sft.metrics["conversation"]}
    return {**found, **entries["trajectories"].metrics}


def tables(found: Mapping[str, Any]) -> Iterator[Table]:
    """The statistics for a terminal."""
    played, cost = f"{found['kept']:,} kept of {found['played']:,} tries at {found['queries']:,} queries", found.get("teacher")
    paid = f"; {cost['calls']:,} calls, ${cost['dollars']:.2f}" if cost else ""
    parts = [*found["by_difficulty"].items(), *found["by_days"].items()]
    rows = [[name, f"{counts['queries']:,}", f"{counts['kept']:,}"] for name, counts in parts]
    yield f"{found['dataset']}: {played}{paid}", ["", "queries", "kept"], rows
    learner: Mapping[str, Any] = found.get("learner", {})
    measured = {**found, **{name: learner[name] for name in ("tokens", "trained_tokens") if name in learner}}
    head = ["of a kept conversation", "least", "median", "mean", "greatest", "deviation"]
    yield "", head, [[words, *_numbers(measured[name])] for name, words in MEASURES.items() if measured.get(name)]
    by = [found["tokens_counted_by"]] if "tokens_counted_by" in found else []
    by += [f"the tokenizer of {learner['tokenizer']}, after SFT"] if learner else []
    yield f"\ntokens counted by: {'; '.join(by) or 'nobody yet'}", [], []
    thoughts = found["thoughts"]
    grams = [[f"distinct-{n}", f"{thoughts[f'distinct_{n}']:.5f}"] for n in range(1, LONGEST + 1) if f"distinct_{n}" in thoughts]
    counts = [[name, f"{thoughts[name]:,}"] for name in ("texts", "different", "words")]
    yield "", ["thoughts", ""], [*counts, *grams]
    yield "", ["why tries ended", "tries"], _counted(found["stops"])
    for title, key in (("constraint that failed", "rejected_for"), ("failure", "failed_for"), ("error on the way", "errors")):
        if found[key]:
            yield "", [title, "turns" if key == "errors" else "tries"], _counted(found[key])


def _numbers(values: Mapping[str, float]) -> list[str]:
    return [f"{values[name]:,}" for name in ("least", "median", "mean", "greatest", "deviation")]


def _counted(counts: Mapping[str, int]) -> list[list[str]]:
    return [[name, f"{count:,}"] for name, count in counts.items()]
