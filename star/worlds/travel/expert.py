"""The expert: plays the tools like an agent and hands in the solver's plan."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass

from star.actions import answer_text, call_text
from star.protocols import Expert
from star.types import ToolCall, Turn
from star.worlds.travel.solver import Leg, Solution
from star.worlds.travel.thoughts import Thinker
from star.worlds.travel.witness import Witness


@dataclass(frozen=True, slots=True)
class Manner:
    """How natural the expert is. Without any of it, equal situations have equal turns."""

    varied: bool = True
    """Word thoughts in more than one way."""
    shuffled: bool = False
    """Look for hotels, restaurants and attractions of a city in any order."""
    mistakes: float = 0.0
    """Share of the calls that go wrong at first, in one of the ways of models, and are then corrected."""


@dataclass(frozen=True, slots=True)
class _Step:
    text: str
    wrong: bool = False
    """Whether the tools refuse it, as they should."""


def expert(solution: Solution | Witness, rng: random.Random, manner: Manner = Manner(varied=False)) -> Expert:
    """A player of one query. It goes on to its next step once the last one was answered, and repeats a call that failed."""
    thinker = Thinker(solution, rng if manner.varied else None)
    steps: list[tuple[_Step, ToolCall | None]] = []
    calls = _script(solution, rng if manner.shuffled else None)
    for place, call in enumerate(calls):
        thought = thinker.before(call, calls[:place])
        if rng.random() < manner.mistakes:
            slip, kind = _slip(thought, call, rng)
            steps.append((slip, None))
            thought = thinker.after(kind, call)
        steps.append((_Step(call_text(thought, call)), call))
    done = answer_text(thinker.done(calls), json.dumps(solution.plan(), ensure_ascii=False))
    again = [call_text(thinker.after("retry", call), call) for call in calls]

    def play(turns: Sequence[Turn]) -> str:
        position, failed = 0, False
        for turn in turns:
            step = steps[position][0] if position < len(steps) else _Step(done)
            failed = turn.fault is not None or (turn.error is not None and not step.wrong)
            position += not failed
        if position >= len(steps):
            return done
        step, call = steps[position]
        return again[calls.index(call)] if failed and call is not None else step.text

    return play


def _slip(thought: str, call: ToolCall, rng: random.Random) -> tuple[_Step, str]:
    """A call that goes wrong, and the kind of thought that leads on from it."""
    kind = rng.choice(("tool", "argument", "json", "place"))
    text = call_text(thought, call)
    if kind == "tool":
        return _Step(call_text(thought, ToolCall(f"{call.name}s", call.arguments)), wrong=True), "correct"
    if kind == "json":
        return _Step(text.replace("}</tool_call>", "</tool_call>"), wrong=True), "correct"
    name = rng.choice(list(call.arguments))
    if kind == "argument" or len(call.arguments[name]) < 3 or name in ("date", "mode"):
        rest = {key: value for key, value in call.arguments.items() if key != name}
        return _Step(call_text(thought, ToolCall(call.name, rest)), wrong=True), "correct"
    place = call.arguments[name]
    at = rng.randrange(1, len(place) - 1)
    mistyped = place[:at] + place[at + 1 :]
    return _Step(call_text(thought, ToolCall(call.name, {**call.arguments, name: mistyped}))), "elsewhere"


def _script(solution: Solution | Witness, rng: random.Random | None) -> list[ToolCall]:
    trip = solution.trip
    calls = [ToolCall("SearchCity", {"state": trip.dest})] if trip.cities > 1 else []
    calls += _travel(solution)
    for stay in solution.stays:
        tools = ["SearchAccommodation", "SearchRestaurant", "SearchAttraction"]
        if rng is not None:
            rng.shuffle(tools)
        calls += [ToolCall(tool, {"city": stay.city}) for tool in tools]
    return calls


def _travel(solution: Solution | Witness) -> list[ToolCall]:
    """Look for flights leg by leg until one is missing, unless the client will not fly; then ask for the road."""
    calls: list[ToolCall] = []
    if solution.trip.transportation != "no flight":
        for leg in solution.legs:
            arguments = {"departure": leg.origin, "destination": leg.destination, "date": leg.date}
            calls.append(ToolCall("SearchFlight", arguments))
            if not leg.flight:
                break
    return calls + [_road(leg) for leg in solution.legs if not leg.flight]


def _road(leg: Leg) -> ToolCall:
    arguments = {"departure": leg.origin, "destination": leg.destination, "mode": leg.mode}
    return ToolCall("GoogleDistanceMatrix", arguments)
