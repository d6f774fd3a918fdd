"""The dataset that a teacher's trajectories become: which are kept, what they are like, and forms for other trainers."""

from __future__ import annotations

import statistics as sums
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from star import plugins
from star.errors import ManifestError, UsageError
from star.manifest import Run
from star.options import Exporting
from star.plugins import unknown
from star.records import plain, read_jsonl, write_jsonl
from star.types import Example, Message, Query, Trajectory

SAID_BY = {"user": "human", "assistant": "gpt"}
"""Roles as LLaMA-Factory's ShareGPT names them."""


def messages_of(row: Trajectory) -> tuple[Message, ...]:
    """A trajectory as chat messages: the form in which training data is kept."""
    messages = list(row.prompt)
    for turn in row.turns:
        messages.append(Message("assistant", turn.completion.text))
        if turn.observation is not None:
            messages.append(Message("user", turn.observation))
    return tuple(messages)


def example(row: Trajectory) -> Example:
    return Example(row.query_id, row.id, messages_of(row))


def said(row: Trajectory) -> int:
    """Characters that the teacher wrote."""
    return sum(len(turn.completion.text) for turn in row.turns)


def best(rows: Sequence[Trajectory]) -> Trajectory | None:
    """Of several tries at one query the one to learn from: accepted by the judge, then the shortest, then the first."""
    accepted = [row for row in rows if row.score is not None and row.score.success]
    return min(accepted, key=said, default=None)


def faults(row: Trajectory) -> list[str]:
    """Constraints that a trajectory failed."""
    if row.score is None:
        return ["unjudged"]
    return [name for name, value in {**row.score.commonsense, **row.score.hard}.items() if value is False]


def statistics(played: Sequence[Trajectory], kept: Sequence[Trajectory], asked: Mapping[str, Query]) -> dict[str, Any]:
    """What was played, what was kept of it, and why the rest was not."""
    tried = [asked[name] for name in {row.query_id: None for row in played}]
    taken = [asked[row.query_id] for row in kept]
    turns = [turn for row in played for turn in row.turns]
    return {
        "queries": len(tried),
        "played": len(played),
        "kept": len(kept),
        "by_difficulty": _shares(tried, taken, lambda query: query.difficulty),
        "by_days": _shares(tried, taken, lambda query: f"{query.days} days"),
        "stops": dict(Counter(row.stop for row in played).most_common()),
        "rejected_for": dict(Counter(reason for row in played for reason in faults(row)).most_common()),
        "turns": _spread([len(row.turns) for row in kept]),
        "tool_calls": _spread([sum(turn.call is not None for turn in row.turns) for row in kept]),
        "characters_said": _spread([said(row) for row in kept]),
        "characters": _spread([sum(len(message.content) for message in messages_of(row)) for row in kept]),
        "errors": dict(Counter(turn.error for turn in turns if turn.error).most_common()),
        "faults": sum(turn.fault is not None for turn in turns),
    }


def _shares(tried: Sequence[Query], taken: Sequence[Query], part: Callable[[Query], str]) -> dict[str, dict[str, int]]:
    """Queries and kept trajectories of each part."""
    before, after = Counter(map(part, tried)), Counter(map(part, taken))
    return {name: {"queries": count, "kept": after[name]} for name, count in sorted(before.items())}


def _spread(values: Sequence[int]) -> dict[str, float]:
    """Least, median, mean and greatest; nothing of nothing."""
    if not values:
        return {}
    return {"least": min(values), "median": sums.median(values), "mean": round(sums.fmean(values), 2), "greatest": max(values)}


def card(name: str, found: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    """The data card, in Markdown, with the front matter that the Hugging Face Hub reads."""
    environment = Environment(
        loader=PackageLoader("star", "templates"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=False,  # noqa: S701  # Markdown; nothing of a model or a world stands in it
    )  # fmt: skip
    return environment.get_template("card.md.j2").render(name=name, found=found, settings=settings)


@dataclass(frozen=True, slots=True)
class Exported:
    out: str
    form: str
    rows: int


def export(wanted: Exporting) -> Exported:
    """Write the dataset of a run in another form."""
    if wanted.form not in WRITERS:
        raise unknown(f"--format {wanted.form}: no such format", wanted.form, WRITERS)
    if wanted.out.is_dir():
        raise UsageError(f"--out {wanted.out}: a directory", "Name the file to write")
    run = Run.open(wanted.run)
    rows = read_jsonl(run.path("trajectories", "dataset"), Example)
    if not rows:
        raise ManifestError(f"{wanted.run}: its dataset is empty", "Play more queries with star synth trajectories")
    wanted.out.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[wanted.form](rows, wanted.out)
    return Exported(str(wanted.out), wanted.form, len(rows))


def exported(result: Exported) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    yield f"{result.out}: {result.rows:,} conversations ({result.form})", [], []


def _messages(row: Example) -> dict[str, Any]:
    """TRL's conversational form."""
    return {"messages": plain(row.messages), "query_id": row.query_id}


def _sharegpt(row: Example) -> dict[str, Any]:
    """LLaMA-Factory's ShareGPT form: the system prompt by itself, then human and gpt in turn."""
    system = "".join(m.content for m in row.messages if m.role == "system")
    turns = [{"from": SAID_BY[m.role], "value": m.content} for m in row.messages if m.role != "system"]
    return {"conversations": turns, "system": system}


def _to_messages(rows: Sequence[Example], out: Path) -> None:
    write_jsonl(out, map(_messages, rows))


def _to_sharegpt(rows: Sequence[Example], out: Path) -> None:
    write_jsonl(out, map(_sharegpt, rows))


def _to_parquet(rows: Sequence[Example], out: Path) -> None:
    draft = out.with_name(f".{out.name}.tmp")
    plugins.load("datasets:Dataset").from_list([_messages(row) for row in rows]).to_parquet(str(draft))
    draft.replace(out)


WRITERS: dict[str, Callable[[Sequence[Example], Path], None]] = {
    "messages": _to_messages,
    "sharegpt": _to_sharegpt,
    "parquet": _to_parquet,
}
