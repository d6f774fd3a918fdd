"""A transformers model as a policy: batched sampling with the key-value cache kept across turns and forks.

Each call continues rollouts where the last call left them: of every conversation only the ids that the cache does not hold are
read. When most rows have ended their turn, the call returns, and the few that are still talking go on in the next one, together
with the next turns of the others. A fork continues from its parent's cache, cut back to what they share. Draws are inverse-CDF
with one uniform number a token from a generator keyed by (seed, rollout, turn), so results do not depend on what else is in the
batch.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import Cache, DynamicLayer

from star.policies.attention import computed, decoding
from star.policies.drawing import Draws, Tokens
from star.protocols import Conversation
from star.types import Completion, Finish

logger = logging.getLogger(__name__)


ROOM = 64
"""Columns by which a cache grows at a time."""


class _Growing(DynamicLayer):
    """A cache layer with room to grow: most updates write in place instead of copying all there is."""

    _length = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        key_states, value_states = computed(key_states), computed(value_states)
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
            self.key_room, self.value_room = key_states[:, :, :0], value_states[:, :, :0]
        start, end = self._length, self._length + key_states.shape[-2]
        if end > self.key_room.shape[-2]:
            self.key_room = self._grown(self.key_room, start, end)
            self.value_room = self._grown(self.value_room, start, end)
        self.key_room[:, :, start:end] = key_states
        self.value_room[:, :, start:end] = value_states
        self._length = end
        self.keys, self.values = self.key_room[:, :, :end], self.value_room[:, :, :end]
        return self.keys, self.values

    @staticmethod
    def _grown(room: torch.Tensor, start: int, end: int) -> torch.Tensor:
        wider = room.new_empty(*room.shape[:2], end + ROOM, room.shape[3])
        wider[:, :, :start] = room[:, :, :start]
        return wider


@dataclass(slots=True)
class _Shelf:
    """Cached keys and values of some rows: per layer a contiguous tensor (rows, heads, columns and room, size)."""

    keys: list[torch.Tensor]
    values: list[torch.Tensor]

    @classmethod
    def of(cls, cache: Cache) -> _Shelf:
        layers: list[Any] = cache.layers
        return cls([layer.key_room for layer in layers], [layer.value_room for layer in layers])


@dataclass(slots=True)
class _Place:
    """Where the cache of one rollout is: the column of each of its ids in a row of a shelf."""

    shelf: _Shelf
    row: int
    ids: list[int]
    columns: list[int]


@dataclass(slots=True)
class _Part:
    """What one shelf contributes to a new cache: its rows and columns, and the rows they become."""

    shelf: _Shelf
    targets: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    columns: list[list[int]] = field(default_factory=list)

    def indices(self, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows that they become, and where each of their columns is among all columns of the shelf: both flat."""
        shape = self.shelf.keys[0].shape
        rows = torch.tensor(self.rows, device=device)[:, None] * shape[1] + torch.arange(shape[1], device=device)
        places = rows[:, :, None] * shape[2] + torch.tensor(self.columns, device=device)[:, None]
        return torch.tensor(self.targets, device=device), places.flatten()


@dataclass(slots=True)
class _Row:
    """A rollout while its turn is being sampled."""

    id: str
    ids: list[int]
    draw: random.Random
    limit: int
    place: _Place | None = None
    """The cache to continue from."""
    covered: int = 0
    """How many ids that cache holds."""
    columns: list[int] = field(default_factory=list)
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    finish: Finish | None = None

    @property
    def read(self) -> list[int]:
        """All ids so far: what the model was given and what it has said since."""
        return self.ids + self.sampled

    @property
    def unread(self) -> int:
        return len(self.ids) + len(self.sampled) - self.covered


