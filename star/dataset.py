"""The dataset that a teacher's trajectories become: which are kept, what they are like, and forms for other trainers."""

from __future__ import annotations

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
from star.types import Example, Message, Trajectory

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


def card(name: str, found: Mapping[str, Any], settings: Mapping[str, Any], measures: Mapping[str, str]) -> str:
    """The data card, in Markdown, with the front matter that the Hugging Face Hub reads; `measures` are rows of its table."""
    environment = Environment(
        loader=PackageLoader("star", "templates"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=False,  # noqa: S701  # Markdown; what servers said stands in code spans
    )  # fmt: skip
    return environment.get_template("card.md.j2").render(name=name, found=found, settings=settings, measures=measures)


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
