"""Log-probabilities and entropies of rows through their trie: one pass over each token that rows share.

Summing over rows, a shared token's loss is the sum of what its rows ask for, and its gradient the sum of their gradients; nothing
is approximated. The values are scattered back to the rows, so a loss over rows needs no change.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import PreTrainedModel
from trl.models.utils import _ForwardRedirection

from star.train.shards import in_shards
from star.train.trie import Trie, pack
from star.train.trie_attention import attending

logger = logging.getLogger(__name__)

SCALED = ("final_logit_softcapping", "logit_scale", "logits_scaling", "output_multiplier", "lm_head_multiplier")
EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts", "output_router_logits")
ENOUGH = 1.1
"""Row tokens per unique token from which a trie is used."""
BLOCK = 1 << 25
"""Logits that are held at a time; beyond that the backward pass computes them again."""
TOLERANCE = 1e-3
"""Largest difference in a log-probability between a trie of two short rows and the rows themselves, in float32."""


class Tries:
    """Scores rows through tries where that is wanted, possible and worth it; says once why it is not possible."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self._known: dict[int, bool] = {}

    def serve(self, model: Any) -> bool:
        """Whether rows of this model may be scored through tries."""
        if self._wanted and id(model) not in self._known:
            reason = obstacle(model)
            self._known[id(model)] = reason is None
            if reason is not None:
                name = type(_inner(model)).__name__
                logger.warning("rl.trie: no tries for %s, since %s; what rollouts share is computed for each", name, reason)
        return self._wanted and self._known[id(model)]

    def scores(
        self, model: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, asked: torch.Tensor, temperature: float,
        context: ExitStack | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor] | None:  # fmt: skip
        """`trie_scores` of a padded batch, or None. `context` is to be closed after the backward pass."""
        if not self.serve(model):
            return None
        trie = pack(input_ids, attention_mask)
        if trie.sharing < ENOUGH:
            return None
        if context is not None:
            context.enter_context(attending(_inner(model)))
        score = partial(trie_scores, _peft(model), trie, asked, temperature)
        if not isinstance(model, DistributedDataParallel):
            return score()
        scores: tuple[torch.Tensor, torch.Tensor] = _ForwardRedirection()(model, model.module, score)  # so that gradients meet
        return scores


def obstacle(model: Any) -> str | None:
    """Why a model cannot be run through a trie, or None if it can."""
    inner = _inner(model)
    if not isinstance(inner, PreTrainedModel):
        return f"it is wrapped in {type(model).__name__}"
    if in_shards(inner):
        return "its parameters are sharded"
    config = inner.config.get_text_config()
    if any(getattr(config, name, None) for name in EXPERTS):
        return "it routes tokens to experts"
    if any(getattr(config, name, None) is not None for name in (*SCALED, "attn_logit_softcapping")):
        return "it scales or caps its logits"
    layers = getattr(config, "layer_types", None)
    if set(layers) - {"full_attention"} if layers else getattr(config, "sliding_window", None):
        return "not all of its layers attend to all tokens before"
    rope = (getattr(config, "rope_parameters", None) or {}).get("rope_type")
    if rope is None or rope in ("dynamic", "longrope"):
        return f"its position encoding is {rope or 'not rotary'}"
    if inner.config._attn_implementation not in ("sdpa", "eager") or not inner._supports_attention_backend:
        return f"its attention is {inner.config._attn_implementation} of {type(inner).__name__}"
    if any(part.is_prompt_learning for part in getattr(_peft(model), "peft_config", {}).values()):
        return "its adapter adds tokens of its own"
    dropout = any(isinstance(part, torch.nn.Dropout) and part.p > 0 for part in inner.modules())
    return "it has dropout" if dropout or bool(getattr(config, "attention_dropout", None)) else _difference(model, inner)


def _peft(model: Any) -> Any:
    """The model, perhaps with its adapters, without what makes processes train together."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def _inner(model: Any) -> Any:
    model = _peft(model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


@torch.no_grad()
def _difference(model: Any, inner: Any) -> str | None:
    """Compare both ways on four short rows: catches attention that is unlike what its configuration says."""
    tokens = min(97, inner.config.get_text_config().vocab_size)
    rows = torch.arange(36).reshape(4, 9) * 7 % tokens
    rows[1, :5], rows[2, :5], rows[3, :3] = rows[0, :5], rows[0, :5], rows[0, :3]
    rows = rows.to(inner.device)
    asked = torch.ones_like(rows).bool()
    asked[:, 0] = False
    with torch.autocast(inner.device.type, enabled=False):
        logits = type(inner).forward(inner, input_ids=rows, use_cache=False).logits  # accelerate's forward would turn it on again
        plain = torch.log_softmax(logits[:, :-1].float(), -1)
        found, _ = trie_scores(model, pack(rows, torch.ones_like(rows)), asked)
    wanted = plain.gather(-1, rows[:, 1:, None]).squeeze(-1)
    worst = float((found[:, 1:] - wanted).abs().max())
    allowed = TOLERANCE if inner.dtype == torch.float32 else 100 * TOLERANCE
    return None if worst <= allowed else f"its attention is not the usual one (log-probabilities differ by {worst:.2g})"


def trie_scores(model: Any, trie: Trie, asked: torch.Tensor, temperature: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """(log-probabilities, entropies in nats) of row tokens given what stands before them, both (B, T), 0 where not `asked`.

    `asked` (B, T, bool) names no padding and no first token of a row. Gradients flow through the log-probabilities.
    """
    inner = _inner(model)
    with attending(inner):
        hidden = inner.base_model(
            input_ids=trie.ids[None],
            position_ids=trie.positions[None],
            attention_mask=torch.ones(1, 1, 1, 1, device=trie.ids.device),  # four dimensions: transformers makes no mask of it
            use_cache=False,
            trie=trie,
        ).last_hidden_state[0]
    asked = asked.bool()
    wanted = torch.zeros_like(trie.ids, dtype=torch.bool)
    wanted[trie.places[asked]] = True
    chosen = wanted.nonzero().squeeze(-1)
    picked, spread = _project(inner.get_output_embeddings(), hidden[trie.parents[chosen]], trie.ids[chosen], temperature)
    slots = (wanted.cumsum(0) - 1)[trie.places[asked]]
    return tuple(part.new_zeros(asked.shape).masked_scatter(asked, part[slots]) for part in (picked, spread))  # type: ignore[return-value]


def _project(head: Any, hidden: torch.Tensor, ids: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each id and entropy of its distribution, a block of positions at a time."""
    size = max(1, BLOCK // head.weight.shape[0])
    if len(ids) <= size:
        return _scored(head, hidden, ids, temperature)
    parts = [
        torch.utils.checkpoint.checkpoint(_scored, head, h, i, temperature, use_reentrant=False)
        for h, i in zip(hidden.split(size), ids.split(size), strict=True)
    ]
    return torch.cat([picked for picked, _ in parts]), torch.cat([spread for _, spread in parts])


def _scored(head: Any, hidden: torch.Tensor, ids: torch.Tensor, temperature: float) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden).float() / temperature
    every = torch.log_softmax(logits, dim=-1)
    with torch.no_grad():
        spread = -(every.exp() * every).sum(-1)
    return every.gather(-1, ids[:, None]).squeeze(-1), spread
