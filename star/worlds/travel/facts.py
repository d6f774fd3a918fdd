"""The facts of a trip: what a query means, typed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

DIFFICULTIES = ("easy", "medium", "hard")


@dataclass(frozen=True, slots=True)
class Trip:
    """A request without its wording. Field names of the mapping form are those of the published data sets."""

    org: str
    dest: str
    """A city for trips of three days, a state for longer ones."""
    days: int
    cities: int
    """How many cities to visit."""
    date: tuple[str, ...]
    """One YYYY-MM-DD a day."""
    people: int
    house_rule: str | None
    """What the party wants to be allowed: smoking, parties, children under 10, visitors or pets."""
    cuisine: tuple[str, ...]
    room_type: str | None
    """entire room, private room, shared room or not shared room."""
    transportation: str | None
    """no flight or no self-driving."""
    budget: int | None
    level: str

    def facts(self) -> dict[str, Any]:
        return {
            "org": self.org,
            "dest": self.dest,
            "days": self.days,
            "visiting_city_number": self.cities,
            "date": list(self.date),
            "people_number": self.people,
            "local_constraint": {
                "house rule": self.house_rule,
                "cuisine": list(self.cuisine) or None,
                "room type": self.room_type,
                "transportation": self.transportation,
            },
            "budget": self.budget,
            "level": self.level,
        }

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Trip:
        wishes = facts["local_constraint"]
        return cls(
            facts["org"], facts["dest"], facts["days"], facts["visiting_city_number"], tuple(facts["date"]),
            facts["people_number"], wishes["house rule"], tuple(wishes["cuisine"] or ()), wishes["room type"],
            wishes["transportation"], facts["budget"], facts["level"],
        )  # fmt: skip

    @property
    def key(self) -> str:
        """Identity of the request without its budget: two queries with equal keys are the same trip."""
        parts = (
            self.org,
            self.dest,
            self.date[0],
            self.days,
            self.people,
            self.house_rule,
            self.cuisine,
            self.room_type,
        )
        return "|".join(map(str, (*parts, self.transportation)))
