"""Plugins by name: one table, checked without importing anything heavy, built on demand.

A plugin is its own configuration: `{name: arpo, beta: 0.2}` builds `ARPO(beta=0.2)`. A name is one of the table's, or
`package.module:Class` for a plugin that lives elsewhere.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import inspect
import json
import re
import typing
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from star.errors import StarError, UsageError

TABLE: dict[str, dict[str, str]] = {
    "world": {"travel": "star.worlds.travel.world:TravelWorld"},
    "policy": {
        "expert": "star.policies.expert:ExpertPolicy",
        "openai": "star.policies.openai:OpenAIPolicy",
        "local": "star.train.teacher:LocalTeacher",
    },
    "algorithm": {
        "grpo": "star.algorithms.grpo:GRPO",
        "dapo": "star.algorithms.dapo:DAPO",
        "arpo": "star.algorithms.arpo:ARPO",
    },
    "reward": {
        "sum": "star.rewards:Sum",
        "macro": "star.rewards:Macro",
        "success": "star.rewards:Success",
        "curriculum": "star.rewards:Curriculum",
        "staged": "star.rewards:Staged",
    },
    "sampler": {
        "hf": "star.train.samplers:HF",
        "vllm": "star.train.samplers:VLLM",
        "vllm_server": "star.train.samplers:VLLMServer",
    },
}

GIVEN: dict[str, frozenset[str]] = {
    "world": frozenset(),
    "policy": frozenset({"world"}),
    "algorithm": frozenset(),
    "reward": frozenset(),
    "sampler": frozenset(),
}
"""Constructor arguments that the caller supplies and that a recipe therefore cannot set."""

HEAVY_MODULES = frozenset({"star.train.teacher"})
"""Modules of plugins that import torch: `check` looks at their names only."""

_TRACKER = "Install it: pip install 'star-agents[trackers]', or pip install {}"
_INSTALL = {
    "": "Install it: pip install 'star-agents[train]', or pip install {}",
    "deepspeed": "Install it: pip install 'star-agents[deepspeed]'",
    "tensorboard": _TRACKER,
    "trackio": _TRACKER,
    "vllm": "Install it: pip install 'star-agents[vllm]', then pip install 'star-agents[train]', since both pin transformers",
    "wandb": _TRACKER,
}
"""Missing package -> what to do."""

_IMPORTABLE = "Name an importable package.module:Class"


def load(target: str) -> Any:
    """Import "package.module:attribute"; raise StarError if the module needs a package that is not installed."""
    module, _, attribute = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if module == missing or module.startswith(missing + "."):
            raise UsageError(f"{target}: there is no module {missing!r}", _IMPORTABLE) from None
        raise _missing(target, missing) from None
    if found is None:
        raise UsageError(f"{target}: module {module} has no {attribute!r}", _IMPORTABLE)
    return found


def need(package: str, who: str) -> None:
    """Raises StarError unless a package is installed; does not import it."""
    if importlib.util.find_spec(package) is None:
        raise _missing(who, package)


def _missing(who: str, module: str) -> StarError:
    package = module.partition(".")[0]
    return StarError(f"{who} needs the package {module!r}", _INSTALL.get(package, _INSTALL[""]).format(package))


def build(kind: str, spec: Mapping[str, Any], **given: Any) -> Any:
    """Build a plugin from its spec.

    `given` are offered constructor arguments that are not settings, such as `world=...`; a plugin gets those it takes.
    Raises UsageError for an unknown name, an unknown or missing field, a wrong type, or a value the plugin refuses.
    """
    return _make(load(_target(kind, spec, kind)), GIVEN[kind], spec, kind, given)


def check(kind: str, spec: Mapping[str, Any], where: str = "") -> None:
    """Refuse a spec with a wrong name, field or value. Imports the plugin's module only if that is cheap."""
    where = where or kind
    target = _target(kind, spec, where)
    module = target.partition(":")[0]
    if target not in TABLE[kind].values():
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            raise UsageError(f"{where}: there is no package for {spec['name']!r}", "Install it, or correct the name")
        return
    if module in HEAVY_MODULES or importlib.util.find_spec(module) is None:
        return
    if GIVEN[kind]:
        _settings(load(target), GIVEN[kind], spec, where)
    else:
        _make(load(target), GIVEN[kind], spec, where, {})


