"""YAML without its traps: plain data only, a key given twice is refused, 5e-6 is a number, and off and no are words."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from star.errors import UsageError


def parse(text: str, where: str) -> Any:
    """The value of a YAML text; UsageError naming `where` and the line otherwise."""
    try:
        return _Loader(text).get_single_data()
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f"line {mark.line + 1}: " if mark else ""
        reason = str(getattr(error, "problem", None) or error).replace("\n", " ")
        raise UsageError(f"{where}: not valid YAML ({place}{reason})", "Correct it there") from None


def read(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"{path}: cannot be read ({reason})", "Name a recipe file, or a shipped recipe") from None
    data = parse(text, str(path))
    if data is not None and not isinstance(data, dict):
        raise UsageError(f"{path}: not a mapping", "Write top-level keys such as world, sft and rl")
    return data or {}


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            if key is None or key in seen:
                problem = "a key is not a plain word" if key is None else f"the key {key!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


_EXPONENT = re.compile(r"[-+]?[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+$")
_Loader.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+0123456789"))
_BOOLEAN = "tag:yaml.org,2002:bool"
_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag != _BOOLEAN or first in "tTfF"]
    for first, forms in _Loader.yaml_implicit_resolvers.items()
}
