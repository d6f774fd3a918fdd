"""Training goes on where a killed process left it. If this breaks, an interrupted run fails on its own remains, or ends
with other weights than an uninterrupted one."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from star.algorithms.arpo import ARPO
from star.algorithms.dapo import DAPO
from star.errors import StarError
from star.records import read_json, write_json, write_jsonl
from star.settings import Lora, Sft, Tiny
from star.train import checkpoints, sft, tiny
from star.train import model as models
from star.train.dev import Dev, Keep
from star.types import Completion, Trajectory, Turn

SIZE = Tiny(hidden=16, layers=1, heads=2, kv_heads=1, intermediate=16)
SETTINGS = {"steps": 8, "batch": 8, "micro_batch": 4, "save_steps": 3, "schedule": "linear"}
"""Four steps are an epoch, so that a resumed run begins in the middle of one."""


@pytest.fixture
def data(renderer: Any, conversations: Any) -> list[dict[str, list[int]]]:
    return [dict(zip(("input_ids", "labels"), renderer.example(messages), strict=True)) for messages in conversations]


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def adapter(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "adapter_model.safetensors")


def saved(checkpoint: Path) -> dict[str, torch.Tensor]:
    return load_file(checkpoint / "model.safetensors")


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


@pytest.mark.parametrize(
    "extra",
    [{}, {"optimizer": "muon", "lr": 1e-3}, {"lora": Lora(rank=2, dropout=0.5), "lr": 1e-2}],
    ids=["adamw", "muon", "lora"],
)
def test_sft_goes_on_from_any_checkpoint(renderer: Any, data: Any, tmp_path: Path, extra: dict[str, Any]) -> None:
    def run(directory: Path) -> dict[str, torch.Tensor]:
        model: Any = tiny.model(SIZE, renderer.tokenizer, 0)
        settings = Sft(**{**SETTINGS, **extra})
        if settings.lora:
            torch.manual_seed(0)
            model = models.lora(model, settings.lora)
        log, steps, last = sft.train(model, renderer, data, settings, directory, 0, lambda *_: None)
        assert steps == 8 and any("loss" in row for row in log)
        return weights(models.stored(last)) if isinstance(model, PreTrainedModel) else adapter(last)

    whole = run(tmp_path / "a")
    assert equal(run(tmp_path / "a"), whole), "a finished training is left as it is"
    assert equal(run(tmp_path / "b"), whole)
    interrupted(tmp_path / "c", lambda directory: run_until(directory, renderer, data, Sft(**{**SETTINGS, **extra}), 6))
    assert equal(run(tmp_path / "c"), whole)


class Killed(Exception):
    """The process ends here."""


def interrupted(directory: Path, work: Callable[[Path], None]) -> None:
    with pytest.raises(Killed):
        work(directory)
    assert checkpoints.last(directory)


def run_until(directory: Path, renderer: Any, data: Any, settings: Sft, step: int) -> None:
    """Train, and die when step `step` is logged."""

    def report(done: int, total: int, note: str) -> None:
        if done > step:
            raise Killed

    model: Any = tiny.model(SIZE, renderer.tokenizer, 0)
    if settings.lora:
        torch.manual_seed(0)
        model = models.lora(model, settings.lora)
    sft.train(model, renderer, data, settings, directory, 0, report)


def trained(renderer: Any, data: Any, directory: Path) -> Path:
    """The last checkpoint of a whole training."""
    model = tiny.model(SIZE, renderer.tokenizer, 0)
    return sft.train(model, renderer, data, Sft(**SETTINGS), directory, 0, lambda *_: None)[2]


def test_a_checkpoint_that_was_cut_off_is_not_used(
    renderer: Any, data: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    last = trained(renderer, data, tmp_path)
    assert last.name == "checkpoint-8" and checkpoints.last(tmp_path) == last
    torn = tmp_path / "checkpoint-9"
    shutil.copytree(last, torn)
    (torn / checkpoints.SEAL).unlink()
    (tmp_path / "checkpoint-10").mkdir()
    assert checkpoints.last(tmp_path) == last
    told = [record.message.partition(" was ")[0] for record in caplog.records if "removed" in record.message]
    assert told == ["checkpoint-9", "checkpoint-10"]
    assert sorted(path.name for path in tmp_path.glob("checkpoint-*")) == ["checkpoint-8"]
    shutil.rmtree(last)
    assert checkpoints.last(tmp_path) is None


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json", "rng_state.pth"])
@pytest.mark.parametrize("damage", ["cut short", "lost"])
def test_a_damaged_checkpoint_is_told(renderer: Any, data: Any, tmp_path: Path, name: str, damage: str) -> None:
    """The Trainer itself would begin anew, or go on with a new optimizer, without a word."""
    file = trained(renderer, data, tmp_path) / name
    is_now = "missing"
    if damage == "lost":
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:-7])
        is_now = f"{file.stat().st_size} bytes long"
    with pytest.raises(StarError) as told:
        trained(renderer, data, tmp_path)
    assert f"{file} is {is_now}, and was " in str(told.value) and str(file.parent) in told.value.fix


def test_a_checkpoint_stays_until_the_next_one_is_whole(
    renderer: Any, data: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, value: Any) -> None:
        if path.parent.name == "checkpoint-6":
            raise OSError("No space left on device")
        write_json(path, value)

    monkeypatch.setattr(checkpoints, "write_json", full)
    with pytest.raises(OSError, match="No space left"):
        trained(renderer, data, tmp_path)
    assert {path.name for path in tmp_path.glob("checkpoint-*")} == {"checkpoint-3", "checkpoint-6"}
    monkeypatch.undo()
    assert equal(saved(trained(renderer, data, tmp_path)), saved(trained(renderer, data, tmp_path / "whole")))
    assert [path.name for path in tmp_path.glob("checkpoint-*")] == ["checkpoint-8"]


def test_going_on_warns_only_of_weights_that_are_missing(
    renderer: Any, data: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def cut() -> None:
        shutil.rmtree(tmp_path, ignore_errors=True)
        interrupted(tmp_path, lambda directory: run_until(directory, renderer, data, Sft(**SETTINGS), 6))
        caplog.clear()

    root = logging.getLogger("transformers")
    root.addHandler(caplog.handler)
    try:
        cut()
        trained(renderer, data, tmp_path)
        assert "missing keys" not in caplog.text
        cut()
        last = checkpoints.last(tmp_path)
        assert last
        held = saved(last)
        held.pop("model.norm.weight")
        save_file(held, last / "model.safetensors", metadata={"format": "pt"})
        seal = read_json(last / checkpoints.SEAL)
        write_json(last / checkpoints.SEAL, {**seal, "model.safetensors": (last / "model.safetensors").stat().st_size})
        trained(renderer, data, tmp_path)
        assert "missing keys" in caplog.text and "model.norm.weight" in caplog.text
    finally:
        root.removeHandler(caplog.handler)


@pytest.mark.parametrize(
    ("algorithm", "count"),
    [
        pytest.param(DAPO(refill=0), 4, id="dapo-two-epochs"),
        pytest.param(ARPO(alpha=0.6, beta=0.0, advantage="hard"), 8, id="arpo-one-epoch"),
    ],
)
def test_rl_goes_on_from_any_checkpoint(make: Any, student: Any, algorithm: Any, count: int) -> None:
    start = weights(student)

    def run(kill: int = 0) -> tuple[dict[str, torch.Tensor], list[float]]:
        student.load_state_dict(start)
        trainer = make(algorithm, steps=4, save_steps=3, count=count)
        if kill:
            note = trainer.note

            def dying(*arguments: Any) -> None:
                if trainer.state.global_step >= kill:
                    raise Killed
                note(*arguments)

            trainer.note = dying
        checkpoints.finish(trainer, Path(trainer.args.output_dir))
        assert trainer.state.global_step == 4
        stored = weights(models.stored(checkpoints.trained(trainer)))
        return stored, [row["reward"] for row in trainer.state.log_history if "reward" in row]

    whole, rewards = run()
    assert len(rewards) == 4 and not equal(whole, start)
    assert equal(run()[0], whole), "a finished training is left as it is"
    directory = Path(make(algorithm).args.output_dir)
    shutil.rmtree(directory)
    with pytest.raises(Killed):
        run(kill=3)
    again, later = run()
    assert later == rewards and equal(again, whole)


class State:
    is_world_process_zero = True

    def __init__(self, step: int, total: int = 10) -> None:
        self.global_step, self.max_steps = step, total


def test_kept_rollouts_of_steps_done_again_are_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "rollouts.jsonl"
    said = Completion('odd\u2028text\x85{"a": {}}')
    row = Trajectory("t", "q", "hf", (), (Turn(said),), "answer")
    write_jsonl(path, [{"step": step, "label": "best", "trajectory": row} for step in range(4)])
    whole = path.read_bytes()
    first = whole.split(b"\n")[:2]
    for torn in (whole, whole[:-2], whole[:-40], whole[: len(whole) - len(whole) // 8]):
        path.write_bytes(torn)
        Keep(path).on_train_begin(None, State(2), None)
        assert path.read_bytes() == b"\n".join(first) + b"\n"


def test_the_best_dev_row_survives_a_restart(tmp_path: Path) -> None:
    told = []

    class Trainer:
        def save_model(self, directory: str) -> None:
            Path(directory).mkdir(exist_ok=True)

        def is_world_process_zero(self) -> bool:
            return True

        def tell(self, figures: dict[str, float]) -> None:
            told.append(figures)

    values = {0: 0.1, 2: 0.6, 4: 0.3, 6: 0.6, 10: 0.2}

    def dev(step: int) -> Dev:
        made = Dev(lambda trainer: {"value": values[step]}, 2, tmp_path)
        made.trainer = Trainer()  # type: ignore[assignment]
        return made

    dev(0).on_train_begin(None, State(0), None)
    for step in (2, 4, 6):
        dev(step).on_step_end(None, State(step), None)
    assert dev(6).best == 6, "of equals the later one"
    dev(4).on_step_end(None, State(4), None)
    assert dev(4).rows.keys() == {0, 2, 4} and dev(4).best == 2, "what came after the step is forgotten"
    dev(4).on_save(None, State(4), None)
    assert [path.name for path in tmp_path.glob("best-*")] == ["best-2"]
    dev(10).on_step_end(None, State(10), None)
    assert dev(10).rows.keys() == {0, 2, 4, 10} and dev(10).best_directory.is_dir()
    assert [figures["eval_value"] for figures in told] == [0.1, 0.6, 0.3, 0.6, 0.3, 0.2]


def test_an_adapter_is_kept_beside_the_weights_it_is_merged_into(renderer: Any, tmp_path: Path) -> None:
    """It names its base as the run does, not the place where it was trained."""
    models.save(tiny.model(SIZE, renderer.tokenizer, 0), renderer.tokenizer, tmp_path / "base", "tiny", 0)
    model = models.lora(models.stored(tmp_path / "base"), Lora(rank=2, dropout=0.0))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    model.save_pretrained(tmp_path / "trained")
    moved = (tmp_path / "base").rename(tmp_path / "moved")
    models.save(models.stored(tmp_path / "trained", base=moved), renderer.tokenizer, tmp_path / "model", "sft/base", 1)
    again = models.stored(tmp_path / "model" / "adapter", base=moved)
    assert read_json(tmp_path / "model" / "adapter" / "adapter_config.json")["base_model_name_or_path"] == "sft/base"
    assert str(tmp_path) not in "".join(path.read_text() for path in (tmp_path / "model").rglob("*.[jm][sd]*"))
    merged, plain = weights(models.stored(tmp_path / "model")), weights(models.stored(moved))
    assert equal(merged, weights(again.merge_and_unload())) and not equal(merged, plain)
