"""The expert: plays the tools like an agent and hands in the solver's plan."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from star.actions import answer_text, call_text
from star.protocols import Expert
from star.types import ToolCall, Turn
from star.worlds.travel.solver import Leg, Solution
from star.worlds.travel.witness import Witness

FLIGHT = ("First I look at the flights.", "Let me see which flights there are.")
NEXT_FLIGHT = ("Good, now the next flight.", "That works; on to the following flight.")
ROAD = ("I check the trip by road.", "Going by road may be the way.")
CITY = ("I need the cities of the state.", "Which cities are there to visit?")
HOTEL = ("Now a place to stay.", "Where can they stay?")
FOOD = ("Next, where to eat.", "They need restaurants.")
SIGHTS = ("Finally something to see.", "And what is there to see?")
DONE = ("I have all I need for the plan.", "Everything is known, here is the plan.")
RETRY = ("That tool did not answer, so I try again.", "The call failed; once more.")
CORRECT = ("That call was wrong, I correct it.", "I made a mistake in that call; now properly.")
ELSEWHERE = ("Nothing there: I misspelled the name.", "That is no place of theirs, I mistyped it.")


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
    pick: Callable[[tuple[str, ...]], str] = rng.choice if manner.varied else (lambda thoughts: thoughts[0])
    steps: list[tuple[_Step, ToolCall | None]] = []
    for thoughts, call in _script(solution, rng if manner.shuffled else None):
        thought = pick(thoughts)
        if rng.random() < manner.mistakes:
            slip, again = _slip(thought, call, rng)
            steps.append((slip, None))
            thought = pick(again)
        steps.append((_Step(call_text(thought, call)), call))
    answer = json.dumps(solution.plan(), ensure_ascii=False)
    done, retry = answer_text(pick(DONE), answer), pick(RETRY)

    def play(turns: Sequence[Turn]) -> str:
        position, failed = 0, False
        for turn in turns:
            step = steps[position][0] if position < len(steps) else _Step(done)
            failed = turn.fault is not None or (turn.error is not None and not step.wrong)
            position += not failed
        if position >= len(steps):
            return done
        step, call = steps[position]
        return call_text(retry, call) if failed and call is not None else step.text

    return play


def _slip(thought: str, call: ToolCall, rng: random.Random) -> tuple[_Step, tuple[str, ...]]:
    """A call that goes wrong, and the thoughts that lead on from it."""
    kind = rng.choice(("tool", "argument", "json", "place"))
    text = call_text(thought, call)
    if kind == "tool":
        return _Step(call_text(thought, ToolCall(f"{call.name}s", call.arguments)), wrong=True), CORRECT
    if kind == "json":
        return _Step(text.replace("}</tool_call>", "</tool_call>"), wrong=True), CORRECT
    name = rng.choice(list(call.arguments))
    if kind == "argument" or len(call.arguments[name]) < 3 or name in ("date", "mode"):
        rest = {key: value for key, value in call.arguments.items() if key != name}
        return _Step(call_text(thought, ToolCall(call.name, rest)), wrong=True), CORRECT
    place = call.arguments[name]
    at = rng.randrange(1, len(place) - 1)
    mistyped = place[:at] + place[at + 1 :]
    return _Step(call_text(thought, ToolCall(call.name, {**call.arguments, name: mistyped}))), ELSEWHERE


def _script(solution: Solution | Witness, rng: random.Random | None) -> list[tuple[tuple[str, ...], ToolCall]]:
    trip = solution.trip
    steps: list[tuple[tuple[str, ...], ToolCall]] = []
    if trip.cities > 1:
        steps.append((CITY, ToolCall("SearchCity", {"state": trip.dest})))
    steps += _travel(solution)
    for stay in solution.stays:
        local = [
            (HOTEL, ToolCall("SearchAccommodation", {"city": stay.city})),
            (FOOD, ToolCall("SearchRestaurant", {"city": stay.city})),
            (SIGHTS, ToolCall("SearchAttraction", {"city": stay.city})),
        ]
        if rng is not None:
            rng.shuffle(local)
        steps += local
    return steps


def _travel(solution: Solution | Witness) -> list[tuple[tuple[str, ...], ToolCall]]:
    """Look for flights leg by leg until one is missing, unless the client will not fly; then ask for the road."""
    steps: list[tuple[tuple[str, ...], ToolCall]] = []
    if solution.trip.transportation != "no flight":
        for leg in solution.legs:
            arguments = {"departure": leg.origin, "destination": leg.destination, "date": leg.date}
            steps.append((NEXT_FLIGHT if steps else FLIGHT, ToolCall("SearchFlight", arguments)))
            if not leg.flight:
                break
    return steps + [(ROAD, _road(leg)) for leg in solution.legs if not leg.flight]


def _road(leg: Leg) -> ToolCall:
    arguments = {"departure": leg.origin, "destination": leg.destination, "mode": leg.mode}
    return ToolCall("GoogleDistanceMatrix", arguments)
