"""Models and tokenizers on disk and in memory: load by directory or hub name, LoRA, save as an ordinary model directory."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, Trainer, TrainerState, set_seed
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import get_last_checkpoint
from transformers.utils import logging as transformers_logging

from star.errors import StarError
from star.recipe import Lora
from star.train import ranks
from star.types import Checkpoint

ADAPTER = "adapter_config.json"

logger = logging.getLogger(__name__)


def seeded(seed: int) -> None:
    """Seed every generator that training draws from."""
    set_seed(seed)


def last_checkpoint(directory: Path) -> str | None:
    """The trainer checkpoint to go on from, if there is one. A checkpoint that was cut off while it was written goes."""
    last: str | None = get_last_checkpoint(str(directory))
    while last is not None and not _whole(Path(last)):
        ranks.wait()  # all processes have looked before the first one removes it
        if ranks.rank() == 0:
            shutil.rmtree(last)
        ranks.wait()
        last = get_last_checkpoint(str(directory))
    if last:
        logger.info("going on from %s", Path(last).name)
    return last


def finish(trainer: Trainer, directory: Path) -> None:
    """Train to the last step, from the last checkpoint in `directory` if there is one.

    A training whose last checkpoint is its last step is only read: the Trainer would take one step more.
    """
    last = last_checkpoint(directory)
    state = TrainerState.load_from_json(str(Path(last) / TRAINER_STATE_NAME)) if last else None
    if state is None or state.global_step < state.max_steps:
        trainer.train(resume_from_checkpoint=last)
        return
    trainer._load_from_checkpoint(last)
    trainer.state = state


def _whole(checkpoint: Path) -> bool:
    """Whether a checkpoint has its last file, the state of the trainer, to the end."""
    try:
        json.loads((checkpoint / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return True


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def load(source: str | Path, bf16: bool = False) -> tuple[PreTrainedModel, Any]:
    """A causal language model and its tokenizer from a directory or the hub; a LoRA checkpoint is merged into its base."""
    transformers_logging.disable_progress_bar()
    dtype = torch.bfloat16 if bf16 else torch.float32
    try:
        adapter = Path(source) / ADAPTER
        base = json.loads(adapter.read_text())["base_model_name_or_path"] if adapter.is_file() else str(source)
        model = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
        if adapter.is_file():
            model = PeftModel.from_pretrained(model, str(source)).merge_and_unload()
        tokenizer = AutoTokenizer.from_pretrained(str(source))
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        fix = "Give a directory with config.json, weights and tokenizer, or a model name on the hub"
        raise StarError(f"cannot load the model {str(source)!r}: {reason}", fix) from None
    if tokenizer.chat_template is None:
        raise StarError(f"the tokenizer of {str(source)!r} has no chat template", "Use an instruction-tuned model")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return model.to(device()), tokenizer


def lora(model: PreTrainedModel, settings: Lora) -> Any:
    """Wrap a model with fresh low-rank adapters."""
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,
        lora_dropout=settings.dropout,
        target_modules=settings.targets,
        task_type="CAUSAL_LM",
    )
    return get_peft_model(model, config)


def save(model: Any, tokenizer: Any, directory: Path, base: str, step: int) -> Checkpoint:
    """Write a model directory that `load` and any transformers user can read.

    Low-rank adapters are merged into the weights, so that the directory stands alone, and kept beside them in `adapter/`.
    The model itself must not be used afterwards.
    """
    transformers_logging.disable_progress_bar()
    directory.mkdir(parents=True, exist_ok=True)
    adapter = None
    if isinstance(model, PeftModel):
        adapter = str(directory / "adapter")
        model.save_pretrained(adapter)
        model = model.merge_and_unload()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return Checkpoint(str(directory), base, adapter, step)
