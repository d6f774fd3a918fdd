"""How one day's transport text is understood in each mode: its kind, its flight number and its route."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from star.types import Mode
from star.worlds.travel.sandbox import Sandbox

Kind = Literal["flight", "self-driving", "taxi"]

_WORD = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_NUMBER = re.compile(r"[a-z]{1,3}-?\d{2,}")
_ASIDE = re.compile(r"\([^()]*\)|\bno (?:direct )?(?:flights?|taxis?|self-driving)\b")
_FOREIGN = frozenset(
    ["train", "rail", "bus", "coach", "ferry", "boat", "ship", "walk", "walking", "bike", "bicycle", "cycling", "metro",
     "subway", "tram", "helicopter", "teleport", "hitchhike", "hitchhiking", "cruise", "motorcycle", "shuttle"]
)  # fmt: skip
"""Words of transport that the database knows nothing about."""
_WORDS: dict[str, Kind] = {
    "flight": "flight",
    "fly": "flight",
    "taxi": "taxi",
    "self-driving": "self-driving",
    "selfdriving": "self-driving",
    "self-drive": "self-driving",
    "driving": "self-driving",
    "drive": "self-driving",
}
# The first word that a text holds decides, in three different orders.
_OFFICIAL_MIXING: dict[str, Kind] = {"taxi": "taxi", "self-driving": "self-driving", "flight": "flight"}
_OFFICIAL_PAID: dict[str, Kind] = {"flight number": "flight", "self-driving": "self-driving", "taxi": "taxi"}
_OFFICIAL_BANNED: dict[str, Kind] = {"Flight": "flight", "Self-driving": "self-driving"}


@dataclass(slots=True, eq=False)
class Leg:
    """One day's transport. The three readings differ only in `official`."""

    text: str
    kinds: frozenset[Kind]
    """Kinds that take part in the rule against mixing; empty if the transport is of no known kind."""
    lookup: Kind | None
    """The kind under which it is looked up and paid; None means that it is neither."""
    banned: frozenset[Kind]
    """Kinds that a traveller who wants none of them would object to."""
    numbers: tuple[str, ...]
    """Flight numbers in the text; empty if there is none where one belongs."""
    route: tuple[str, str] | None
    """Origin and destination, if the text says so."""


def read_leg(text: str, box: Sandbox) -> Leg:
    """Read a non-empty transport text."""
    return _READERS[box.rules.mode](text, box)


@lru_cache(maxsize=65536)
def _strict(text: str, box: Sandbox) -> Leg:
    lowered = " ".join(text.casefold().split())
    if "(" in lowered or "no " in lowered:
        lowered = _ASIDE.sub(" ", lowered)
    words = _WORD.findall(lowered.replace("self driving", "self-driving").replace("self drive", "self-drive"))
    kinds = {_WORDS[word] for word in words if word in _WORDS}
    foreign = [word for word in words if word in _FOREIGN]
    if foreign and next(word for word in words if word in _WORDS or word in _FOREIGN) in _FOREIGN:
        kinds = set()
    # A number is the only word that ends in a digit, more or less, and digits come before letters.
    codes = tuple(dict.fromkeys(word.upper() for word in words if word[-1] <= "9" and _NUMBER.fullmatch(word)))
    known = tuple(code for code in codes if box.numbered(code))
    numbers = known or (codes[:1] if "flight" in kinds else ())
    if numbers:
        kinds.add("flight")
    order: tuple[Kind, ...] = ("flight", "self-driving", "taxi")
    lookup = next((kind for kind in order if kind in kinds), None)
    return Leg(text, frozenset(kinds), lookup, frozenset(kinds), numbers, box.route(text))


@lru_cache(maxsize=65536)
def _official(text: str, box: Sandbox) -> Leg:
    lowered = text.lower()
    mixed = next((kind for word, kind in _OFFICIAL_MIXING.items() if word in lowered), None)
    lookup = next((kind for word, kind in _OFFICIAL_PAID.items() if word in lowered), None)
    banned = frozenset(kind for word, kind in _OFFICIAL_BANNED.items() if word in text)
    kinds: frozenset[Kind] = frozenset([mixed]) if mixed else frozenset()
    return Leg(text, kinds, lookup, banned, _labelled_number(text), box.route(text))


@lru_cache(maxsize=65536)
def _agent_star(text: str, box: Sandbox) -> Leg:
    lowered = text.lower()
    kind: Kind = "flight" if "flight" in lowered else "taxi" if "taxi" in lowered else "self-driving"
    kinds: frozenset[Kind] = frozenset([kind])
    return Leg(text, kinds, kind, kinds, _labelled_number(text), box.route(text))


def _labelled_number(text: str) -> tuple[str, ...]:
    """What stands between "Flight Number: " and the next comma or label, exactly as written."""
    parts = text.split("Flight Number: ")
    return (parts[1].partition(",")[0],) if len(parts) > 1 else ()


_READERS: dict[Mode, Callable[[str, Sandbox], Leg]] = {
    "strict": _strict,
    "official": _official,
    "agent-star": _agent_star,
}
