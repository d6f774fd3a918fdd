"""Log-probabilities of chosen tokens of a batch, scoring no position whose result nobody reads.

TRL scores every position when it runs without a GPU; of an agent's conversation two thirds are prompt and tool responses. Here
the vocabulary projection is done for the asked positions only. The values and gradients are the same.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import PreTrainedConfig

from star.train.shards import in_shards


def compact(model: Any) -> bool:
    """Whether `token_scores` may stand in for TRL's scoring: on a CPU, whole, with a plain vocabulary projection."""
    config = getattr(model, "config", None)
    odd = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier", "lm_head_multiplier")
    if not isinstance(config, PreTrainedConfig) or not hasattr(model, "get_output_embeddings") or model.device.type != "cpu":
        return False
    if in_shards(model):
        return False
    text = config.get_text_config()
    return not getattr(text, "output_router_logits", False) and all(getattr(text, name, None) is None for name in odd)


def token_scores(
    model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, asked: torch.Tensor, temperature: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probabilities, entropies in nats), both (B, T), 0 where `asked` (B, T, bool) is false.

    Position t holds the value of `input_ids[:, t]` given what stands before it; the first position cannot be asked for. Gradients
    flow through the log-probabilities.
    """
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = inner.base_model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).last_hidden_state
    wanted = asked[:, 1:].bool()
    logits = inner.get_output_embeddings()(hidden[:, :-1][wanted]).float() / temperature
    every = torch.log_softmax(logits, dim=-1)
    picked = every.gather(-1, input_ids[:, 1:][wanted][:, None]).squeeze(-1)
    with torch.no_grad():
        spread = -(every.exp() * every).sum(-1)
    return _placed(picked, wanted), _placed(spread, wanted)


def _placed(values: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Values back at their positions, with a zero for the first one."""
    grid = values.new_zeros(wanted.shape).masked_scatter(wanted, values)
    return torch.nn.functional.pad(grid, (1, 0))
