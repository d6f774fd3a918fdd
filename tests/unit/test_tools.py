"""Tools become a schema in the prompt and a checked call. If this breaks, a model is told one interface and meets another."""

from __future__ import annotations

import json
from typing import Any

import pytest

from star.tools import Flaky, Toolbox, ToolError, tool
from star.types import ToolCall


def lookup(city: str, day: str) -> str:
    """Say what happens in a city.
    day: The day, YYYY-MM-DD.
    city: The city.
    """
    return f"{city} on {day}"


def noop() -> str:
    """Do nothing."""
    return "nothing"


BOX = Toolbox(tool(lookup), tool(noop))


def test_a_schema_is_read_off_the_function() -> None:
    first, second = map(json.loads, BOX.schemas().splitlines())
    assert first == {
        "type": "function",
        "function": {
            "name": "lookup",
            "description": "Say what happens in a city.",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "description": "The city."},
                    "day": {"type": "string", "description": "The day, YYYY-MM-DD."},
                },
                "required": ["city", "day"],
            },
        },
    }
    assert second["function"]["parameters"] == {"type": "object", "properties": {}, "required": []}


def test_a_docstring_must_describe_the_arguments() -> None:
    def undescribed(city: str) -> str:
        """Say something."""
        return city

    def unknown(city: str) -> str:
        """Say something.
        town: The town.
        """
        return city

    def silent(city: str) -> str:
        return city

    for function in (undescribed, unknown, silent):
        with pytest.raises(TypeError, match=function.__name__):
            tool(function)


def test_a_call_is_answered() -> None:
    assert BOX.call(ToolCall("lookup", {"day": " Monday ", "city": "Ohio\n"})) == "Ohio on Monday"
    assert BOX.call(ToolCall("noop", {})) == "nothing"


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "message"),
    [
        ("look", {}, "unknown_tool", "The tools are lookup, noop"),
        ("lookup", {"city": "Ohio"}, "bad_arguments", "missing day"),
        ("lookup", {}, "bad_arguments", "missing city, day"),
        ("lookup", {"city": "Ohio", "day": "1", "hour": "2"}, "bad_arguments", "unknown hour"),
        ("lookup", {"city": "Ohio", "day": 1}, "bad_arguments", "not text: day"),
        ("lookup", {"city": None, "dya": []}, "bad_arguments", "missing day; unknown dya; not text: city"),
        ("noop", {"x": "1"}, "bad_arguments", "unknown x"),
    ],
)
def test_an_unfit_call_is_refused_in_words(name: str, arguments: dict[str, Any], kind: str, message: str) -> None:
    with pytest.raises(ToolError, match=message) as caught:
        BOX.call(ToolCall(name, arguments))
    assert caught.value.kind == kind


def test_faults_depend_on_seed_episode_and_call_alone() -> None:
    flaky = Flaky(0.3, 7)
    fates = {key: [flaky.fails(key, index) for index in range(200)] for key in ("a/0", "a/1")}
    backwards = {key: [Flaky(0.3, 7).fails(key, index) for index in reversed(range(200))][::-1] for key in ("a/1", "a/0")}
    assert fates == backwards, "the order of the calls has no influence"
    assert fates["a/0"] != fates["a/1"]
    assert fates["a/0"] != [Flaky(0.3, 8).fails("a/0", index) for index in range(200)]
    assert 80 < sum(map(sum, fates.values())) < 160
    assert not any(Flaky(0.0, 7).fails("a/0", index) for index in range(200))