@dataclass
class HFPolicy:
    """Samples turns from a causal language model."""

    model: PreTrainedModel
    renderer: Tokens
    draws: Draws = field(default_factory=Draws)
    bf16: bool = False
    """Compute in bfloat16, whatever the weights are kept in."""
    _places: dict[str, _Place] = field(default_factory=dict, init=False)
    _talking: dict[str, _Row] = field(default_factory=dict, init=False)

    @property
    def name(self) -> str:
        return self.draws.name

    @cached_property
    def _plain(self) -> bool:
        """Whether every layer keeps all keys and values, so that they can be carried from turn to turn."""
        plain = all(type(layer) is DynamicLayer for layer in DynamicCache(config=self.model.config).layers)
        if not plain:
            logger.warning("this model's cache cannot be kept across turns; every turn reads the whole conversation again")
        return plain

    @torch.no_grad()
    def complete(self, conversations: Sequence[Conversation]) -> list[Completion | None]:
        training = self.model.training
        self.model.eval()
        try:
            rows = [self._talking.get(c.id) or self._row(c) for c in conversations]
            open_rows = [(row, c) for row, c in zip(rows, conversations, strict=True) if row.finish is None]
            if open_rows:
                # Around the whole turn: autocast converts each weight once.
                with decoding(self.model), torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.bf16):
                    self._turn([row for row, _ in open_rows], [c for _, c in open_rows])
        finally:
            self.model.train(training)
        self._talking = {row.id: row for row in rows if row.finish is None}
        return [self._completion(row) if row.finish is not None else None for row in rows]

    def _empty(self) -> Cache:
        layers = DynamicCache(config=self.model.config).layers
        return Cache(layers=[_Growing() for _ in layers] if self._plain else layers)

    def _row(self, conversation: Conversation) -> _Row:
        ids = self.renderer.prefix(conversation)
        limit = self.draws.room(ids)
        draw = random.Random(self.draws.key(conversation))
        return _Row(conversation.id, ids, draw, limit, finish="context" if limit <= 0 else None)

    def _turn(self, rows: list[_Row], conversations: list[Conversation]) -> None:
        """Sample one turn of every row."""
        for row, conversation in zip(rows, conversations, strict=True):
            row.place, row.covered = self._source(row, conversation)
        for bucket in self._buckets(rows):
            self._read(bucket)
        cache, mask, block, positions = self._resume(rows)
        places: dict[str, _Place] = {}
        active = rows
        while active:
            self._draw(active, self._forward(cache, mask, block, positions))
            keep = [index for index, row in enumerate(active) if row.finish is None]
            leave = len(keep) <= self.draws.patience * len(rows)
            if leave or (self._plain and len(keep) <= len(active) // 2):
                self._shelve(active, cache, places, every=leave)
                cache, mask = (cache, mask) if leave else self._only(cache, mask, keep)
                active = [] if leave else [active[index] for index in keep]
            if active:
                block, positions, mask = self._next(active, mask)
        self._places = places

    def _buckets(self, rows: list[_Row]) -> list[list[_Row]]:
        """Rows with more than one id to read, in groups of similar length, so that little padding is read with them."""
        waiting = sorted((row for row in rows if self._plain and row.unread > 1), key=lambda row: row.unread)
        buckets: list[list[_Row]] = []
        for row in waiting:
            if not buckets or row.unread > 1.25 * buckets[-1][0].unread + 4:
                buckets.append([])
            buckets[-1].append(row)
        return buckets

    def _read(self, rows: list[_Row]) -> None:
        """Read all ids of these rows but the last one into the cache."""
        cache, mask, block, positions = self._resume(rows, ahead=1)
        self._forward(cache, mask, block, positions)
        shelf = _Shelf.of(cache)
        for index, row in enumerate(rows):
            row.covered = len(row.read) - 1
            row.place = _Place(shelf, index, row.read[:-1], row.columns)

    def _forward(self, cache: Cache, mask: torch.Tensor, block: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Logits of the last position (rows, vocabulary), float32."""
        output = self.model(
            input_ids=block, attention_mask=mask, position_ids=positions, cache=cache, use_cache=True, logits_to_keep=1
        )
        return output.logits[:, -1].float()

    def _resume(self, rows: list[_Row], ahead: int = 0) -> tuple[Any, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Bring what is cached of each row into one left-padded cache, and the rest into one left-padded block of ids.

        The last `ahead` ids of each row are left for later.
        """
        device = self.model.device
        shared = max(row.covered for row in rows)
        cache = self._gather([(row.place, row.covered) for row in rows], shared) if shared else self._empty()
        width = max(row.unread for row in rows) - ahead
        pad = self.renderer.end
        ids, positions, mask = [], [], []
        for row in rows:
            new = row.read[row.covered : len(row.read) - ahead]
            gap = width - len(new)
            ids.append([pad] * gap + new)
            positions.append([0] * gap + list(range(row.covered, row.covered + len(new))))
            mask.append([0] * (shared - row.covered) + [1] * row.covered + [0] * gap + [1] * len(new))
            row.columns = [*range(shared - row.covered, shared), *range(shared + gap, shared + width)]
        masks, block, places = (torch.tensor(part, device=device) for part in (mask, ids, positions))
        return cache, masks, block, places

    def _source(self, row: _Row, conversation: Conversation) -> tuple[_Place | None, int]:
        """The cache to continue from and how many of the row's ids it covers; the last id is always read anew."""
        place = self._places.get(row.id) or self._places.get(conversation.parent or "")
        if place is None:
            return None, 0
        read = row.read
        count = min(len(place.columns), len(read) - 1)
        if place.ids[:count] != read[:count]:
            count = next(index for index in range(count) if place.ids[index] != read[index])
        return (place, count) if count else (None, 0)

    def _gather(self, sources: list[tuple[_Place | None, int]], width: int) -> Cache:
        """A new cache of `width` columns; the covered ids of each row end at its right border."""
        cache = self._empty()
        parts: dict[int, _Part] = {}
        for index, (place, count) in enumerate(sources):
            if place is not None:
                part = parts.setdefault(id(place.shelf), _Part(place.shelf))
                part.targets.append(index)
                part.rows.append(place.row)
                part.columns.append([0] * (width - count) + place.columns[:count])
        plans = [(part.shelf, *part.indices(self.model.device)) for part in parts.values()]
        for layer in range(len(plans[0][0].keys)):
            keys = self._pick([(shelf.keys[layer], *where) for shelf, *where in plans], len(sources), width)
            values = self._pick([(shelf.values[layer], *where) for shelf, *where in plans], len(sources), width)
            cache.update(keys, values, layer)
        return cache

    @staticmethod
    def _pick(parts: list[tuple[torch.Tensor, ...]], rows: int, width: int) -> torch.Tensor:
        """(rows, heads, `width`, size) of (source, rows that they become, places) of each part."""
        (_, heads, _, size), whole = parts[0][0].shape, len(parts) == 1 and len(parts[0][1]) == rows
        picked = [source.view(-1, size).index_select(0, places).view(-1, heads, width, size) for source, _, places in parts]
        if whole:
            return picked[0]
        out = picked[0].new_zeros(rows, heads, width, size)
        for (_, targets, _), part in zip(parts, picked, strict=True):
            out[targets] = part
        return out

    def _draw(self, rows: list[_Row], logits: torch.Tensor) -> None:
        """Choose the next id of each unfinished row and note its log-probability and entropy."""
        draws, greedy = self.draws, self.draws.temperature == 0
        logprobs = torch.log_softmax(logits if greedy else logits / draws.temperature, dim=-1)
        if draws.top_p < 1 and not greedy:
            logprobs = _nucleus(logprobs, draws.top_p)
        probabilities = logprobs.exp()
        entropy = -(probabilities * logprobs.clamp(min=-1e4)).sum(-1) / math.log(logits.shape[-1])
        if greedy:
            chosen = logprobs.argmax(-1)
        else:
            uniform = torch.tensor([[row.draw.random()] for row in rows], dtype=torch.float64, device=logits.device)
            total = probabilities.double().cumsum(-1)
            chosen = torch.searchsorted(total, uniform * total[:, -1:], right=True).squeeze(-1)
            chosen = chosen.clamp(max=logits.shape[-1] - 1)
        picked = logprobs.gather(-1, chosen[:, None]).squeeze(-1)
        for row, token, logprob, spread in zip(rows, chosen.tolist(), picked.tolist(), entropy.tolist(), strict=True):
            if row.finish is not None:
                continue
            row.sampled.append(token)
            row.logprobs.append(logprob)
            row.entropies.append(spread)
            if token == self.renderer.end:
                row.finish = "stop"
            elif len(row.sampled) >= row.limit:
                row.finish = "length"

    def _next(self, active: list[_Row], mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The block, positions and mask for one more id of each row; a finished row is padded and masked."""
        device, column = mask.device, mask.shape[1]
        going = [int(row.finish is None) for row in active]
        block = torch.tensor([[row.sampled[-1]] for row in active], device=device)
        positions = torch.tensor([[len(row.ids) + len(row.sampled) - 1] for row in active], device=device)
        for row, goes in zip(active, going, strict=True):
            if goes:
                row.columns.append(column)
        added = torch.tensor([[goes] for goes in going], dtype=mask.dtype, device=device)
        return block, positions, torch.cat([mask, added], dim=1)

    def _shelve(self, active: list[_Row], cache: Cache, places: dict[str, _Place], every: bool) -> None:
        """Keep the cache of the rows that have just finished, or of every row, for the next call."""
        if not self._plain:
            return
        shelf = _Shelf.of(cache)
        for index, row in enumerate(active):
            if every or row.finish is not None:
                ids = row.read[: len(row.columns)]
                places[row.id] = _Place(shelf, index, ids, row.columns)

    def _only(self, cache: Cache, mask: torch.Tensor, keep: list[int]) -> tuple[Cache, torch.Tensor]:
        index = torch.tensor(keep, device=mask.device, dtype=torch.long)
        kept = self._empty()
        for number, layer in enumerate(cache.layers):
            kept.update(layer.keys[index], layer.values[index], number)
        return kept, mask[index]

    def _completion(self, row: _Row) -> Completion:
        return Completion(
            self.renderer.decode(row.sampled), tuple(row.sampled), tuple(row.logprobs), tuple(row.entropies),
            row.finish or "stop",
        )  # fmt: skip


def _nucleus(logprobs: torch.Tensor, top_p: float) -> torch.Tensor:
    """Keep the smallest set of ids whose probability reaches `top_p`, renormalised."""
    ordered, order = logprobs.sort(dim=-1, descending=True)
    before = ordered.exp().cumsum(-1) - ordered.exp()
    dropped = torch.zeros_like(logprobs, dtype=torch.bool).scatter(-1, order, before >= top_p)
    return torch.log_softmax(logprobs.masked_fill(dropped, float("-inf")), dim=-1)
