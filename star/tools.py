"""Tools: plain methods that become a schema for the prompt and a checked call."""

from __future__ import annotations

import inspect
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from star.actions import ErrorKind
from star.types import ToolCall


class ToolError(Exception):
    """A call that cannot be answered; `message` goes back to the model, `kind` is counted."""

    def __init__(self, kind: ErrorKind, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Tool:
    """A named function of text arguments. The first docstring line describes it; `name: text` lines its arguments."""

    name: str
    description: str
    arguments: dict[str, str]
    function: Callable[..., str]

    def schema(self) -> dict[str, Any]:
        """The JSON schema in the form of the OpenAI tools protocol."""
        properties = {name: {"type": "string", "description": text} for name, text in self.arguments.items()}
        parameters = {"type": "object", "properties": properties, "required": list(properties)}
        function = {"name": self.name, "description": self.description, "parameters": parameters}
        return {"type": "function", "function": function}


def tool(function: Callable[..., str]) -> Tool:
    """Read a tool off a function: its name, docstring and parameters, all of them text."""
    lines = [line.strip() for line in (inspect.getdoc(function) or "").splitlines() if line.strip()]
    described = dict(line.split(": ", 1) for line in lines[1:])
    parameters = list(inspect.signature(function).parameters)
    if not lines or sorted(described) != sorted(parameters):
        raise TypeError(f"{function.__name__}: the docstring must describe exactly the arguments {parameters}")
    arguments = {name: described[name] for name in parameters}
    return Tool(function.__name__, lines[0], arguments, function)


class Toolbox:
    """The tools of a world: one schema, one way to call."""

    def __init__(self, *tools: Tool) -> None:
        self.tools = {tool.name: tool for tool in tools}

    def schemas(self) -> str:
        """One JSON schema a line, as the system prompt shows them."""
        return "\n".join(json.dumps(tool.schema()) for tool in self.tools.values())

    def call(self, call: ToolCall) -> str:
        """Run a call; raise ToolError for an unknown tool or unfit arguments."""
        found = self.tools.get(call.name)
        if found is None:
            raise ToolError("unknown_tool", f"There is no tool {call.name!r}. The tools are {', '.join(self.tools)}.")
        return found.function(**_checked(found, call.arguments))


def _checked(found: Tool, arguments: Mapping[str, Any]) -> dict[str, str]:
    missing = [name for name in found.arguments if name not in arguments]
    extra = [str(name) for name in arguments if name not in found.arguments]
    wrong = [name for name in found.arguments if name in arguments and not isinstance(arguments[name], str)]
    if missing or extra or wrong:
        faults = [f"missing {', '.join(missing)}"] if missing else []
        faults += [f"unknown {', '.join(extra)}"] if extra else []
        faults += [f"not text: {', '.join(wrong)}"] if wrong else []
        expected = ", ".join(found.arguments)
        raise ToolError("bad_arguments", f"{found.name} takes ({expected}) as text; {'; '.join(faults)}.")
    return {name: arguments[name].strip() for name in found.arguments}


@dataclass(frozen=True, slots=True)
class Flaky:
    """Injected faults: a call fails with probability `rate`, decided by (seed, episode key, call index) alone."""

    rate: float
    seed: int

    def fails(self, key: str, index: int) -> bool:
        return self.rate > 0 and random.Random(f"{self.seed}/flaky/{key}/{index}").random() < self.rate
