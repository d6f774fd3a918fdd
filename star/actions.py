"""The agent protocol: `<think>` then one `<tool_call>` or one `<answer>`. One parser serves SFT, RL and evaluation."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal

from star.types import ToolCall

ErrorKind = Literal[
    "no_action",
    "no_close_tag",
    "two_calls",
    "call_and_answer",
    "bad_json",
    "unknown_tool",
    "bad_arguments",
    "tool_failed",
]
FATAL: frozenset[str] = frozenset({"no_action", "no_close_tag"})
"""Errors after which nothing sensible can follow: the episode stops. The others come back as an observation."""


@dataclass(frozen=True, slots=True)
class Answer:
    text: str


@dataclass(frozen=True, slots=True)
class Malformed:
    """A turn that is no action; `message` is written for the model that made it."""

    kind: ErrorKind
    message: str


Action = ToolCall | Answer | Malformed


def parse_action(text: str) -> Action:
    """Read one assistant turn. Tags inside `<think>` are thoughts, not actions. Never raises."""
    body = _without_thought(text)
    if body is None:
        return Malformed("no_close_tag", "The thought was not closed with </think>.")
    calls, answers = body.count("<tool_call>"), body.count("<answer>")
    if calls and answers:
        return Malformed("call_and_answer", "A turn holds a tool call or an answer, not both.")
    if calls > 1 or answers > 1:
        return Malformed("two_calls", "Only one tool call or answer is allowed in a turn.")
    if not calls and not answers:
        return Malformed("no_action", "The turn holds neither a <tool_call> nor an <answer>.")
    tag = "tool_call" if calls else "answer"
    inner, closed, _ = body.partition(f"<{tag}>")[2].partition(f"</{tag}>")
    if not closed:
        return Malformed("no_close_tag", f"The <{tag}> was not closed with </{tag}>.")
    return _call(inner) if calls else Answer(inner.strip())


def _without_thought(text: str) -> str | None:
    """The text without its thoughts; None if a thought stays open."""
    rest = text
    while "<think>" in rest:
        before, _, inside = rest.partition("<think>")
        _, closed, after = inside.partition("</think>")
        if not closed:
            return None
        rest = before + after
    return rest


def _call(inner: str) -> ToolCall | Malformed:
    try:
        value = json.loads(inner)
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()  # NaN and half characters cannot be written again
    except (ValueError, RecursionError) as error:
        return Malformed("bad_json", f"The tool call is not valid JSON: {error}.")
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return Malformed("bad_json", 'A tool call is a JSON object {"name": ..., "arguments": {...}}.')
    arguments = value.get("arguments", {})
    if not isinstance(arguments, dict):
        return Malformed("bad_arguments", "The arguments of a tool call are a JSON object.")
    return ToolCall(value["name"], arguments)


def call_text(thought: str, call: ToolCall) -> str:
    """The assistant turn that makes a call; the inverse of `parse_action`."""
    body = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
    return f"<think>{thought}</think>\n<tool_call>{body}</tool_call>"


def answer_text(thought: str, answer: str) -> str:
    return f"<think>{thought}</think>\n<answer>{answer}</answer>"


def response_text(result: str) -> str:
    """Content of the user message that carries a tool's result."""
    return f"<tool_response>\n{result}\n</tool_response>"
