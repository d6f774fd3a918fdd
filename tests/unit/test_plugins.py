"""Plugins are found by name and are their own configuration. If this breaks, recipes stop building what they say."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType

import pytest

from star import plugins
from star.errors import StarError, UsageError


@dataclass(frozen=True)
class Door:
    width: float
    colours: tuple[str, ...] = ("red",)
    height: float = 2.0


@dataclass(frozen=True)
class Porter:
    world: object
    patience: int = 3


class Open:
    def __init__(self, size: int, **rest: object) -> None:
        self.size, self.rest = size, rest


@pytest.fixture(autouse=True)
def foreign(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("foreign_doors")
    for maker in (Door, Porter, Open):
        setattr(module, maker.__name__, maker)
    monkeypatch.setitem(sys.modules, "foreign_doors", module)
    monkeypatch.setitem(plugins.TABLE["reward"], "door", "foreign_doors:Door")
    monkeypatch.setitem(plugins.TABLE["policy"], "porter", "foreign_doors:Porter")
    module.__spec__ = __spec__


def test_builds_a_plugin_from_its_own_fields() -> None:
    door = plugins.build("reward", {"name": "door", "width": 1, "colours": ["blue", "green"]})
    assert door == Door(width=1.0, colours=("blue", "green"))


def test_given_arguments_are_no_settings() -> None:
    assert plugins.build("policy", {"name": "porter", "patience": 5}, world="W") == Porter("W", 5)
    with pytest.raises(UsageError, match="porter has no setting 'world'.*Known: patience"):
        plugins.check("policy", {"name": "porter", "world": "mine"})
    plugins.check("policy", {"name": "porter"})


def test_foreign_plugins_are_named_by_module_and_class() -> None:
    assert plugins.build("reward", {"name": "foreign_doors:Door", "width": 2.5}) == Door(2.5)
    assert plugins.build("reward", {"name": "foreign_doors:Open", "size": 1, "extra": 2}).rest == {"extra": 2}
    with pytest.raises(UsageError, match="no 'Gate'"):
        plugins.build("reward", {"name": "foreign_doors:Gate"})
    with pytest.raises(UsageError, match="no module 'nowhere_at_all'"):
        plugins.build("reward", {"name": "nowhere_at_all.x:Gate"})
    with pytest.raises(UsageError, match="no package"):
        plugins.check("reward", {"name": "nowhere_at_all.x:Gate"})


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"name": "dor", "width": 1.0}, r"unknown reward 'dor'. Did you mean 'door'\? Known: curriculum, door, macro"),
        ({"name": "door:x:y"}, "unknown reward"),
        ({"name": 3}, "unknown reward 3"),
        ({}, "needs a name"),
        (
            {"name": "door", "width": 1.0, "wdith": 2.0},
            r"door has no setting 'wdith'. Did you mean 'width'\? Known: colours",
        ),
        ({"name": "door"}, "door needs 'width'"),
        ({"name": "door", "width": "wide"}, r"rl.reward.width: 'wide' is a wrong value .* Expected: float"),
        ({"name": "door", "width": True}, "rl.reward.width: True is a wrong value"),
        ({"name": "door", "width": float("inf")}, "not a plain finite value"),
    ],
)
def test_a_wrong_spec_lists_the_right_ones(spec: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plugins.check("reward", spec, "rl.reward")


def test_an_unknown_kind_lists_the_kinds() -> None:
    with pytest.raises(UsageError, match="Known: algorithm, policy, reward, sampler, world"):
        plugins.check("juror", {"name": "x"})


def test_heavy_policies_are_checked_by_name_without_an_import() -> None:
    before = "torch" in sys.modules
    plugins.check("policy", {"name": "local", "model": "anything"})
    assert ("torch" in sys.modules) == before


def test_a_missing_package_is_named_with_the_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "needy.py").write_text("import absent_package.core\n")  # type: ignore[operator]
    with pytest.raises(StarError, match=r"needs the package 'absent_package.*pip install absent_package"):
        plugins.load("needy:Anything")
