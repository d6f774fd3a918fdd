"""A text says what its facts say. If this breaks, models are trained on requests that ask for something else than they are
judged by."""

from __future__ import annotations

import itertools
import json
import random
import re
from dataclasses import replace
from pathlib import Path

import pytest

from star.worlds.travel import wording
from star.worlds.travel.database import Database
from star.worlds.travel.extract import Extractor, differences
from star.worlds.travel.facts import Trip
from star.worlds.travel.phrasing import phrase
from star.worlds.travel.places import CITIES, CUISINES

STATES = {name: state for state, cities in CITIES.items() for name, _, _ in cities}
READER = Extractor(STATES)


def trip(rng: random.Random, **wanted: object) -> Trip:
    days = rng.choice((3, 5, 7))
    org, dest = rng.sample(sorted(STATES), 2)
    first = rng.randint(1, 31 - days)
    drawn = Trip(
        org, dest if days == 3 else STATES[dest], days, (days - 1) // 2,
        tuple(f"2022-03-{first + day:02d}" for day in range(days)), rng.choice((1, 2, 3, 5, 8)),
        rng.choice([None, *wording.RULES]), tuple(rng.sample(CUISINES, rng.randint(0, 4))), rng.choice([None, *wording.ROOMS]),
        rng.choice([None, *wording.TRANSPORT]), rng.randrange(300, 20000, 10), "hard",
    )  # fmt: skip
    return replace(drawn, **wanted)  # type: ignore[arg-type]


@pytest.mark.parametrize("words", [phrase, wording.word], ids=["plain", "varied"])
def test_every_request_reads_back(words: object) -> None:
    for seed in range(800):
        rng = random.Random(f"words/{seed}")
        wanted = trip(rng)
        text = words(wanted, rng)  # type: ignore[operator]
        assert not differences(READER.facts(text), wanted.facts()), text
        assert READER.says(text, wanted)


def test_there_are_many_forms_and_they_are_used() -> None:
    assert wording.surface_forms() >= 60
    texts = [wording.word(trip(rng := random.Random(f"used/{seed}")), rng) for seed in range(1500)]
    lists = (wording.OPENINGS, wording.BUDGETS, wording.CUISINES, *wording.ROOMS.values(), *wording.TRANSPORT.values())
    for form in itertools.chain(*lists):
        words = re.compile(re.sub(r"\\{\w+\\}", ".+", re.escape(form)).replace("We\\ ", ".+"))
        assert any(words.search(text) for text in texts), form
    assert not any("{" in text or "  " in text for text in texts)
    assert len({re.sub(r"[A-Z0-9]\w*", "_", text) for text in texts}) > 1300, "hardly two texts are built alike"


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"budget": 301}, "budget"),
        ({"people": 9}, "people_number"),
        ({"cuisine": ("Indian", "French", "Chinese", "Mexican", "American")}, "cuisine"),
        ({"room_type": None}, "room type"),
        ({"house_rule": None}, "house rule"),
        ({"transportation": None}, "transportation"),
        ({"org": "Bend"}, "org"),
    ],
)
def test_a_fact_that_is_missing_or_wrong_is_named(change: dict[str, object], fact: str) -> None:
    whole = {"house_rule": "pets", "room_type": "private room", "transportation": "no flight", "org": "Reno"}
    for seed in range(50):
        rng = random.Random(f"wrong/{seed}")
        wanted = trip(rng, **whole)
        text = wording.word(wanted, rng)
        assert differences(READER.facts(text), replace(wanted, **change).facts()) == [fact], text  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "text", ["", "Hello.", "from to", "A 3-day trip for 2 from Nowhere to Nothing on March 99th, 2022 for $1.5.", "$" * 500]
)
def test_whatever_is_written_can_be_read(text: str) -> None:
    read = READER.facts(text)
    assert read["org"] is None and read["date"] is None


def test_published_requests_are_read_almost_without_fault(shared: Path) -> None:
    folder = shared / "travelplanner"
    reader = Extractor(Database.open(folder).states)
    for name, least in (("train.jsonl", 0.95), ("validation_queries.jsonl", 0.95)):
        rows = [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]
        wrong = sum(len(differences(reader.facts(row["query"]), row)) for row in rows)
        assert 1 - wrong / (11 * len(rows)) >= least, (name, wrong)
