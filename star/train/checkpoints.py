"""What a training goes on from: checkpoints that are whole on disk, and known to be.

The Trainer writes a checkpoint file by file and trusts what it finds there later. Here one counts once all its files are safely
on disk and the seal, which lists them with their sizes, lies beside them. Only then does the checkpoint before it go.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback, TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from star import artifacts
from star.errors import StarError
from star.records import read_json, write_json
from star.train import ranks, together

SEAL = "files.json"

logger = logging.getLogger(__name__)


def last(directory: Path) -> Path | None:
    """The checkpoint to go on from, if there is one. Those that were cut off while they were written go.

    Raises StarError for one that was whole and is no more: to begin anew is for the owner to decide.
    """
    found = _all(directory)
    together.wait()  # all processes have looked before the first one removes any
    if ranks.rank() == 0:
        for torn in (path for path in found if not (path / SEAL).exists()):
            logger.warning("%s was not written to its end, and is removed", torn.name)
            shutil.rmtree(torn)
    whole = [path for path in found if (path / SEAL).exists()]
    together.wait()
    if not whole:
        return None
    for name, size in read_json(whole[-1] / SEAL).items():
        file = whole[-1] / name
        is_now = f"{file.stat().st_size} bytes long" if file.exists() else "missing"
        if is_now != f"{size} bytes long":
            what = f"{file} is {is_now}, and was {size} bytes long when the checkpoint was written"
            raise StarError(what, f"Restore it; or remove {whole[-1]}, and training begins anew")
    logger.info("going on from %s", whole[-1].name)
    return whole[-1]


def finish(trainer: Trainer, directory: Path) -> None:
    """Train to the last step, from the last checkpoint in `directory` if there is one; the last step is a checkpoint too.

    A training that stands at its last step is only told so: the Trainer would take one step more.
    """
    trainer.callback_handler.callbacks.insert(0, _Seal(directory))  # callbacks that tidy up after a checkpoint come later
    found = last(directory)
    state = TrainerState.load_from_json(str(found / TRAINER_STATE_NAME)) if found else None
    if state is None or state.global_step < state.max_steps:
        with _tied_weights_are_not_missed(trainer):
            trainer.train(resume_from_checkpoint=str(found) if found else None)
    else:
        trainer.state = state


def trained(trainer: Trainer) -> Path:
    """The checkpoint of the step at which a training stands. A model in shards is whole on disk only."""
    return Path(trainer.args.output_dir) / f"{PREFIX_CHECKPOINT_DIR}-{trainer.state.global_step}"


class _Seal(TrainerCallback):
    """Seals each checkpoint when all processes have written their part of it, and removes the older ones."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        together.wait()
        if not state.is_world_process_zero:
            return
        *older, newest = _all(self._directory)
        artifacts.sync(newest)
        files = sorted(path for path in newest.rglob("*") if path.is_file())
        write_json(newest / SEAL, {str(path.relative_to(newest)): path.stat().st_size for path in files})
        artifacts.sync(newest)
        for path in older:
            shutil.rmtree(path)


def _all(directory: Path) -> list[Path]:
    """Directories of checkpoints, in the order of their steps."""
    found = {path: path.name.removeprefix(f"{PREFIX_CHECKPOINT_DIR}-") for path in directory.glob(f"{PREFIX_CHECKPOINT_DIR}-*")}
    return sorted((path for path, step in found.items() if step.isdecimal()), key=lambda path: int(found[path]))


@contextmanager
def _tied_weights_are_not_missed(trainer: Trainer) -> Iterator[None]:
    """Checkpoints hold a tied weight under one of its names, and the Trainer warns of the others whenever it goes on."""
    tied = set(getattr(trainer.model, "all_tied_weights_keys", ()))

    def worth_telling(record: logging.LogRecord) -> bool:
        _, missing, names = record.getMessage().partition("missing keys in the checkpoint model loaded")
        return not (missing and set(re.findall(r"'([^']+)'", names)) <= tied)

    source = logging.getLogger(Trainer.__module__)
    source.addFilter(worth_telling)
    try:
        yield
    finally:
        source.removeFilter(worth_telling)
