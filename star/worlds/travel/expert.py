"""The expert: plays the tools like an agent and hands in the solver's plan."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

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


def expert(solution: Solution | Witness, rng: random.Random | None = None) -> Expert:
    """A player of one query. It goes on to its next call once the last one was answered, and repeats a call that failed.

    With `rng` its thoughts vary in wording; without, equal situations have equal thoughts.
    """
    pick: Callable[[tuple[str, ...]], str] = rng.choice if rng else (lambda thoughts: thoughts[0])
    script = [(pick(thoughts), call) for thoughts, call in _script(solution)]
    done, retry = pick(DONE), pick(RETRY)
    answer = json.dumps(solution.plan(), ensure_ascii=False)

    def play(turns: Sequence[Turn]) -> str:
        failed = bool(turns) and (turns[-1].fault is not None or turns[-1].error is not None)
        position = sum(turn.fault is None and turn.error is None for turn in turns)
        if position == len(script):
            return answer_text(done, answer)
        thought, call = script[position]
        return call_text(retry if failed else thought, call)

    return play


def _script(solution: Solution | Witness) -> list[tuple[tuple[str, ...], ToolCall]]:
    trip = solution.trip
    steps: list[tuple[tuple[str, ...], ToolCall]] = []
    if trip.cities > 1:
        steps.append((CITY, ToolCall("SearchCity", {"state": trip.dest})))
    steps += _travel(solution)
    for stay in solution.stays:
        steps += [
            (HOTEL, ToolCall("SearchAccommodation", {"city": stay.city})),
            (FOOD, ToolCall("SearchRestaurant", {"city": stay.city})),
            (SIGHTS, ToolCall("SearchAttraction", {"city": stay.city})),
        ]
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
