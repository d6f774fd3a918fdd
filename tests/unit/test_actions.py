"""One parser reads every assistant turn. If it breaks, SFT, RL and evaluation no longer mean the same by an action,
or a model can end a run with what it writes."""

from __future__ import annotations

import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from star.actions import Answer, ErrorKind, Malformed, answer_text, call_text, parse_action, response_text
from star.records import to_json
from star.types import ToolCall

MALFORMED: list[tuple[ErrorKind, str]] = [
    ("no_action", ""),
    ("no_action", "I shall look for flights."),
    ("no_action", "<think>only a thought</think>"),
    ("no_action", '<think><tool_call>{"name": "a"}</tool_call></think>'),
    ("no_close_tag", "<think>an open thought"),
    ("no_close_tag", '<think>open <tool_call>{"name": "a"}</tool_call>'),
    ("no_close_tag", '<tool_call>{"name": "a", "arguments": {}}'),
    ("no_close_tag", "<think>t</think><answer>[]"),
    ("two_calls", '<tool_call>{"name": "a"}</tool_call><tool_call>{"name": "b"}</tool_call>'),
    ("two_calls", "<answer>1</answer><answer>2</answer>"),
    ("call_and_answer", '<tool_call>{"name": "a"}</tool_call><answer>1</answer>'),
    ("bad_json", "<tool_call></tool_call>"),
    ("bad_json", "<tool_call>{name: a}</tool_call>"),
    ("bad_json", "<tool_call>[1, 2]</tool_call>"),
    ("bad_json", '<tool_call>{"arguments": {}}</tool_call>'),
    ("bad_json", '<tool_call>{"name": 3}</tool_call>'),
    ("bad_json", '<tool_call>{"name": "a"} and more</tool_call>'),
    ("bad_json", f"<tool_call>{'[' * 100_000}</tool_call>"),
    ("bad_json", '<tool_call>{"name": "a", "arguments": {"x": NaN}}</tool_call>'),
    ("bad_json", '<tool_call>{"name": "a", "arguments": {"x": 1e999}}</tool_call>'),
    ("bad_json", '<tool_call>{"name": "a", "arguments": {"x": "\\ud800"}}</tool_call>'),
    ("bad_arguments", '<tool_call>{"name": "a", "arguments": ["x"]}</tool_call>'),
    ("bad_arguments", '<tool_call>{"name": "a", "arguments": null}</tool_call>'),
]


@pytest.mark.parametrize(("kind", "text"), MALFORMED, ids=lambda value: str(value)[:40])
def test_a_turn_that_is_no_action_is_named(kind: ErrorKind, text: str) -> None:
    action = parse_action(text)
    assert isinstance(action, Malformed)
    assert action.kind == kind
    assert action.message.endswith(".")


def test_every_kind_of_error_is_covered_here_or_by_the_tools() -> None:
    of_tools = {"unknown_tool", "tool_failed"}
    assert {kind for kind, _ in MALFORMED} | of_tools == set(typing.get_args(ErrorKind))


def test_tags_inside_a_thought_are_thoughts() -> None:
    thought = 'shall I <tool_call>{"name": "b"}</tool_call> or <answer>no</answer>?'
    call = ToolCall("a", {"x": "1"})
    assert parse_action(call_text(thought, call)) == call
    assert parse_action(answer_text(thought, "yes")) == Answer("yes")
    assert parse_action("<think>a</think><think>b</think><answer> x \n</answer> trailing") == Answer("x")


def test_nested_json_stays_whole() -> None:
    arguments = {"list": [{"a": {"b": [1, 2.5, None, True]}}], "text": 'a "quoted" <b> {brace} é\n'}
    assert parse_action(call_text("t", ToolCall("deep", arguments))) == ToolCall("deep", arguments)
    assert parse_action('<tool_call>{"name": "bare"}</tool_call>') == ToolCall("bare", {})
    answer = '[{"days": 1, "text": "</tool_call> {}"}]'
    assert parse_action(answer_text("t", answer)) == Answer(answer)


def test_a_tool_result_is_wrapped() -> None:
    assert response_text("rows") == "<tool_response>\nrows\n</tool_response>"


PIECES = ["<think>", "</think>", "<tool_call>", "</tool_call>", "<answer>", "</answer>", '{"name": "a"', ', "arguments": {', "}"]
PIECES += ["\\ud800", "NaN", "1e999", "[", '"', "\u2028", "\x00", "<|im_end|>"]


@given(st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=14).map("".join))
def test_whatever_a_model_writes_is_an_action_or_a_named_error(text: str) -> None:
    action = parse_action(text)
    assert isinstance(action, ToolCall | Answer | Malformed)
    to_json(action).encode("utf-8")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.text(max_size=8), st.dictionaries(st.text(max_size=5), JSON, max_size=3))
def test_a_written_call_is_read_back(name: str, arguments: dict[str, object]) -> None:
    text = call_text("a thought", ToolCall(name, arguments))
    if not any(tag in text.partition("</think>")[2].replace("<tool_call>", "", 1) for tag in PIECES[:6] if tag != "</tool_call>"):
        assert parse_action(text) == ToolCall(name, arguments)
