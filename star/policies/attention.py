"""Attention of one new token a row over a cache, without copying the cache once per query head.

transformers' scaled-dot-product path expands grouped keys and values to all heads before every call; while sampling on a CPU that
copy costs more than the attention itself. Everything but single-token decoding goes through the ordinary path.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

NAME = "star_grouped"


def grouped(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None, **options: Any
) -> tuple[torch.Tensor, None]:
    """An attention function in the sense of transformers' AttentionInterface; returns (rows, tokens, heads, size)."""
    if query.shape[2] != 1 or attention_mask is None or options.get("dropout"):
        result: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return result
    rows, heads, _, size = query.shape
    scores = query.view(rows, key.shape[1], heads // key.shape[1], size) @ key.transpose(2, 3)
    scores *= options.get("scaling") or size**-0.5
    if attention_mask.dtype == torch.bool:
        scores.masked_fill_(~attention_mask, float("-inf"))
    else:
        scores += attention_mask
    mixed = torch.softmax(scores, dim=-1, dtype=torch.float32).to(query.dtype) @ value
    return mixed.reshape(rows, 1, heads, size), None


def computed(states: torch.Tensor) -> torch.Tensor:
    """States in the precision in which autocast computes attention, if it is on: it leaves rotated keys in float32."""
    kind = states.device.type
    return states.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else states


@contextmanager
def decoding(model: Any) -> Iterator[None]:
    """Let a model on a CPU decode through `grouped`; leaves it as it was."""
    before = model.config._attn_implementation
    if model.device.type != "cpu" or before != "sdpa":
        yield
        return
    ALL_ATTENTION_FUNCTIONS.register(NAME, grouped)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before
