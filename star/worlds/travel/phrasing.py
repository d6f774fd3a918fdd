"""Facts of a trip in the words of a client. Every form names every fact; dates are written as the tools take them."""

from __future__ import annotations

import random

from star.worlds.travel.facts import Trip

OPENINGS = (
    "Please plan a {days}-day trip from {org} to {dest}{cities}, {dates}, for {people}.",
    "I need a {days}-day travel plan that starts in {org} and goes to {dest}{cities}, {dates}. It is for {people}.",
    "Could you put together a {days}-day journey for {people} from {org} to {dest}{cities}, {dates}?",
    "We are looking for a {days}-day itinerary from {org} to {dest}{cities}, {dates}, made for {people}.",
)
BUDGETS = ("The budget is ${budget}.", "Everything together should cost at most ${budget}.")
RULES = ("The accommodation must allow {rule}.", "We want to stay where {rule} are welcome.")
ROOMS = {
    "entire room": ("We want an entire room to ourselves.", "Only an entire room will do."),
    "private room": ("We want a private room.", "The room has to be private."),
    "shared room": ("A shared room is what we want.", "We would like a shared room."),
    "not shared room": ("The room must not be shared.", "Anything but a shared room is fine."),
}
CUISINES = ("We would like to eat {cuisines} food.", "Our meals should include {cuisines} cuisine.")
TRANSPORT = {
    "no flight": ("We do not want to fly.", "Please plan without flights."),
    "no self-driving": ("We will not drive ourselves.", "Please plan without self-driving."),
}


def phrase(trip: Trip, rng: random.Random) -> str:
    """One request. Wishes come in a random order, money first or last."""
    opening = rng.choice(OPENINGS).format(
        days=trip.days,
        org=trip.org,
        dest=trip.dest,
        cities=f", visiting {trip.cities} cities" if trip.cities > 1 else "",
        dates=f"from {trip.date[0]} to {trip.date[-1]}",
        people="one person" if trip.people == 1 else f"{trip.people} people",
    )
    wishes = _wishes(trip, rng)
    rng.shuffle(wishes)
    budget = rng.choice(BUDGETS).format(budget=f"{trip.budget:,}")
    return " ".join([opening, budget, *wishes] if rng.random() < 0.5 else [opening, *wishes, budget])


def _wishes(trip: Trip, rng: random.Random) -> list[str]:
    wishes = []
    if trip.house_rule == "smoking":
        wishes.append(rng.choice(("The accommodation must allow smoking.", "We want to stay where smoking is welcome.")))
    elif trip.house_rule:
        wishes.append(rng.choice(RULES).format(rule=trip.house_rule))
    if trip.room_type:
        wishes.append(rng.choice(ROOMS[trip.room_type]))
    if trip.cuisine:
        wishes.append(rng.choice(CUISINES).format(cuisines=" and ".join(trip.cuisine)))
    if trip.transportation:
        wishes.append(rng.choice(TRANSPORT[trip.transportation]))
    return wishes
