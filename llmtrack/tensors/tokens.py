"""Encode and decode text with a transformers tokenizer, and describe its special tokens."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmtrack.engine import SpecialTokens, Tokenized
from llmtrack.tensors.spans import byte_spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Probe texts, at least one of which any vocabulary has a token for.
_PROBES = ("a", "0", ".", "\n", "中")
# Rare characters: Egyptian, Linear B and runes.
_RARE = ("\U00013000", "\U00010080", "\u16a0")
# For a long text, unused lists take as long to create as the ids.
_ONLY_IDS = {"return_attention_mask": False, "return_token_type_ids": False}


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> SpecialTokens:
    """Return the special tokens of a tokenizer: those with a role, and those only marked as special."""
    names = {
        int(token_id): str(token.content) for token_id, token in tokenizer.added_tokens_decoder.items() if token.special
    }
    for token in tokenizer.all_special_tokens:
        names[int(tokenizer.convert_tokens_to_ids(token))] = str(token)
    unknown = unknown_id(tokenizer)
    if unknown is not None:
        names.setdefault(unknown, str(tokenizer.convert_ids_to_tokens(unknown)))
    return SpecialTokens(names, tokenizer.bos_token_id, tokenizer.eos_token_id, unknown, prefix(tokenizer))


def prefix(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids that a tokenizer puts before every text, found by encoding one with and without them.

    Its settings have many names, and some tokenizers ignore them.
    """
    for probe in _PROBES:
        bare = _ids(tokenizer, probe, special_tokens=False)
        if not bare:
            continue
        if getattr(tokenizer, "is_fast", False):
            # The mask also distinguishes an added token from an unknown one in the same role.
            encoded = tokenizer(probe, return_special_tokens_mask=True)
            return tuple(encoded["input_ids"][: encoded["special_tokens_mask"].index(0)])
        full = _ids(tokenizer, probe, special_tokens=True)
        for begin in range(len(full) - len(bare) + 1):
            if full[begin : begin + len(bare)] == bare:
                return tuple(full[:begin])
    return ()


def unknown_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id that rare characters outside the vocabulary are encoded to, else the tokenizer's `unk_token`.

    The latter may be unset or never used.
    """
    unknown = set()
    for rare in _RARE:
        ids = _ids(tokenizer, rare, special_tokens=False)
        if ids and byte_spans(rare, tokenizer.convert_ids_to_tokens(ids), None) is None:
            unknown.add(ids[-1])
    return unknown.pop() if len(unknown) == 1 else tokenizer.unk_token_id


def encode(tokenizer: PreTrainedTokenizerBase, text: str, special_tokens: bool) -> list[int]:
    """See `Engine.encode`."""
    ids = _ids(tokenizer, text, special_tokens=False)
    return [*_before(tokenizer, ids), *ids] if special_tokens else ids


def tokenize(tokenizer: PreTrainedTokenizerBase, text: str, special_tokens: bool) -> Tokenized:
    """See `Engine.tokenize`."""
    encoded = tokenizer(text, add_special_tokens=False, verbose=False, **_ONLY_IDS)
    ids = list(encoded["input_ids"])
    distinct = list(set(ids))
    spelling = dict(zip(distinct, tokenizer.convert_ids_to_tokens(distinct), strict=True))
    offsets = (lambda: encoded.encodings[0].offsets) if getattr(tokenizer, "is_fast", False) else None
    spans = byte_spans(text, [spelling[token_id] for token_id in ids], offsets)
    before = _before(tokenizer, ids) if special_tokens else []
    if spans is not None:
        spans = np.concatenate([np.zeros((len(before), 2), dtype=np.int64), spans])
    return Tokenized([*before, *ids], spans, len(before))


def _before(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[int]:
    """Return the prefix for a text, without the part that the text itself starts with."""
    added = list(prefix(tokenizer))
    overlap = next(size for size in range(len(added), -1, -1) if added[len(added) - size :] == list(ids[:size]))
    return added[: len(added) - overlap]


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, special_tokens: bool) -> list[int]:
    # Not verbose: a text longer than the context is cut into windows later.
    return list(tokenizer(text, add_special_tokens=special_tokens, verbose=False, **_ONLY_IDS)["input_ids"])


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """See `Engine.decode`."""
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def pad_id(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> int:
    """Return the id for padding: the tokenizer's pad, its EOS, or 0.

    Pads are masked, so any id works within the vocabulary, which a pad added later may exceed.
    """
    candidates = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((int(token) for token in candidates if token is not None and 0 <= token < vocab_size), 0)


def eos_ids(generation_config: Any, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the end-of-sequence ids of the model, else of the tokenizer."""
    configured = getattr(generation_config, "eos_token_id", None)
    if configured is None:
        configured = tokenizer.eos_token_id
    if configured is None:
        return frozenset()
    return frozenset(configured if isinstance(configured, Iterable) else (configured,))


def until_eos(row: Sequence[int], eos: Collection[int]) -> tuple[int, ...]:
    """Cut a row after its first end-of-sequence token."""
    for index, token_id in enumerate(row):
        if token_id in eos:
            return tuple(row[: index + 1])
    return tuple(row)
