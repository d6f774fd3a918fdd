"""Trajectories to read: examples of what a checkpoint does, and what RL saw on its way."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from star.records import parse, read_lines
from star.types import Score, Trajectory, Turn
from star.worlds.travel.plan import read_plan

RULES = {
    "is_reasonable_visiting_city": "reasonable route",
    "is_valid_restaurants": "restaurants not repeated",
    "is_valid_attractions": "attractions not repeated",
    "is_valid_accommodation": "minimum nights kept",
    "is_valid_transportation": "transport not in conflict",
    "is_valid_information_in_current_city": "within the current city",
    "is_valid_information_in_sandbox": "within the sandbox",
    "is_not_absent": "nothing missing",
    "valid_cost": "budget",
    "valid_room_rule": "house rule",
    "valid_cuisine": "cuisine",
    "valid_room_type": "room type",
    "valid_transportation": "wished transport",
}
"""Constraints in words; another world's go by their own names."""
PARTS = re.compile(r"<(think|tool_call|answer)>(.*?)(?:</\1>|\Z)", re.DOTALL)
SHOWN = 12
"""Steps of RL of which the page shows rollouts."""


@dataclass(frozen=True, slots=True)
class Talk:
    """One trajectory, ready to be read."""

    label: str
    decoding: str
    trajectory: Trajectory
    turns: list[tuple[list[tuple[str, str]], Turn]]
    """(kind, text) of what the model wrote, and the turn."""
    plan: list[dict[str, object]] | None
    verdicts: list[tuple[str, str, bool | None, str]]
    """Constraint, its words, verdict, reason."""


@dataclass(frozen=True, slots=True)
class Side:
    """The greedy pass of one checkpoint."""

    label: str
    scores: Sequence[Score]
    trajectories: Path


@dataclass(frozen=True, slots=True)
class Example:
    title: str
    talks: list[Talk]


def rule(name: str) -> str:
    """A constraint in words."""
    return RULES.get(name, name.replace("_", " "))


def examples(sides: Sequence[Side]) -> list[Example]:
    """One query of each outcome: of SFT against RL if there are two sides, else of one alone."""
    if not sides:
        return []
    wanted: dict[str, tuple[bool, ...]]
    if len(sides) == 2:
        wanted = {
            "RL succeeds where SFT failed": (False, True),
            "Both fail": (False, False),
            "Both succeed": (True, True),
        }
    else:
        wanted = {f"{sides[0].label} succeeds": (True,), f"{sides[0].label} fails": (False,)}
    scores = [{score.query_id: score for score in side.scores} for side in sides]
    shared = [query for query in scores[0] if all(query in side for side in scores)]
    result = []
    for title, outcome in wanted.items():
        fitting = [query for query in shared if tuple(side[query].success for side in scores) == outcome]
        delivered = [query for query in fitting if scores[-1][query].delivered]
        shown = sides if len(set(outcome)) > 1 else sides[-1:]
        if fitting:
            query = (delivered or fitting)[0]
            result.append(Example(title, [_found(side, query) for side in reversed(shown)]))
    return result


def rollouts(path: Path) -> list[Example]:
    """The best and the worst rollout of some steps of RL, the first and the last among them."""
    steps: dict[int, list[tuple[int, Any]]] = {}
    for line, row in read_lines(path):
        steps.setdefault(int(row["step"]), []).append((line, row))
    known = sorted(steps)
    last = len(known) - 1
    chosen = sorted({known[round(place * last / (SHOWN - 1))] for place in range(SHOWN)}) if known else []
    return [Example(f"Step {step + 1}", [_kept(path, *row) for row in reversed(steps[step])]) for step in chosen]


def _kept(path: Path, line: int, row: dict[str, Any]) -> Talk:
    trajectory = parse(Trajectory, row["trajectory"], f"{path}:{line}")
    return _talk(f"{row['label']}, reward {row['reward']:.3g}", "sampled", trajectory)


def _found(side: Side, query: str) -> Talk:
    line, row = next((line, row) for line, row in read_lines(side.trajectories) if row["query_id"] == query)
    return _talk(side.label, "greedy", parse(Trajectory, row, f"{side.trajectories}:{line}"))


def _talk(label: str, decoding: str, trajectory: Trajectory) -> Talk:
    score = trajectory.score
    rules = {**score.commonsense, **score.hard} if score else {}
    verdicts = [(r, rule(r), holds, score.reasons.get(r, "") if score else "") for r, holds in rules.items()]
    turns = [(_parts(turn.completion.text), turn) for turn in trajectory.turns]
    plan = read_plan(trajectory.answer).days if trajectory.answer is not None else None
    return Talk(label, decoding, trajectory, turns, plan, verdicts)


def _parts(text: str) -> list[tuple[str, str]]:
    """What a model wrote as (kind, text): think, tool_call, answer, and "text" for all that is in no tag."""
    found, end = [], 0
    for match in PARTS.finditer(text):
        found += [("text", text[end : match.start()]), (match[1], match[2])]
        end = match.end()
    return [(kind, body.strip()) for kind, body in [*found, ("text", text[end:])] if body.strip()]
