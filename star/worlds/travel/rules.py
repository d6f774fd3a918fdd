"""Where the three modes of the judge differ: one record of switches a mode, read by one set of checks.

`official` reproduces TravelPlanner's evaluator and `agent-star` the one of Agent-STAR, both with their oddities;
`strict` is the honest reading of the same constraints.
"""

from __future__ import annotations

from dataclasses import dataclass

from star.types import Mode


@dataclass(frozen=True, slots=True)
class Rules:
    """The switches. Each default is what `strict` does."""

    mode: Mode
    normalised: bool = True
    """Read the plan into eight text fields first; otherwise take it as it is, and fail what cannot be read."""
    exact: bool = True
    """A place is its exact name and city after normalising; otherwise a row whose name contains the text."""
    strips_state: bool = True
    """"Chicago(Illinois)" is Chicago."""
    city_letters: bool = False
    """On a day without travel a place is in the city if its text holds any letter of the city's name."""
    flight_beats: bool = False
    """Of the words for transport, flight wins over taxi, and anything else means driving."""
    empty_transport_checked: bool = False
    """An empty transport text is compared with the day's cities, and a null fails."""
    null_hotel_fails: bool = False
    """A null hotel fails the minimum nights."""
    optional_fields: bool = True
    """A field that a day lacks counts as not planned; otherwise the check that wants it fails."""
    foreign_day: bool = False
    """A day that is a list or a text reads as a day without fields."""
    skips_day_after_origin: bool = False
    """After a meal in the city of departure the other meals of the day do not count for cuisines."""
    distinct_cuisines: bool = False
    """A cuisine that is required twice can never be met."""
    empty_constraint_counts: bool = False
    """An empty constraint ("") counts as one, and a constraint key that is missing fails."""
    visits_required: bool = False
    """The query must say how many cities to visit."""
    to_excuses_sights: bool = False
    """A day whose city reads "A to B" needs no sight."""
    lenient_cost: bool = False
    """A cost that is not a number is within any budget."""


RULES: dict[Mode, Rules] = {
    "strict": Rules("strict"),
    "official": Rules(
        "official",
        normalised=False,
        exact=False,
        city_letters=True,
        null_hotel_fails=True,
        optional_fields=False,
        foreign_day=True,
        skips_day_after_origin=True,
        distinct_cuisines=True,
        empty_constraint_counts=True,
        visits_required=True,
        to_excuses_sights=True,
    ),
    "agent-star": Rules(
        "agent-star",
        normalised=False,
        exact=False,
        strips_state=False,
        flight_beats=True,
        empty_transport_checked=True,
        lenient_cost=True,
    ),
}
