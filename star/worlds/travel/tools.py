"""The six tools over the travel database. Names and arguments are those of the released STAR checkpoints."""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterable

from star.tools import Toolbox, ToolError, tool
from star.worlds.travel.database import Database
from star.worlds.travel.tables import Distance

_KM = re.compile(r"([\d,]+)\s*km")


def kilometres(distance: Distance) -> int | None:
    """Whole kilometres of a distance row, None where there is no road or the trip takes days."""
    found = _KM.search(distance.distance)
    if found is None or "day" in distance.duration:
        return None
    return int(found.group(1).replace(",", ""))


def drive_cost(km: int, mode: str) -> int:
    """US dollars a car: driving 5 cents a kilometre, taxi one dollar (TravelPlanner's rule)."""
    return int(km * 0.05) if mode == "self-driving" else km


def toolbox(database: Database) -> Toolbox:
    """Bind the tools to a database."""

    def SearchFlight(departure: str, destination: str, date: str) -> str:
        """Find the flights of one day between two cities.
        departure: The city to leave from.
        destination: The city to arrive in.
        date: The day of the flight, YYYY-MM-DD.
        """
        _check_date(date)
        rows = database.flights(departure, destination, date)
        if not rows:
            return f"No flights from {departure} to {destination} on {date}."
        return _numbered(
            f"[{f.number}] ${f.price:.0f}. Departure: {f.departure}, Arrival: {f.arrival}, "
            f"Actual Elapsed Time: {f.elapsed}, Distance: {f.distance:.0f}"
            for f in rows
        )

    def GoogleDistanceMatrix(departure: str, destination: str, mode: str) -> str:
        """Give the length, duration and cost of a trip by road between two cities.
        departure: The city to leave from.
        destination: The city to arrive in.
        mode: Either self-driving or taxi.
        """
        kind = "self-driving" if mode.lower() in ("self-driving", "driving") else mode.lower()
        if kind not in ("self-driving", "taxi"):
            raise ToolError("bad_arguments", f"The mode is self-driving or taxi, not {mode!r}.")
        row = database.distance(departure, destination)
        km = kilometres(row) if row else None
        if row is None or km is None:
            return f"No {kind} trip from {departure} to {destination}."
        cost = drive_cost(km, kind)
        return f"{kind}, from {departure} to {destination}, duration: {row.duration}, distance: {row.distance}, cost: {cost}"

    def SearchAccommodation(city: str) -> str:
        """List the places to stay in a city.
        city: The city.
        """
        return _numbered(
            f"[{h.name}] ${h.price:.0f}. Room Type: {h.room_type}, House Rules: {h.house_rules}, "
            f"Minimum Nights: {h.minimum_nights:.0f}, Maximum Occupancy: {h.maximum_occupancy}, "
            f"Review Rate Number: {h.rating:.0f}"
            for h in database.hotels(city)
        ) or _nothing("accommodation", city)

    def SearchRestaurant(city: str) -> str:
        """List the restaurants of a city.
        city: The city.
        """
        rows = (
            f"[{r.name}] Avg. Cost ${r.cost:.0f}. Cuisines: {r.cuisines}. Rating: {r.rating:g}"
            for r in database.restaurants(city)
        )
        return _numbered(rows) or _nothing("restaurant", city)

    def SearchAttraction(city: str) -> str:
        """List the attractions of a city.
        city: The city.
        """
        rows = (f"[{s.name}]({s.website}) {s.address}. {s.phone}" for s in database.sights(city))
        return _numbered(rows) or _nothing("attraction", city)

    def SearchCity(state: str) -> str:
        """List the cities of a state.
        state: The state.
        """
        return _numbered(f"[{city}]" for city in database.cities(state)) or _nothing("city", state)

    functions: tuple[Callable[..., str], ...] = (
        SearchFlight, GoogleDistanceMatrix, SearchAccommodation, SearchRestaurant, SearchAttraction, SearchCity,
    )  # fmt: skip
    return Toolbox(*map(tool, functions))


def _numbered(rows: Iterable[str]) -> str:
    return "\n".join(f"{index}. {row}" for index, row in enumerate(rows, 1))


def _nothing(kind: str, place: str) -> str:
    return f"No {kind} found in {place}."


def _check_date(date: str) -> None:
    try:
        datetime.date.fromisoformat(date)
    except ValueError:
        raise ToolError("bad_arguments", f"{date!r} is not a date of the form YYYY-MM-DD.") from None
