"""Normalised keys of names and cities, so that case, spaces and a state in parentheses make no difference."""

from __future__ import annotations

from functools import lru_cache


def plain_key(text: str) -> str:
    """A name key that is not remembered, for texts that are asked about once."""
    return " ".join(text.casefold().split())


@lru_cache(maxsize=65536)
def name_key(text: str) -> str:
    """Case folded, runs of white space as one space, none at the ends."""
    return plain_key(text)


@lru_cache(maxsize=65536)
def city_key(text: str) -> str:
    """A name key without a trailing parenthesis: "Chicago (Illinois)" and "chicago" are the same city."""
    key = name_key(text)
    head, bracket, _ = key.rpartition("(")
    return head.rstrip() if bracket and key.endswith(")") and head.strip() else key
