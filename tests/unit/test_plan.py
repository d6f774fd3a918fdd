"""Anything that is handed in becomes a plan of eight text fields a day, or none, and a list of what was wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest

from star.worlds.travel.plan import FIELDS, decode, read_plan

DAY = {
    "days": 1,
    "current_city": "from A to B",
    "transportation": "Taxi",
    "breakfast": "-",
    "attraction": "-",
    "lunch": "X, B",
    "dinner": "-",
    "accommodation": "H, B",
}


def test_a_proper_plan_is_kept() -> None:
    assert read_plan([DAY]) == ([DAY], [])
    assert read_plan(json.dumps([DAY])) == ([DAY], [])


@pytest.mark.parametrize(
    "value", [None, "", "-", " - ", "\u2013", "You don't need to fill in the information for this or later days."]
)
def test_absent_values(value: object) -> None:
    days, faults = read_plan([{**DAY, "lunch": value}])
    assert days is not None
    assert days[0]["lunch"] == "-"
    assert faults == []


@pytest.mark.parametrize(("value", "kind"), [(["X"], "a list"), (3, "a number"), (True, "a truth value"), ({}, "a record")])
def test_a_value_that_is_no_text_is_a_fault(value: object, kind: str) -> None:
    days, faults = read_plan([{**DAY, "dinner": value}])
    assert days is not None
    assert days[0]["dinner"] == "-"
    assert faults == [f"day 1 dinner is {kind}, not text"]


def test_days_are_numbered_by_position_and_padding_goes() -> None:
    days, faults = read_plan([{**DAY, "days": 9}, {**DAY, "days": "two", "junk": 1}, {}, None, {}])
    assert days is not None
    assert [day["days"] for day in days] == [1, 2]
    assert all(tuple(day) == FIELDS for day in days)
    assert faults == []


def test_an_empty_day_inside_a_plan_stays() -> None:
    days, _ = read_plan([DAY, {}, DAY])
    assert days is not None
    assert [day["current_city"] for day in days] == ["from A to B", "-", "from A to B"]


def test_a_day_that_is_no_record_is_a_fault() -> None:
    days, faults = read_plan([DAY, "stay in bed", DAY])
    assert days is not None
    assert len(days) == 3
    assert faults == ["day 2 is text, not a record"]


@pytest.mark.parametrize("key", ["Current City", "current city", "CURRENT_CITY", "city"])
def test_other_spellings_of_a_field(key: str) -> None:
    day: dict[str, Any] = {name: value for name, value in DAY.items() if name != "current_city"}
    days, _ = read_plan([{**day, key: "Rome"}])
    assert days is not None
    assert days[0]["current_city"] == "Rome"
    days, _ = read_plan([{**DAY, key: "Rome"}])
    assert days is not None
    assert days[0]["current_city"] == "from A to B"


@pytest.mark.parametrize(
    "text",
    [
        "```json\n{plan}\n```",
        "```\n{plan}\n```",
        "Sure! [1] here {{it}} is:\n{plan}\nBye [2].",
        "draft: [] and then {plan}",
        '{{"thoughts": "hm", "plan": {plan}}}',
        "<answer>{plan}</answer>",
    ],
)
def test_a_plan_inside_a_text(text: str) -> None:
    assert read_plan(text.format(plan=json.dumps([DAY, DAY]))).days == [DAY, {**DAY, "days": 2}]


MARKDOWN = """**A trip to B**, 2 days in all: enjoy.

### Day 1: March 3
- **Current City**: from A to B
- **Transportation:** Taxi, from A to B
- **Breakfast**: -
- **Attractions**:
  1. Zoo, B
  2. Park, B
- *Lunch*: X, B
- Dinner: -
- Accommodation: H, B

Day 2
Current City: B
Transportation: -
Breakfast: Y, B
Lunch: Flying: the Cafe, B
Note: bring: water
"""


def test_an_itinerary_in_markdown() -> None:
    days, faults = read_plan(MARKDOWN)
    assert faults == []
    assert days is not None
    assert [list(day.values()) for day in days] == [
        [1, "from A to B", "Taxi, from A to B", "-", "Zoo, B; Park, B", "X, B", "-", "H, B"],
        [2, "B", "-", "Y, B", "-", "Flying: the Cafe, B", "-", "-"],
    ]


def test_prose_is_no_itinerary() -> None:
    assert read_plan("On day 1 we fly.\nDay 2\nWe eat: soup at home.\nDay 3 dinner at X, B.").days is None


def test_the_last_of_equally_long_plans_is_the_answer() -> None:
    draft = json.dumps([{**DAY, "lunch": "Draft, B"}])
    assert read_plan(f"first {draft} better {json.dumps([DAY])}").days == [DAY]
    assert read_plan(f"{json.dumps([DAY, DAY])} then {json.dumps(DAY)}").days == [DAY, {**DAY, "days": 2}]


@pytest.mark.parametrize(
    "answer",
    [None, "", "no", "[]", "{}", "[{}]", [], {}, [{}, None], 3, "[" * 9999, "nan", '"text"', {"plan": "x"}, {"a": 1}],
)
def test_no_plan(answer: object) -> None:
    days, faults = read_plan(answer)
    assert days is None
    assert faults


def test_code_is_never_run() -> None:
    assert read_plan("[__import__('os').getcwd()]").days is None
    assert decode("[{'lunch': 'x'}]") == [{"lunch": "x"}]


def test_objects_are_decoded_only_from_text() -> None:
    assert decode({"plan": []}) == {"plan": []}
    assert decode('{"plan": [{"lunch": "x"}]}') == [{"lunch": "x"}]
