"""The recipe of a run: read from YAML, overridden, checked."""

from __future__ import annotations

import dataclasses
import logging
import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from star import strictyaml
from star.errors import UsageError
from star.plugins import build, check, typed, unknown
from star.records import plain
from star.settings import Recipe

SNAPSHOT = "recipe.json"
"""Name of the file in a run directory that holds all settings of its recipe."""

log = logging.getLogger(__name__)

PLUGINS = {
    "world": "world",
    "synth.teacher": "policy",
    "rl.algo": "algorithm",
    "rl.reward": "reward",
    "rl.rollouts": "sampler",
    "eval.rollouts": "sampler",
}
"""Where a recipe names a plugin, and of which kind."""

APPLIES = {
    "sft.tiny": ("sft.model", "tiny"),
    "sft.muon_lr": ("sft.optimizer", "muon"),
    "sft.decay": ("sft.schedule", "warmup_stable_decay"),
    "sft.epochs": ("sft.steps", None),
    "rl.muon_lr": ("rl.optimizer", "muon"),
    "rl.epochs": ("rl.steps", None),
}
"""Settings that have an effect only while another setting has this value."""

MAY_BE_ZERO = frozenset(
    {
        "seed",
        "sft.warmup",
        "sft.weight_decay",
        "rl.warmup",
        "rl.kl",
        "rl.eval_steps",
        "rl.probe",
        "rl.tool_failure_rate",
        "dropout",
    }
)
SHARES = frozenset({"rl.tool_failure_rate", "sft.warmup", "sft.decay", "rl.warmup", "eval.top_p", "dropout"})


def shipped() -> dict[str, Path]:
    """The recipes that come with star, by name: `pipelines/` of a checkout, `_recipes/` of an installed package."""
    root = shipped_files()
    others = {root / "accelerate", root / "ablations"}
    found = (path for path in sorted(root.rglob("*.yaml")) if path.parent not in others)
    return {path.relative_to(root).with_suffix("").as_posix(): path for path in found}


def shipped_files() -> Path:
    """The folder of the files that come with star."""
    package = Path(__file__).resolve().parent
    return next((d for d in (package / "_recipes", package.parent / "pipelines") if d.is_dir()), package)


def find(name: str) -> Path:
    """The file of a recipe that is named by its path or, if it is shipped, by its name."""
    if Path(name).is_file():
        return Path(name)
    recipes = shipped()
    if name not in recipes:
        raise unknown(f"{name}: no such recipe file, and no shipped recipe of this name", name, recipes)
    return recipes[name]


def load(path: Path | None, overrides: Sequence[str] = ()) -> Recipe:
    """Read a recipe and apply `a.b=c` overrides in order; None starts from the defaults.

    An override of a setting that others depend on (`sft.tiny` on `sft.model`), and a new `name` of a plugin, drop what
    the file says for the old value. Raises UsageError for what is unknown, mistyped, impossible or without effect.
    """
    data = {} if path is None else strictyaml.read(path)
    if path is not None and path.name != SNAPSHOT:
        data.setdefault("name", path.stem)
    settings = [_override(text) for text in overrides]
    draft = _Draft("recipe" if path is None else str(path), frozenset(key for key, _ in settings))
    _drop(data, dict(settings), every=path is not None and path.name == SNAPSHOT)
    for key, value in sorted(settings, key=lambda item: item[0].removesuffix(".name") not in PLUGINS):
        draft.set(data, key, value)
    recipe: Recipe = draft.fill(Recipe(), data, "")
    draft.check(recipe, data)
    return recipe


def build_world(recipe: Recipe, **changes: Any) -> Any:
    """The world of a recipe; it has the recipe's seed unless the recipe gives it one of its own."""
    return build("world", {"seed": recipe.seed, **recipe.world, **changes})


def effective(recipe: Recipe) -> dict[str, Any]:
    """All settings as JSON values, without those that have no effect beside the others."""
    data: dict[str, Any] = plain(recipe)
    for key, (other, wanted) in APPLIES.items():
        section, _, name = key.partition(".")
        if _get(data, other) != wanted:
            del data[section][name]
    return data


def changes(before: Any, after: Any, prefix: str = "") -> list[str]:
    """The dotted keys in which two JSON values differ."""
    if not (isinstance(before, dict) and isinstance(after, dict)):
        return [] if before == after else [prefix]
    dot = f"{prefix}." if prefix else ""
    keys = sorted({*before, *after})
    return [change for key in keys for change in changes(before.get(key), after.get(key), f"{dot}{key}")]


