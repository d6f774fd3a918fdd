"""What the expert thinks: why it calls a tool, and what it takes from the answer before.

A thought says only what its author can know by then: the request, and what the tools have answered.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from star.types import ToolCall
from star.worlds.travel.facts import Trip
from star.worlds.travel.solver import Leg, Solution, Stay
from star.worlds.travel.witness import Witness

PLAIN = {
    "SearchFlight": "First I look at the flights.",
    "next flight": "Good, now the next flight.",
    "GoogleDistanceMatrix": "I check the trip by road.",
    "SearchCity": "I need the cities of the state.",
    "SearchAccommodation": "Now a place to stay.",
    "SearchRestaurant": "Next, where to eat.",
    "SearchAttraction": "Finally something to see.",
    "done": "I have all I need for the plan.",
    "retry": "That tool did not answer, so I try again.",
    "correct": "That call was wrong, I correct it.",
    "elsewhere": "Nothing there: I misspelled the name.",
}
"""One thought for each occasion, for an expert that always thinks the same."""

_AIMS = {
    "SearchFlight": (
        "The trip begins in {origin}, so I look for flights to {destination} on {date}.",
        "First I look at the flights from {origin} to {destination} on {date}.",
        "Is there a flight from {origin} to {destination} on {date} for {party}?",
        "{party_cap} must get from {origin} to {destination} on {date}; flying is the quickest.",
        "Before anything else I need to know how to reach {destination} from {origin} on {date}.",
        "Let me see which flights leave {origin} for {destination} on {date}.",
    ),
    "next flight": (
        "Now the flight from {origin} to {destination} on {date}.",
        "The next leg is {origin} to {destination} on {date}.",
        "On {date} the trip goes on from {origin} to {destination}; I look for that flight.",
        "Next I check how to fly from {origin} to {destination} on {date}.",
        "That leaves the way from {origin} to {destination} on {date}.",
    ),
    "GoogleDistanceMatrix": (
        "I check the road from {origin} to {destination} by {mode}.",
        "How long and how dear is the way from {origin} to {destination} by {mode}?",
        "Going by {mode} from {origin} to {destination} may be the way; I look it up.",
        "From {origin} to {destination} I consider {mode}.",
        "Let me compare: {mode} from {origin} to {destination}.",
    ),
    "SearchCity": (
        "The request names the state {dest} and {cities} cities; I need to know which there are.",
        "Which cities of {dest} can be visited in {days} days?",
        "I need {cities} cities in {dest}, so I list them first.",
        "{dest} is a state: let me see its cities before I choose {cities}.",
    ),
    "SearchAccommodation": (
        "Now a place for {nights} in {city}{wish}.",
        "{party_cap} must have a room in {city} for {nights}{wish}.",
        "Where can {party} stay in {city}? It must suit {nights}{wish}.",
        "I look for accommodation in {city}{wish}; the minimum stay must fit {nights}.",
        "Next the hotels of {city}{wish}, with an eye on the budget of ${budget}.",
    ),
    "SearchRestaurant": (
        "Now the meals in {city}{taste}.",
        "Where can {party} eat in {city}{taste}? No place twice.",
        "I need restaurants in {city}{taste}, each used once.",
        "Next, what {city} has to offer for breakfast, lunch and dinner{taste}.",
        "For {nights} in {city} I need several restaurants{taste}.",
    ),
    "SearchAttraction": (
        "What is there to see in {city}?",
        "Now something to do in {city} during {nights}.",
        "I look for attractions in {city}, none of them twice.",
        "{party_cap} will want to see something of {city}.",
        "Between the meals there is time for the sights of {city}.",
    ),
}
_DONE = (
    "I have all I need for the plan.",
    "Everything is known: transport, rooms, meals and sights for {days} days. I write the plan.",
    "All of it comes to about ${cost}, within the budget of ${budget}; here is the plan.",
    "That covers {days} days for {party} at about ${cost}. I hand in the plan.",
    "Nothing is missing any more, and ${budget} is enough for the plan.",
)
_AFTER = {
    "retry": (
        "That tool did not answer, so I try again.",
        "The call to {tool} failed; once more.",
        "{tool} is not available at the moment. I repeat the call.",
        "An error of the tool, not of mine: I ask again.",
    ),
    "correct": (
        "That call was wrong, I correct it.",
        "I made a mistake in that call; now properly, with {tool}.",
        "The error says what was wrong. {tool} needs its exact name and arguments.",
        "My call was malformed. Again, carefully.",
    ),
    "elsewhere": (
        "Nothing there: I misspelled the name.",
        "That is no place of theirs, I mistyped it.",
        "No result, since the name was wrong; I write it as the request does.",
        "The spelling was off. Once more with the right name.",
    ),
}


@dataclass(frozen=True, slots=True)
class Thinker:
    """Words the thoughts of one trip; without a generator always in the same way."""

    solution: Solution | Witness
    rng: random.Random | None

    def before(self, call: ToolCall, made: Sequence[ToolCall]) -> str:
        """Why to make a call after those that were made."""
        kind = "next flight" if call.name == "SearchFlight" and any(m.name == call.name for m in made) else call.name
        if self.rng is None:
            return PLAIN[kind]
        aim = self.rng.choice(_AIMS[kind]).format_map(self._facts(call))
        noted = self._noted(made[-1]) if made else ""
        return f"{noted} {aim}" if noted and self.rng.random() < 0.8 else aim

    def after(self, kind: str, call: ToolCall) -> str:
        """Why to make a call again: "retry", "correct" or "elsewhere"."""
        return PLAIN[kind] if self.rng is None else self.rng.choice(_AFTER[kind]).format(tool=call.name)

    def done(self, made: Sequence[ToolCall]) -> str:
        """What goes before the answer."""
        if self.rng is None:
            return PLAIN["done"]
        facts = {**_facts(self.solution.trip), "cost": self.solution.cost}
        return f"{self._noted(made[-1])} {self.rng.choice(_DONE).format_map(facts)}".strip()

    def _facts(self, call: ToolCall) -> dict[str, object]:
        trip, arguments = self.solution.trip, dict(call.arguments)
        facts: dict[str, object] = {**_facts(trip), **arguments, "origin": arguments.get("departure")}
        stay = self._stay(call)
        if stay is not None:
            facts["nights"] = "one night" if stay.nights == 1 else f"{stay.nights} nights"
        return facts

    def _stay(self, call: ToolCall) -> Stay | None:
        return next((stay for stay in self.solution.stays if stay.city == call.arguments.get("city")), None)

    def _leg(self, call: ToolCall) -> Leg | None:
        ends = call.arguments.get("departure"), call.arguments.get("destination")
        return next((leg for leg in self.solution.legs if (leg.origin, leg.destination) == ends), None)

    def _noted(self, call: ToolCall) -> str:
        """What the answer to a call has settled; "" where it settled nothing."""
        assert self.rng is not None
        leg, stay = self._leg(call), self._stay(call)
        forms: tuple[str, ...] = ()
        if call.name == "SearchFlight" and leg is not None and leg.flight is not None:
            number, start, price = leg.flight.number, leg.flight.departure, leg.flight.price
            forms = (
                f"Flight {number} at {start} for ${price:g} is good.",
                f"I take {number}: it leaves at {start} and costs ${price:g} a person.",
                f"{number} will do.",
            )
        elif call.name == "SearchFlight" and leg is not None:
            forms = (
                f"No flight from {leg.origin} to {leg.destination} suits.",
                f"I do not fly from {leg.origin}.",
                "Flying is no option here.",
            )
        elif call.name == "GoogleDistanceMatrix" and leg is not None:
            forms = (
                f"By {leg.mode} it is, then.",
                f"The road is open: {leg.mode} to {leg.destination}.",
                f"{leg.mode.capitalize()} works.",
            )
        elif call.name == "SearchCity":
            chosen = " and ".join(stay.city for stay in self.solution.stays)
            forms = (f"I choose {chosen}.", f"{chosen} can be combined.", f"The route will be {chosen}.")
        elif stay is not None:
            forms = _of_stay(call.name, stay)
        return self.rng.choice(forms) if forms else ""


def _of_stay(tool: str, stay: Stay) -> tuple[str, ...]:
    if tool == "SearchAccommodation":
        hotel = stay.hotel
        return (
            f"{hotel.name} at ${hotel.price:g} a night fits.",
            f"I take {hotel.name} ({hotel.room_type.lower()}) for ${hotel.price:g} a night.",
            f"In {stay.city} it will be {hotel.name}.",
        )
    if tool == "SearchRestaurant" and stay.meals:
        first, last = stay.meals[0], stay.meals[-1]
        return (
            f"{first.name} is a good choice.",
            f"I note {first.name} and {last.name}.",
            f"{len(stay.meals)} meals in {stay.city} are settled, {first.name} among them.",
        )
    if tool == "SearchAttraction" and stay.sights:
        return (f"{stay.sights[0].name} it is.", f"They can visit {stay.sights[0].name}.", "That is enough to see.")
    return ()


def _facts(trip: Trip) -> dict[str, object]:
    """A request in the words of thoughts."""
    party = "one person" if trip.people == 1 else f"the {trip.people} of them"
    wishes = [text for text in (trip.room_type, f"{trip.house_rule} allowed" if trip.house_rule else None) if text]
    return {
        "org": trip.org,
        "dest": trip.dest,
        "days": trip.days,
        "cities": trip.cities,
        "party": party,
        "party_cap": party[0].upper() + party[1:],
        "budget": "unknown" if trip.budget is None else trip.budget,
        "wish": f" ({', '.join(wishes)})" if wishes else "",
        "taste": f", {' and '.join(trip.cuisine)} food included" if trip.cuisine else "",
        "nights": f"{trip.days - 1} nights",
    }
