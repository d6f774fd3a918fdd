"""A recipe says what it means or is refused. If this breaks, a typing error trains a different model in silence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from star import recipe as recipes
from star.errors import UsageError
from star.recipe import changes, find, load, shipped
from star.records import plain, write_json
from star.settings import Limits, Lora, Recipe


@pytest.fixture
def write(tmp_path: Path):  # type: ignore[no-untyped-def]
    def write(text: str) -> Path:
        path = tmp_path / "recipe.yaml"
        path.write_text(text)
        return path

    return write


def test_no_file_gives_the_defaults() -> None:
    assert load(None) == Recipe()


def test_a_file_fills_in_over_the_defaults(write) -> None:  # type: ignore[no-untyped-def]
    recipe = load(write("sft: {lr: 5e-6, lora: {rank: 8}}\nrl:\n  limits: {turns: 9}\n"))
    assert recipe.name == "recipe"
    assert recipe.sft.lr == 5e-6
    assert recipe.sft.lora == Lora(rank=8)
    assert recipe.rl.limits == Limits(turns=9, context=30720), "the default of rl.limits, not of Limits"


def test_overrides_apply_in_order_and_parse_as_yaml(write) -> None:  # type: ignore[no-untyped-def]
    path = write("rl: {lr: 1e-3}")
    recipe = load(path, ["rl.lr=2e-6", "rl.lr=3e-6", "rl.lora={}", "rl.lora.rank=4", "rl.bf16=true", "seed=3"])
    assert (recipe.rl.lr, recipe.rl.lora, recipe.rl.bf16, recipe.seed) == (3e-6, Lora(rank=4), True, 3)
    assert load(path, ["rl.lora={rank: 4}", "rl.lora=null"]).rl.lora is None
    assert load(path, ["sft.lora.targets=[q_proj, v_proj]"]).sft.lora == Lora(targets=["q_proj", "v_proj"])


def test_a_new_plugin_name_drops_the_settings_of_the_old_one(write, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(recipes, "check", lambda kind, spec, where: None)
    path = write("rl: {algo: {name: grpo, epsilon: 0.1}}")
    assert load(path, ["rl.algo.name=arpo"]).rl.algo == {"name": "arpo"}
    assert load(path, ["rl.algo=arpo"]).rl.algo == {"name": "arpo"}
    assert load(path, ["rl.algo=grpo"]).rl.algo == {"name": "grpo", "epsilon": 0.1}
    assert load(path, ["rl.algo.beta=0.3", "rl.algo=arpo"]).rl.algo == {"name": "arpo", "beta": 0.3}
    assert load(path, ["rl.algo={name: arpo, beta: 0.3}"]).rl.algo == {"name": "arpo", "beta": 0.3}
    assert load(None, ["rl.algo.epsilon=0.3"]).rl.algo == {"name": "grpo", "epsilon": 0.3}
    assert load(None, ["world.size=3"]).world == {"name": "travel", "size": 3}
    assert load(write("rl: {algo: dapo}")).rl.algo == {"name": "dapo"}


def test_an_override_drops_what_the_file_says_for_the_old_value(write) -> None:  # type: ignore[no-untyped-def]
    path = write("sft: {tiny: {hidden: 64}, optimizer: muon, muon_lr: 0.1, steps: 9}\nrl: {epochs: 2.0}")
    recipe = load(path, ["sft.model=some/model", "sft.optimizer=adamw", "sft.epochs=2", "rl.steps=4"])
    assert (recipe.sft.tiny.hidden, recipe.sft.muon_lr, recipe.sft.steps, recipe.sft.epochs) == (128, 0.02, None, 2.0)
    assert recipe.rl.steps == 4
    assert load(path).sft.steps == 9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sft: {lrr: 1.0}", r"recipe.yaml: sft.lrr: unknown key. Did you mean 'lr'\? Known: batch, bf16"),
        ("sft: {tiny: {hiden: 1}}", r"sft.tiny.hiden: unknown key. Did you mean 'hidden'"),
        ("stf: {}", r"recipe.yaml: stf: unknown key. Did you mean 'sft'"),
        ("sft: {lr: fast}", r"recipe.yaml: sft.lr: 'fast' is a wrong value .* Expected: float"),
        ("sft: {batch: 8.5}", "sft.batch: 8.5 is a wrong value"),
        ("sft: {batch: '8'}", "sft.batch: '8' is a wrong value"),
        ("sft: {bf16: 1}", "sft.bf16: 1 is a wrong value"),
        ("sft: {lr: .nan}", "sft.lr: nan is not a plain finite value"),
        ("sft: {lr: }", "sft.lr: None is a wrong value"),
        ("sft: {optimizer: sgd}", "sft.optimizer: 'sgd' .* Expected: 'adamw' or 'muon'"),
        ("sft: [1]", r"sft: \[1\] is no mapping"),
        ("sft: {lora: true}", "sft.lora: True is no mapping"),
        ("sft: {batch: 8}\nsft: {batch: 4}", "line 2: the key 'sft' is given twice"),
        ("sft: {batch: 8, batch: 4}", "the key 'batch' is given twice"),
        ("sft: {batch: 8", "not valid YAML"),
        ("- 1", "not a mapping"),
        ("world: 3", "world: 3 is no plugin"),
        ("world: {size: 3}", "world: a plugin needs a name. Known: travel"),
        ("world: moon", "recipe.yaml: world: unknown world 'moon'. Known: travel"),
        ("rl: {algo: {name: grp}}", r"rl.algo: unknown algorithm 'grp'. Did you mean 'grpo'\? Known: arpo, dapo, grpo"),
        ("name: a/b", "name: a/b does not fit. It names a directory"),
        ("sft: {batch: 0}", "sft.batch: 0 is too small"),
        ("sft: {lr: -1.0}", "sft.lr: -1.0 is too small"),
        ("rl: {lora: {rank: 0}}", "rl.lora.rank: 0 is too small"),
        ("sft: {warmup: 1.5}", "sft.warmup: 1.5 is too large"),
        ("sft: {batch: 8, micro_batch: 3}", "sft.micro_batch: 3 does not fit. It must divide sft.batch = 8"),
        ("sft: {tiny: {heads: 3}}", "sft.tiny.heads: 3 does not fit"),
        ("rl: {group: 1}", "rl.group: 1 does not fit. A group needs at least 2"),
        ("rl: {micro_batch: 7}", "rl.micro_batch: 7 does not fit. It must divide rl.queries x rl.group = 256"),
        ("eval: {limits: {context: 100}}", "eval.limits.turn_tokens: 4096 does not fit"),
        ("sft: {muon_lr: 0.1}", "sft.muon_lr: has no effect, since it needs sft.optimizer = muon. Remove it"),
        ("sft: {model: x/y, tiny: {}}", "sft.tiny: has no effect, since it needs sft.model = tiny"),
        ("sft: {decay: 0.1}", "sft.decay: has no effect, since it needs sft.schedule = warmup_stable_decay"),
        ("sft: {epochs: 1.0, steps: 3}", "sft.epochs: has no effect, since it needs no sft.steps"),
        ("rl: {lora: {}, freeze_embeddings: true}", "rl.freeze_embeddings: True does not fit. With rl.lora it has no effect"),
        ("world: {name: travel, database: x}\neval: {transfer: true}", "eval.transfer: True does not fit"),
        ("rl: {epochs: 1.0, steps: 3}", "rl.epochs: has no effect, since it needs no rl.steps"),
    ],
)
def test_a_wrong_recipe_is_refused_by_name(write, text: str, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(UsageError, match=message):
        load(write(text))


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("sft.lrr=1", "--set sft.lrr: unknown key. Did you mean 'lr'"),
        ("sft.lr.x=1", "sft.lr: {'x': 1} is a wrong value"),
        ("sft.lr", "is not of the form key=value"),
        ("=3", "is not of the form key=value"),
        ("sft.lr=[", "not valid YAML"),
        ("sft.lr=", "--set sft.lr: None is a wrong value"),
        ("sft.muon_lr=0.1", "--set sft.muon_lr: has no effect"),
        ("rl.algo=nope", "unknown algorithm 'nope'"),
        ("rl.algo.nope=1", "grpo has no setting 'nope'"),
    ],
)
def test_a_wrong_override_is_refused_by_name(override: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(None, [override])


def test_both_settings_of_a_pair_in_one_layer_are_refused() -> None:
    with pytest.raises(UsageError, match="sft.epochs: has no effect"):
        load(None, ["sft.epochs=1", "sft.steps=3"])


def test_a_snapshot_loads_as_the_recipe_it_was_taken_from(tmp_path: Path, write) -> None:  # type: ignore[no-untyped-def]
    recipe = load(write("sft: {steps: 3, tiny: {hidden: 64}}\nrl: {lora: {rank: 2}}"))
    write_json(tmp_path / "recipe.json", recipe)
    assert load(tmp_path / "recipe.json") == recipe
    assert load(tmp_path / "recipe.json", ["sft.epochs=2"]).sft.steps is None


def test_changes_are_named_by_dotted_key() -> None:
    assert changes(plain(load(None)), plain(load(None, ["sft.lr=1.0", "seed=1"]))) == ["seed", "sft.lr"]


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_recipe_loads(name: str) -> None:
    recipe = load(find(name))
    assert recipe.name == name.rpartition("/")[2]
    json.dumps(plain(recipe), allow_nan=False)


def test_an_unknown_recipe_lists_the_shipped_ones() -> None:
    with pytest.raises(UsageError, match=r"paper-9b: no such recipe file.*Did you mean 'paper-.*Known: .*paper-7b"):
        find("paper-9b")


def test_an_unreadable_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        load(tmp_path / "none.yaml")