def typed(hint: Any, value: Any, where: str) -> Any:
    """A value that came from YAML as its declared type, or UsageError naming `where`. Nothing is converted but 1 to 1.0
    and lists to tuples."""
    try:
        text = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        raise UsageError(f"{where}: {value!r} is not a plain finite value", f"Expected: {_show(hint)}") from None
    try:
        return _adapter(hint).validate_json(text, strict=True)
    except ValidationError as error:
        reason = error.errors()[0]["msg"]
        raise UsageError(f"{where}: {value!r} is a wrong value ({reason})", f"Expected: {_show(hint)}") from None


def unknown(what: str, name: object, known: Iterable[str]) -> UsageError:
    """The error for a name that is not among `known`; `what` says where it was and what it should have been."""
    names = sorted(known)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    guess = f"Did you mean {close[0]!r}? " if close else ""
    return UsageError(what, f"{guess}Known: {', '.join(names) or 'none'}")


def _target(kind: str, spec: Mapping[str, Any], where: str) -> str:
    """The "module:Class" of a spec."""
    if kind not in TABLE:
        raise unknown(f"{kind}: unknown kind of plugin", kind, TABLE)
    name = spec.get("name")
    if name is None:
        raise UsageError(f"{where}: a plugin needs a name", f"Known: {', '.join(sorted(TABLE[kind]))}")
    if isinstance(name, str) and name in TABLE[kind]:
        return TABLE[kind][name]
    if isinstance(name, str) and re.fullmatch(r"\w+(\.\w+)*:\w+", name):
        return name
    raise unknown(f"{where}: unknown {kind} {name!r}", name, TABLE[kind])


def _make(maker: Any, reserved: frozenset[str], spec: Mapping[str, Any], where: str, given: Mapping[str, Any]) -> Any:
    settings = _settings(maker, reserved | frozenset(given), spec, where)
    parameters = inspect.signature(maker).parameters
    try:
        return maker(**settings, **{name: value for name, value in given.items() if name in parameters})
    except ValueError as error:
        raise UsageError(f"{where}: {spec['name']}: {error}", "Correct the setting") from None


def _settings(maker: Any, given: frozenset[str], spec: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The checked settings of a spec for a constructor, without its name."""
    parameters = inspect.signature(maker).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    names = [n for n, p in parameters.items() if p.kind not in _STARRED and n not in given | {"name"}]
    values = {name: value for name, value in spec.items() if name != "name"}
    for name in values:
        if name not in names and (name in given or not open_ended):
            raise unknown(f"{where}: {spec['name']} has no setting {name!r}", name, names)
    for name in names:
        if name not in values and parameters[name].default is inspect.Parameter.empty:
            raise UsageError(f"{where}: {spec['name']} needs {name!r}", f"Add {name}: ... to {where}")
    hints = _hints(maker)
    return {n: typed(hints[n], v, f"{where}.{n}") if _is_plain(hints.get(n)) else v for n, v in values.items()}


_STARRED = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def _hints(maker: Any) -> dict[str, Any]:
    target = maker if dataclasses.is_dataclass(maker) else getattr(maker, "__init__", maker)
    try:
        return typing.get_type_hints(target)
    except NameError:
        return {}


@lru_cache(maxsize=256)
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint)


def _is_plain(hint: Any) -> bool:
    """Whether a type can be checked against a JSON value at all."""
    if hint is None:
        return False
    try:
        _adapter(hint)
    except (PydanticUserError, TypeError):
        return False
    return True


def _show(hint: Any) -> str:
    """A type as a person writes it."""
    if typing.get_origin(hint) is typing.Literal:
        return " or ".join(repr(value) for value in typing.get_args(hint))
    return hint.__name__ if isinstance(hint, type) and not typing.get_args(hint) else str(hint).replace("typing.", "")
