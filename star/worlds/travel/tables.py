"""Rows of the travel database, as typed records with the meaning of the published CSV columns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple


class Flight(NamedTuple):
    """A tuple, since flights come by the dozen."""

    number: str
    price: float
    """US dollars a person, one way."""
    departure: str
    """Local time, HH:MM."""
    arrival: str
    elapsed: str
    """As published, e.g. "2 hours 24 minutes"."""
    date: str
    """YYYY-MM-DD."""
    origin: str
    destination: str
    distance: float


@dataclass(frozen=True, slots=True)
class Hotel:
    name: str
    room_type: str
    price: float
    """US dollars a night and room."""
    minimum_nights: float
    rating: float
    house_rules: str
    """What is forbidden, joined by " & ", e.g. "No pets & No smoking"."""
    maximum_occupancy: int
    city: str


@dataclass(frozen=True, slots=True)
class Restaurant:
    name: str
    city: str
    cuisines: str
    """Joined by ", "."""
    cost: float
    """US dollars a person and meal."""
    rating: float


@dataclass(frozen=True, slots=True)
class Sight:
    name: str
    latitude: float
    longitude: float
    address: str
    phone: str
    website: str
    city: str


@dataclass(frozen=True, slots=True)
class Distance:
    origin: str
    destination: str
    duration: str
    """As published, e.g. "10 hours 55 mins" or "1 day 3 hours"."""
    distance: str
    """As published, e.g. "1,144 km"; both are empty where no road was found."""


@dataclass(frozen=True, slots=True)
class Tables:
    """A whole travel database in memory."""

    flights: tuple[Flight, ...] = ()
    hotels: tuple[Hotel, ...] = ()
    restaurants: tuple[Restaurant, ...] = ()
    sights: tuple[Sight, ...] = ()
    distances: tuple[Distance, ...] = ()
    states: dict[str, str] = field(default_factory=dict)
    """City -> state."""
