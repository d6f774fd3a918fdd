"""Facts of a trip in varied words: openings, dates, money, party and wishes each have many surface forms.

A request is an opening that states the route, the length, the dates and the party, then the budget and the wishes in any
order. Every form states its fact in full; `extract` reads it back.
"""

from __future__ import annotations

import datetime
import random

from star.worlds.travel.facts import Trip

OPENINGS = (
    "Please plan a {length} trip for {people} from {org} to {dest}{cities}, {dates}.",
    "Could you put together a {length} travel plan for {people}, departing from {org} and heading to {dest}{cities}, {dates}?",
    "I need a {length} itinerary for {people} that starts in {org} and goes to {dest}{cities}, {dates}.",
    "We are looking for a {length} itinerary from {org} to {dest}{cities}, {dates}. It is for {people}.",
    "Can you help with a {length} journey, leaving from {org} and visiting {dest}{cities}, {dates}? It is meant for {people}.",
    "Help me organise a trip of {span} for {people}: we set off from {org}, go to {dest}{cities}, and travel {dates}.",
    "A {length} getaway to {dest}{cities} is what I have in mind, starting from {org}, {dates}, for {people}.",
    "Draft a travel schedule of {span} for {people}, beginning in {org} with {dest} as the destination{cities}, {dates}.",
    "What would a {length} trip from {org} to {dest}{cities} look like, {dates}, for {people}?",
    "Departing from {org}, I would like to see {dest}{cities} over {span}, {dates}. Please plan it for {people}.",
    "I am organising {span} of travel to {dest}{cities}, {dates}. The journey begins in {org} and is planned for {people}.",
    "Design a {length} vacation to {dest}{cities} for {people}; the start is from {org}, and the dates are {dates}.",
    "My plan is to travel from {org} to {dest}{cities} for {span}, {dates}. Make it work for {people}.",
    "Please arrange everything for a {length} visit to {dest}{cities}, {dates}, taking off from {org}. Plan for {people}.",
    "Could you come up with a {length} tour of {dest}{cities}? It would be for {people}, starting out from {org}, {dates}.",
    "For {people} I would like a {length} trip, {dates}. It should lead from {org} to {dest}{cities}.",
)
DATES = (
    "from {month} {first} to {last_month} {last}, {year}",
    "between {month} {first} and {last_month} {last}, {year}",
    "from {month} {first}, {year} to {last_month} {last}, {year}",
    "from the {first} of {month} to the {last} of {last_month}, {year}",
    "from {first_iso} to {last_iso}",
    "starting on {month} {first} and ending on {last_month} {last}, {year}",
    "{month} {first} through {last_month} {last}, {year}",
    "from {month} {first_day} until {last_month} {last_day}, {year}",
)
ALONE = ("one person", "1 person", "a single traveler", "one traveler", "one individual", "a solo traveler")
PARTIES = (
    "{n} people", "a group of {n}", "a party of {n}", "{n} travelers", "{word} people", "a group of {word}", "{n} individuals",
    "{word} friends",
)  # fmt: skip
CITIES = (
    ", visiting {n} cities there",
    ", with stops in {n} different cities",
    ", covering {n} cities",
    ", taking in {word} distinct cities",
    ", touring {word} cities along the way",
)
BUDGETS = (
    "The budget is ${budget}.",
    "Everything together should cost at most ${budget}.",
    "There is a budget of ${budget} for the whole trip.",
    "Please keep the total below or at ${budget}.",
    "All in all, ${budget} is the limit.",
    "No more than ${budget} can be spent in total.",
    "The total budget has been set at ${budget}.",
    "Our spending is capped at ${budget}.",
    "Up to {budget} dollars are available for it.",
    "We have put aside USD {budget} for all expenses.",
    "The full cost must stay within ${budget}.",
    "With everything included, we can pay ${budget}.",
)
RULES = {
    "smoking": (
        "The accommodation must allow smoking.",
        "Smoking has to be permitted where we stay.",
        "Please pick places to stay that are fine with smoking.",
        "Since there are smokers among us, lodging has to permit it.",
    ),
    "parties": (
        "The accommodation must allow parties.",
        "We want to stay where parties are welcome.",
        "The hosts have to be fine with parties.",
        "Lodging where parties are permitted is a must.",
    ),
    "pets": (
        "The accommodation must be pet-friendly.",
        "We bring our pets, which the hosts have to accept.",
        "We want to stay where pets are welcome.",
        "Lodging has to allow pets.",
    ),
    "visitors": (
        "The accommodation must allow visitors.",
        "We want to stay where visitors are welcome.",
        "It should be possible to have visitors where we stay.",
        "Lodging has to permit visitors.",
    ),
    "children under 10": (
        "The accommodation must allow children under 10.",
        "We travel with children under 10, who have to be welcome where we stay.",
        "Lodging has to be suitable for children under 10.",
        "Please pick places that accept kids, as ours are under 10.",
    ),
}
ROOMS = {
    "entire room": (
        "We want an entire room to ourselves.",
        "Only an entire room will do.",
        "Please book entire rooms.",
        "Entire rooms are what we need for the nights.",
    ),
    "private room": (
        "We want a private room.",
        "The room has to be private.",
        "Please book private rooms.",
        "Private rooms are required.",
    ),
    "shared room": (
        "A shared room is what we want.",
        "We would like a shared room.",
        "Please book a shared room.",
        "Shared rooms suit us well.",
    ),
    "not shared room": (
        "The room must not be shared.",
        "Anything but a shared room is fine.",
        "Please do not book shared rooms.",
        "Non-shared rooms are a must.",
    ),
}
CUISINES = (
    "We would like to eat {cuisines} food.",
    "Our meals should include {cuisines} cuisine.",
    "For dining, we are keen on {cuisines}.",
    "We want to taste {cuisines} dishes along the way.",
    "Food matters to us: it should include {cuisines}.",
    "Please find restaurants that serve {cuisines} food.",
    "When it comes to meals, {cuisines} must be among them.",
    "We are curious about {cuisines} cooking.",
)
TRANSPORT = {
    "no flight": (
        "We do not want to fly.",
        "Please plan without flights.",
        "Air travel is out of the question, so no planes.",
        "We avoid flying.",
        "We would rather stay on the ground, without any flight.",
        "Our journey should not involve any flights.",
    ),
    "no self-driving": (
        "We will not drive ourselves.",
        "Please plan without self-driving.",
        "Self-driving is no option, so please do not plan on driving ourselves.",
        "We would prefer not to self-drive.",
        "There is no plan of self-driving.",
        "Nobody wants to be behind the wheel, so no self-driving.",
    ),
}
SINGLE = (
    ("among us", "in my family"), ("We are", "I am"), ("We ", "I "), ("we ", "I "), ("ourselves", "myself"), ("Our ", "My "),
    ("our ", "my "), (" us", " me"), ("ours", "mine"),
)  # fmt: skip
"""How "we" becomes "I", in this order."""
_WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def surface_forms() -> int:
    """How many forms there are."""
    tables = (RULES, ROOMS, TRANSPORT)
    lists = (OPENINGS, DATES, ALONE, PARTIES, CITIES, BUDGETS, CUISINES)
    return sum(len(forms) for table in tables for forms in table.values()) + sum(map(len, lists))


