"""The embedded model: a small Qwen2 with random weights and a vocabulary made for copying names.

The vocabulary holds one token for every number 0-999, every proper name of the world, every date, and every fixed phrase that
recurs in the training conversations (the system prompt is one of them); whatever else appears falls back to bytes. Saved, both
are an ordinary Hugging Face model directory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from star.settings import Tiny
from star.types import Message

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
UNITS = (r"\d{4}-\d{2}-\d{2}", r"\d{1,2}:\d{2}", r"\bF\d{3,7}\b", r"\n\d{1,2}\. \[", r"\b\d\.\d\b", r"\b\d{4}\b")
"""What is read and written whole: dates, times, flight numbers, list markers, ratings, years."""
RECURS = 20
"""A phrase seen this often in the training conversations becomes a token."""
CONTEXT = 4096


def tokenizer(conversations: Iterable[Sequence[Message]], names: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    """Build the vocabulary, at most `size` tokens, from the training conversations and the world's names.

    All but bytes are added tokens: they are found before a text is split into words, so the class that transformers loads a
    Qwen2 tokenizer with, which splits numbers into digits, changes nothing.
    """
    alphabet = {token: index for index, token in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab=alphabet, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    backend.add_tokens([AddedToken(str(number), normalized=False) for number in range(10, 1000)])
    room = size - backend.get_vocab_size()
    phrases = _phrases(conversations, names)[: max(0, room)]
    backend.add_tokens([AddedToken(phrase, normalized=False) for phrase in phrases])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token=SPECIAL[2], pad_token=SPECIAL[0], clean_up_tokenization_spaces=False,
        model_max_length=CONTEXT, extra_special_tokens=[SPECIAL[1]],
    )  # fmt: skip
    fast.chat_template = TEMPLATE
    return fast


def _phrases(conversations: Iterable[Sequence[Message]], names: Sequence[str]) -> list[str]:
    """Names, and units that occur, then recurring phrases, most frequent first."""
    variable = re.compile("|".join([*UNITS, *map(re.escape, sorted(names, key=len, reverse=True)), r"\d+"]))
    proper: Counter[str] = Counter()
    phrases: Counter[str] = Counter()
    for messages in conversations:
        for message in messages:
            text = f"{message.role}\n{message.content}" if message.role != "assistant" else message.content
            phrases.update(part for part in variable.split(text) if len(part) > 1)
            proper.update(found for found in variable.findall(text) if not found.isdigit() or len(found) > 3)
    proper.update(dict.fromkeys(names, 1))
    phrases["assistant\n"] += RECURS
    frequent = [phrase for phrase, count in phrases.most_common() if count >= RECURS]
    return sorted(proper) + frequent


def model(settings: Tiny, tokens: Any, seed: int) -> Qwen2ForCausalLM:
    """Random weights from a seed, float32."""
    torch.manual_seed(seed)
    config = Qwen2Config(
        vocab_size=len(tokens),
        hidden_size=settings.hidden,
        intermediate_size=settings.intermediate,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        max_position_embeddings=CONTEXT,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokens.eos_token_id,
        pad_token_id=tokens.pad_token_id,
    )
    return Qwen2ForCausalLM(config).float()