@dataclass(frozen=True)
class _Draft:
    """A recipe on its way from YAML to records; knows which keys came from where, for the errors."""

    label: str
    overridden: frozenset[str]

    def at(self, key: str) -> str:
        return f"--set {key}" if key in self.overridden else f"{self.label}: {key}"

    def set(self, data: dict[str, Any], key: str, value: Any) -> None:
        """Put one override in place."""
        if key in PLUGINS and isinstance(value, str):
            key, value = f"{key}.name", value
        *parents, last = key.split(".")
        place, default = data, typing.cast(Any, Recipe())
        for depth, part in enumerate(parents, 1):
            default = getattr(default, part, None)
            plugin = ".".join(parents[:depth]) in PLUGINS
            if not isinstance(place.get(part), dict):
                place[part] = dict(default) if plugin and isinstance(default, dict) else {}
            place = place[part]
        if ".".join(parents) in PLUGINS and last == "name" and place.get("name") != value:
            place.clear()
        place[last] = value

    def fill(self, default: Any, data: Any, prefix: str) -> Any:
        """`default` with the settings of `data`."""
        if not isinstance(data, dict):
            raise UsageError(f"{self.at(prefix)}: {data!r} is no mapping of settings", "Write key: value lines")
        hints = typing.get_type_hints(type(default))
        values = {}
        for name, value in data.items():
            key = f"{prefix}.{name}" if prefix else str(name)
            if name not in hints:
                raise unknown(f"{self.at(key)}: unknown key", name, hints)
            values[name] = self._value(hints[name], getattr(default, name), value, key)
        return dataclasses.replace(default, **values)

    def _value(self, hint: Any, default: Any, value: Any, key: str) -> Any:
        if key in PLUGINS:
            spec = {"name": value} if isinstance(value, str) else value
            if not isinstance(spec, dict):
                raise UsageError(f"{self.at(key)}: {value!r} is no plugin", "Write {name: ..., setting: ...}")
            check(PLUGINS[key], spec, self.at(key))
            return spec
        record: Any = next((h for h in (hint, *typing.get_args(hint)) if dataclasses.is_dataclass(h)), None)
        if record is None or (value is None and record is not hint):
            return typed(hint, value, self.at(key))
        return self.fill(record() if default is None else default, value, key)

    def check(self, recipe: Recipe, data: dict[str, Any]) -> None:
        """Refuse what cannot work and what would have no effect."""
        for key, (other, wanted) in APPLIES.items():
            if _get(data, key) is not None and _get(plain(recipe), other) != wanted:
                needs = f"{other} = {wanted}" if wanted is not None else f"no {other}"
                what = f"{self.at(key)}: has no effect, since it needs {needs}"
                raise UsageError(what, f"Remove it, or change {other}")
        for key, value in _leaves(plain(recipe)):
            last = key.rpartition(".")[2]
            if value < 0 or (value == 0 and not {key, last} & MAY_BE_ZERO):
                raise UsageError(f"{self.at(key)}: {value} is too small", "It must be positive")
            if value > 1 and {key, last} & SHARES:
                raise UsageError(f"{self.at(key)}: {value} is too large", "It is a share of at most 1")
        for key, wrong, fix in _faults(recipe):
            if wrong:
                raise UsageError(f"{self.at(key)}: {_get(plain(recipe), key)} does not fit", fix)


def _faults(recipe: Recipe) -> Iterator[tuple[str, bool, str]]:
    """(key, whether it is wrong, what to do) of the rules between settings."""
    sft, rl, tiny = recipe.sft, recipe.rl, recipe.sft.tiny
    named = re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", recipe.name)
    yield "name", named is None, "It names a directory: use letters, digits, dots and dashes"
    yield "sft.micro_batch", sft.batch % sft.micro_batch != 0, f"It must divide sft.batch = {sft.batch}"
    yield "sft.tiny.heads", tiny.hidden % tiny.heads != 0, f"It must divide sft.tiny.hidden = {tiny.hidden}"
    yield "sft.tiny.kv_heads", tiny.heads % tiny.kv_heads != 0, f"It must divide sft.tiny.heads = {tiny.heads}"
    unprobed = rl.probe == 0 and sorted(rl.drop) != ["always", "never"]
    yield "rl.drop", unprobed, "It has no effect without rl.probe"
    yield "rl.drop", rl.probe > 0 and not rl.drop, "Name always, never or both; or set rl.probe=0"
    idle = rl.tool_failure_rate is not None and rl.recorded is not None
    yield "rl.tool_failure_rate", idle, "Recorded rollouts call no tools; leave it out"
    yield "rl.probe", rl.probe > 0 and rl.recorded is not None, "Recorded rollouts are not probed; leave it out"
    yield "rl.group", rl.group < 2, "A group needs at least 2 rollouts to compare"
    frozen = rl.freeze_embeddings and rl.lora is not None
    yield "rl.freeze_embeddings", frozen, "With rl.lora it has no effect: adapters leave the embeddings alone anyway"
    real = recipe.eval.transfer and recipe.world.get("database") is not None
    yield "eval.transfer", real, "It compares embedded worlds; leave it out with world.database"
    rollouts = rl.queries * rl.group
    yield "rl.micro_batch", rollouts % rl.micro_batch != 0, f"It must divide rl.queries x rl.group = {rollouts}"
    for key, limits in (("rl.limits", rl.limits), ("eval.limits", recipe.eval.limits)):
        fix = f"It must be below {key}.context = {limits.context}"
        yield f"{key}.turn_tokens", limits.turn_tokens >= limits.context, fix


def _leaves(value: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Every number of a recipe outside plugins, with its dotted key."""
    for name, item in value.items():
        key = prefix + name
        if isinstance(item, dict) and key not in PLUGINS:
            yield from _leaves(item, f"{key}.")
        elif isinstance(item, int | float) and not isinstance(item, bool):
            yield key, item


def _drop(data: dict[str, Any], overrides: dict[str, Any], every: bool) -> None:
    """Remove from `data` what stops applying because of the overrides; `every`: also what did not apply before."""
    for key, (other, wanted) in APPLIES.items():
        value = overrides.get(other, _get(data, other) if every else wanted)
        alternative = wanted is None and key in overrides and other not in overrides
        target = other if alternative else key
        if (alternative or value != wanted) and _get(data, target) is not None:
            if not every:
                log.info("%s of the recipe is dropped: it does not go with %s", target, key if alternative else other)
            section, _, name = target.partition(".")
            del data[section][name]


def _get(data: dict[str, Any], key: str) -> Any:
    value: Any = data
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value


def _override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals or not all(key.strip().split(".")):
        raise UsageError(f"--set {text}: is not of the form key=value", "Example: --set rl.algo.name=arpo")
    return key.strip(), strictyaml.parse(value, f"--set {text}")
