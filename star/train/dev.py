"""The dev queries during RL: play them now and then, keep the best model, keep the rollouts worth looking at."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from star.artifacts import sync
from star.records import plain, read_json, to_json, write_json, write_text
from star.train.grpo import StarGRPOTrainer

Row = dict[str, float]


class Dev(TrainerCallback):
    """Chooses the best checkpoint by `play`, which gives a row with a "value" for the model as it is.

    Rows are kept in a file, so a resumed run knows its best one. Directories of beaten candidates go once a checkpoint stands
    after them: from then on no resumed run can need them.
    """

    def __init__(self, play: Callable[[StarGRPOTrainer], Row], every: int, directory: Path) -> None:
        self._play, self._every, self._directory = play, every, directory
        self._file = directory / "dev.json"
        stored: dict[str, Row] = read_json(self._file) if self._file.exists() else {}
        self.rows = {int(step): row for step, row in stored.items()}
        self.trainer: StarGRPOTrainer | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 0 and self._every:
            self._evaluate(0)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        step = state.global_step
        if self._every and (step % self._every == 0 or step == state.max_steps):
            self._evaluate(step)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for directory in self._directory.glob("best-*"):
            if state.is_world_process_zero and self.rows and directory.name != f"best-{self.best}":
                shutil.rmtree(directory)

    def _evaluate(self, step: int) -> None:
        assert self.trainer is not None
        self.rows = {known: row for known, row in self.rows.items() if known < step}
        self.rows[step] = self._play(self.trainer)
        self.trainer.tell({f"eval_{name}": figure for name, figure in self.rows[step].items()})
        if self.best == step:
            self.trainer.save_model(str(self.best_directory))
        if self.trainer.is_world_process_zero():
            if self.best == step:
                sync(self.best_directory)
            write_json(self._file, self.rows)

    @property
    def best(self) -> int:
        """Step of the best candidate; of equals the later one."""
        return max(self.rows, key=lambda step: (self.rows[step]["value"], step))

    @property
    def best_directory(self) -> Path:
        return self._directory / f"best-{self.best}"


class Keep(TrainerCallback):
    """Writes the best and worst trajectory of each step to a file, one JSON object a line."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.trainer: StarGRPOTrainer | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget the steps that a resumed run does again, and a line that was cut off."""
        if not state.is_world_process_zero:
            return
        whole = self._path.read_bytes().rpartition(b"\n")[0] if self._path.exists() else b""
        lines = [line for line in whole.decode("utf-8").split("\n") if line]
        kept = [line for line in lines if json.loads(line)["step"] < state.global_step]
        write_text(self._path, "".join(line + "\n" for line in kept))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert self.trainer is not None
        if state.is_world_process_zero:
            with self._path.open("a", encoding="utf-8") as file:
                file.writelines(to_json(plain(row)) + "\n" for row in self.trainer.kept)
        self.trainer.kept = []


class Told(TrainerCallback):
    """Says how far training is."""

    def __init__(self, report: Callable[[int, int, str], None]) -> None:
        self._report = report

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if logs and "reward" in logs:
            success = float(logs.get("rewards/success/mean", 0))
            note = f"reward {float(logs['reward']):.2f}, success {success:.2f}"
            self._report(state.global_step, state.max_steps, note)
