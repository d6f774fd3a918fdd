"""Trackers that get every figure of RL as well (`rl.report_to`): TensorBoard, Weights & Biases and trackio.

Files of TensorBoard lie in the stage's `tensorboard/`, those of Weights & Biases in its `wandb/`. A run that is resumed goes on
under the name it began with; one that begins anew has a new one.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import TensorBoardCallback

from star import plugins
from star.train.ranks import rank

PROJECT = "star"
"""Where trackers that know projects keep our runs, unless WANDB_PROJECT says otherwise."""


def title(directory: Path, recipe: str) -> str:
    """The name of the run that trains in `directory`, made up when it is asked for first."""
    file = directory / "tracked"
    if file.exists():
        return file.read_text(encoding="utf-8")
    name = f"{recipe}-rl-{secrets.token_hex(4)}"
    if rank() == 0:  # the only one that trackers listen to
        file.write_text(name, encoding="utf-8")
    return name


@contextmanager
def opened(names: Sequence[str], directory: Path, title: str) -> Iterator[list[TrainerCallback]]:
    """Trackers ready for a trainer that knows their names; what comes with it are callbacks of ours, to be called first."""
    wandb = {"WANDB_PROJECT": PROJECT, "WANDB_DIR": str(directory), "WANDB_RUN_ID": title, "WANDB_RESUME": "allow"}
    ours = {key: value for key, value in wandb.items() if key not in os.environ} if "wandb" in names else {}
    os.environ.update(ours)
    try:
        with redirect_stdout(sys.stderr):  # stdout is for results
            yield [_Board(directory / "tensorboard")] if "tensorboard" in names else []
    finally:
        if "wandb" in names:
            plugins.load("wandb:finish")()
        for key in ours:
            del os.environ[key]


class _Board(TensorBoardCallback):
    """TensorBoard in a directory that stays, without the steps that a resumed run does again."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._directory = directory

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            again = state.global_step + 1 if state.global_step else None
            self.tb_writer = self._SummaryWriter(log_dir=str(self._directory), purge_step=again, flush_secs=10)
        super().on_train_begin(args, state, control, **kwargs)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        known = {name: figure for name, figure in (logs or {}).items() if figure is not None}
        super().on_log(args, state, control, logs=known, **kwargs)
