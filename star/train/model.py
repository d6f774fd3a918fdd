"""Models and tokenizers on disk and in memory: load by directory or hub name, LoRA, save as an ordinary model directory."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, set_seed
from transformers.utils import logging as transformers_logging

from star.errors import StarError
from star.records import read_json, write_json
from star.settings import Lora, Rl, Sft
from star.train import ranks, shards
from star.train.samplers import Source
from star.train.tokens import Renderer
from star.types import Checkpoint

ADAPTER = "adapter_config.json"

# peft asks transformers by the old name.
warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)


def seeded(seed: int) -> None:
    """Seed every generator that training draws from."""
    set_seed(seed)


def device() -> torch.device:
    """Where this process computes."""
    return torch.device("cuda", ranks.local()) if torch.cuda.is_available() else torch.device("cpu")


def tokenizer(source: str | Path) -> Any:
    """The tokenizer of a model, with a chat template and an id to pad with."""
    with _readable(source):
        found = AutoTokenizer.from_pretrained(str(source))
    if found.chat_template is None:
        raise StarError(f"the tokenizer of {str(source)!r} has no chat template", "Use an instruction-tuned model")
    if found.pad_token_id is None:
        found.pad_token = found.eos_token
    return found


@contextmanager
def _readable(source: str | Path) -> Iterator[None]:
    """Turns what transformers raises over an unreadable model into the error for a person."""
    try:
        yield
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        fix = "Give a directory with config.json, weights and tokenizer, or a model name on the hub"
        raise StarError(f"cannot load the model {str(source)!r}: {reason}", fix) from None


def _base(source: str | Path) -> tuple[str, bool]:
    """The model below a checkpoint, and whether the checkpoint is a LoRA adapter over it."""
    adapter = Path(source) / ADAPTER
    if not adapter.is_file():
        return str(source), False
    return str(json.loads(adapter.read_text())["base_model_name_or_path"]), True


def halved(settings: Sft | Rl) -> bool:
    """Whether a model in training is kept in bfloat16: only what lies below adapters and does not move.

    Weights that move are float32, whatever they are computed in. Neighbouring bfloat16 values are up to 2^-7 of themselves apart,
    so that steps of usual learning rates would be rounded away.
    """
    return settings.bf16 and settings.lora is not None


def load(source: str | Path, bf16: bool = False) -> tuple[PreTrainedModel, Any]:
    """A causal language model and its tokenizer from a directory or the hub; a LoRA checkpoint is merged into its base."""
    model = stored(source, bf16)
    model = model.merge_and_unload() if isinstance(model, PeftModel) else model
    return model.to(device()), tokenizer(source)


def stored(source: str | Path, bf16: bool = False, base: str | Path | None = None) -> Any:
    """A model as it lies on disk, in main memory; a LoRA checkpoint is a PeftModel, over `base` if that is given."""
    transformers_logging.disable_progress_bar()
    dtype = torch.bfloat16 if bf16 else torch.float32
    with _readable(source):
        noted, adapted = _base(source)
        below = str(base) if adapted and base else noted
        model = AutoModelForCausalLM.from_pretrained(below, dtype=dtype)
        if adapted:
            model = PeftModel.from_pretrained(model, str(source))
            model.active_peft_config.base_model_name_or_path = below
    return model


def source(path: str | Path, context: int, bf16: bool = False) -> Source:
    """A checkpoint to sample from; its weights are loaded when the model is asked for."""
    with _readable(path):
        vocabulary = AutoConfig.from_pretrained(_base(path)[0]).get_text_config().vocab_size
    return Source(str(path), Renderer(tokenizer(path)), vocabulary, context, lambda: load(path, bf16)[0], bf16)


@torch.no_grad()
def weights(model: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors as `save` would write them, without touching the model: adapters are added to copies, and what is
    shared, such as a tied head, comes once.

    Those of a model in shards are put together one by one, so that all processes must take all of them, at the same time.
    """
    base = model.get_base_model() if isinstance(model, PeftModel) else model
    layers = {name: layer for name, layer in base.named_modules() if isinstance(layer, LoraLayer)}
    seen: set[int] = set()
    for name, tensor in base.state_dict(keep_vars=True).items():
        if ".lora_" in name or id(tensor) in seen:
            continue
        seen.add(id(tensor))
        owner, adapted, last = name.rpartition(".base_layer.")
        layer = layers[owner] if adapted and last == "weight" else None
        with shards.together([tensor] if layer is None else layer.parameters()):
            merged = tensor if layer is None else tensor + layer.get_delta_weight(layer.active_adapters[0])
            yield f"{owner}.{last}" if adapted else name, shards.whole(merged)


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

    Low-rank adapters are merged into the weights, so that the directory stands alone, and kept beside them in `adapter/`, which
    names `base`: what the model was trained from, on the hub or in the run. The model itself must not be used afterwards.
    """
    transformers_logging.disable_progress_bar()
    directory.mkdir(parents=True, exist_ok=True)
    adapter = None
    if isinstance(model, PeftModel):
        adapter = str(directory / "adapter")
        model.save_pretrained(adapter)
        Path(adapter, "README.md").unlink(missing_ok=True)  # a form that nobody filled in
        settings = Path(adapter, ADAPTER)
        write_json(settings, {**read_json(settings), "base_model_name_or_path": base})
        model = model.merge_and_unload()
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return Checkpoint(str(directory), base, adapter, step)
