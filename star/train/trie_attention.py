"""Attention within a packed trie: every token attends to its ancestors and itself, and nothing is masked.

Within a strand attention is causal. Across strands it is full, since what hangs from a fork attends to all that lies before
the fork.
On a CPU the parts are computed by the flash kernel and merged by their log-sum-exp; the merged result and log-sum-exp also
give each part's gradient (FlashAttention-2, arXiv 2307.08691, section 3.1; the merge is that of Ring Attention,
arXiv 2310.01889). Elsewhere each strand attends to its concatenated ancestors through torch's public attention.

It is an attention function in the sense of transformers' AttentionInterface; a forward pass without a trie is ordinary.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from star.policies.attention import computed
from star.train.trie import Trie

NAME = "star_trie"


def attend(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: torch.Tensor | None, **options: Any
) -> tuple[torch.Tensor, None]:
    """(rows, heads, tokens, size) in, (rows, tokens, heads, size) out; `trie` among the options says how tokens hang together."""
    trie: Trie | None = options.pop("trie", None)
    if trie is None:
        result: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return result
    scale = float(options.get("scaling") or query.shape[-1] ** -0.5)
    query, key, value = computed(query), computed(key), computed(value)
    if query.device.type == "cpu":
        mixed: torch.Tensor = Merged.apply(query, key, value, trie, scale)  # type: ignore[no-untyped-call]
        return mixed, None
    return concatenated(query, key, value, trie, scale), None


@contextmanager
def attending(model: Any) -> Iterator[None]:
    """Let a model attend through `attend`, and leave it as it was.

    With gradient checkpointing the backward pass runs layers again, so it belongs inside too.
    """
    before = model.config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register(NAME, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, sdpa_mask)
    model.config._attn_implementation = NAME
    try:
        yield
    finally:
        model.config._attn_implementation = before


def concatenated(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, trie: Trie, scale: float) -> torch.Tensor:
    """Strand by strand over the concatenated keys of its ancestors and itself; (1, tokens, heads, size)."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    parts = []
    for begin, end in trie.strands:
        runs = [(c.first, c.last) for c in trie.crossings if c.begin <= begin < c.end]
        runs = [*sorted(runs), (begin, end)]
        keys = torch.cat([key[:, :, first:last] for first, last in runs], dim=2)
        values = torch.cat([value[:, :, first:last] for first, last in runs], dim=2)
        bias = causal_lower_right(end - begin, keys.shape[2])
        parts.append(scaled_dot_product_attention(query[:, :, begin:end], keys, values, attn_mask=bias, scale=scale))
    return torch.cat(parts, dim=2).transpose(1, 2).contiguous()


class Merged(torch.autograd.Function):
    """The same by parts without copies of keys, on a CPU. Heads are seen as (key heads, queries per key head)."""

    @staticmethod
    def forward(ctx: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, trie: Trie, scale: float) -> torch.Tensor:
        q, k, v = _grouped(query, key), _grouped(key, key, query), _grouped(value, key, query)
        mixed = torch.empty_like(query.transpose(1, 2), memory_format=torch.contiguous_format)
        out = _grouped(mixed.transpose(1, 2), key)
        total = torch.empty(q.shape[:3], dtype=torch.promote_types(q.dtype, torch.float32))
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        for begin, end in trie.strands:
            own = slice(begin, end)
            out[:, :, own], total[:, :, own] = kernel(q[:, :, own], k[:, :, own], v[:, :, own], 0.0, True, scale=scale)
        for begin, end, first, last in trie.crossings:
            asking, asked = slice(begin, end), slice(first, last)
            part, part_total = kernel(q[:, :, asking], k[:, :, asked], v[:, :, asked], 0.0, False, scale=scale)
            old = total[:, :, asking]
            share = torch.sigmoid(part_total - old).unsqueeze(-1).to(out.dtype)
            out[:, :, asking].lerp_(part, share)
            torch.logaddexp(old, part_total, out=old)
        ctx.save_for_backward(query, key, value, mixed, total)
        ctx.trie, ctx.scale = trie, scale
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        query, key, value, mixed, total = ctx.saved_tensors
        q, k, v = _grouped(query, key), _grouped(key, key, query), _grouped(value, key, query)
        out, seen = _grouped(mixed.transpose(1, 2), key), _grouped(gradient.transpose(1, 2), key)
        grads = [torch.zeros_like(t, memory_format=torch.contiguous_format) for t in (query, key, value)]
        dq = _grouped(grads[0], key)
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward

        def part(asking: slice, asked: slice, causal: bool) -> None:
            a, o, t, g = q[:, :, asking], out[:, :, asking], total[:, :, asking], seen[:, :, asking]
            found = kernel(g, a, k[:, :, asked], v[:, :, asked], o, t, 0.0, causal, scale=ctx.scale)
            dq[:, :, asking] += found[0]
            grads[1][0, :, asked] += found[1].sum(1)
            grads[2][0, :, asked] += found[2].sum(1)

        for begin, end in ctx.trie.strands:
            part(slice(begin, end), slice(begin, end), True)
        for begin, end, first, last in ctx.trie.crossings:
            part(slice(begin, end), slice(first, last), False)
        return *grads, None, None


def _grouped(states: torch.Tensor, key: torch.Tensor, query: torch.Tensor | None = None) -> torch.Tensor:
    """(1, heads, tokens, size) as a view (key heads, queries per key head, tokens, size); with `query`, keys repeat."""
    if query is None:
        return states[0].unflatten(0, (key.shape[1], states.shape[1] // key.shape[1]))
    return states[0].unsqueeze(1).expand(-1, query.shape[1] // key.shape[1], -1, -1)
