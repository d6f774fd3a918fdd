"""One episode of a travel query: assistant text in, observation out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib import resources

from star.actions import FATAL, Answer, Malformed, parse_action, response_text
from star.protocols import Env, Step
from star.tools import Flaky, Toolbox, ToolError
from star.types import Message, ToolCall

OFF = "The tool {name} is switched off."
FAULT = "The tool {name} is not available at the moment."


@cache
def system_prompt(schemas: str) -> str:
    """The fixed instructions with the tools' schemas filled in."""
    text = resources.files("star.worlds.travel").joinpath("prompts/system.md").read_text(encoding="utf-8")
    return text.replace("{tools}", schemas).strip()


@dataclass(slots=True)
class Episode:
    """The environment of one rollout. Holds no state but the number of calls made, so a fork is a copy."""

    text: str
    """The client's request; the facts behind it are not here."""
    toolbox: Toolbox
    flaky: Flaky
    key: str
    tools_off: bool = False
    calls: int = 0

    @property
    def prompt(self) -> tuple[Message, ...]:
        return Message("system", system_prompt(self.toolbox.schemas())), Message("user", self.text)

    def fork(self) -> Env:
        return replace(self)

    def step(self, text: str) -> Step:
        action = parse_action(text)
        if isinstance(action, Answer):
            return Step(stop="answer", answer=action.text)
        if isinstance(action, Malformed):
            if action.kind in FATAL:
                return Step(stop="format", error=action.kind)
            return Step(observation=response_text(action.message), error=action.kind)
        return self._call(action)

    def _call(self, call: ToolCall) -> Step:
        self.calls += 1
        if self.tools_off:
            return Step(observation=response_text(OFF.format(name=call.name)), call=call, fault="tools_off")
        if self.flaky.fails(self.key, self.calls):
            return Step(observation=response_text(FAULT.format(name=call.name)), call=call, fault="unavailable")
        try:
            return Step(observation=response_text(self.toolbox.call(call)), call=call)
        except ToolError as error:
            return Step(observation=response_text(str(error)), call=call, error=error.kind)