def word(trip: Trip, rng: random.Random) -> str:
    """One request, put together from forms that are drawn independently."""
    opening = rng.choice(OPENINGS).format(
        length=_length(trip.days, rng),
        span=rng.choice(("7 days", "a week") if trip.days == 7 else (f"{trip.days} days", f"{_WORDS[trip.days]} days")),
        org=trip.org,
        dest=trip.dest,
        cities=_counted(rng.choice(CITIES), trip.cities) if trip.cities > 1 else "",
        dates=_dates(trip, rng),
        people=rng.choice(ALONE) if trip.people == 1 else _counted(rng.choice(PARTIES), trip.people),
    )
    rest = [rng.choice(BUDGETS).format(budget=f"{trip.budget:,}"), *wishes(trip, rng)]
    rng.shuffle(rest)
    return " ".join([opening, *rest])


def wishes(trip: Trip, rng: random.Random) -> list[str]:
    """A sentence for each wish."""
    found = []
    for table, wish in ((RULES, trip.house_rule), (ROOMS, trip.room_type), (TRANSPORT, trip.transportation)):
        if wish:
            found.append(rng.choice(table[wish]))
    if trip.cuisine:
        kinds = list(trip.cuisine)
        rng.shuffle(kinds)
        joined = ", ".join(kinds[:-1]) + (" and " if len(kinds) > 1 else "") + kinds[-1]
        found.append(rng.choice(CUISINES).format(cuisines=joined))
    return [_first_person(text, trip.people) for text in found]


def _first_person(text: str, people: int) -> str:
    """A sentence of "we" as one of "I" if the traveller is alone."""
    if people > 1:
        return text
    for plural, single in SINGLE:
        text = text.replace(plural, single)
    return text


def _length(days: int, rng: random.Random) -> str:
    forms = [f"{days}-day", f"{_WORDS[days]}-day"]
    return rng.choice([*forms, "week-long", "one-week"] if days == 7 else forms)


def _counted(form: str, number: int) -> str:
    return form.format(n=number, word=_WORDS[number] if number < len(_WORDS) else number)


def _dates(trip: Trip, rng: random.Random) -> str:
    first, last = (datetime.date.fromisoformat(day) for day in (trip.date[0], trip.date[-1]))
    return rng.choice(DATES).format(
        month=first.strftime("%B"),
        last_month=last.strftime("%B"),
        first=ordinal(first.day),
        last=ordinal(last.day),
        first_day=first.day,
        last_day=last.day,
        first_iso=first,
        last_iso=last,
        year=last.year,
    )


def ordinal(day: int) -> str:
    return f"{day}{'th' if 10 <= day <= 20 else {1: 'st', 2: 'nd', 3: 'rd'}.get(day % 10, 'th')}"
