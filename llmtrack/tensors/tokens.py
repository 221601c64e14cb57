"""Text to token ids and back by a transformers tokenizer, and its special tokens as plain data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from llmtrack.engine import SpecialTokens, Tokenized
from llmtrack.tensors.spans import byte_spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

# Texts that some vocabulary has a token for.
_PROBES = ("a", "0", ".", "\n", "中")
# Characters that few vocabularies have: of Egyptian, Linear B and runes.
_RARE = ("\U00013000", "\U00010080", "\u16a0")
# Of a long text, lists that nobody reads take as long to make as its ids.
_ONLY_IDS = {"return_attention_mask": False, "return_token_type_ids": False}


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> SpecialTokens:
    """Return the special tokens of a tokenizer: those with a role, and those that are only marked as special."""
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

    The settings that ask for them have many names, and some tokenizers do not heed them.
    """
    for probe in _PROBES:
        bare = _ids(tokenizer, probe, special_tokens=False)
        if not bare:
            continue
        if getattr(tokenizer, "is_fast", False):
            # The mask also tells a token that was added from an unknown one in the same role.
            encoded = tokenizer(probe, return_special_tokens_mask=True)
            return tuple(encoded["input_ids"][: encoded["special_tokens_mask"].index(0)])
        whole = _ids(tokenizer, probe, special_tokens=True)
        for begin in range(len(whole) - len(bare) + 1):
            if whole[begin : begin + len(bare)] == bare:
                return tuple(whole[:begin])
    return ()


def unknown_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the id of text that the vocabulary does not have: what rare characters become that it does not spell.

    The tokenizer's own `unk_token` is believed only where they tell nothing: it may be unset, or never be used.
    """
    found = set()
    for rare in _RARE:
        ids = _ids(tokenizer, rare, special_tokens=False)
        if ids and byte_spans(rare, tokenizer.convert_ids_to_tokens(ids), None) is None:
            found.add(ids[-1])
    return found.pop() if len(found) == 1 else tokenizer.unk_token_id


def encode(tokenizer: PreTrainedTokenizerBase, text: str, special_tokens: bool) -> list[int]:
    """Return the token ids of a text that is to go on; see `Engine.encode`."""
    ids = _ids(tokenizer, text, special_tokens=False)
    return [*_before(tokenizer, ids), *ids] if special_tokens else ids


def tokenize(tokenizer: PreTrainedTokenizerBase, text: str, special_tokens: bool) -> Tokenized:
    """Return the same token ids, and the part of the text that each covers; see `Engine.tokenize`."""
    tells = bool(getattr(tokenizer, "is_fast", False))
    encoded = tokenizer(text, add_special_tokens=False, verbose=False, **_ONLY_IDS)
    ids = list(encoded["input_ids"])
    known = list(set(ids))
    spelled = dict(zip(known, tokenizer.convert_ids_to_tokens(known), strict=True))
    pieces = [spelled[each] for each in ids]
    spans = byte_spans(text, pieces, (lambda: encoded.encodings[0].offsets) if tells else None)
    before = _before(tokenizer, ids) if special_tokens else []
    if spans is not None:
        spans = np.concatenate([np.zeros((len(before), 2), dtype=np.int64), spans])
    return Tokenized([*before, *ids], spans, len(before))


def _before(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> list[int]:
    """Return what is to be put before a text, less what the text itself begins with."""
    added = list(prefix(tokenizer))
    doubled = next(size for size in range(len(added), -1, -1) if added[len(added) - size :] == list(ids[:size]))
    return added[: len(added) - doubled]


def _ids(tokenizer: PreTrainedTokenizerBase, text: str, special_tokens: bool) -> list[int]:
    # Not verbose: a text longer than the context is no mistake, it is cut into windows later.
    return list(tokenizer(text, add_special_tokens=special_tokens, verbose=False, **_ONLY_IDS)["input_ids"])


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Return the text of token ids, special tokens left out."""
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def pad_id(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> int:
    """Return the id that fills a batch up: the tokenizer's pad, its EOS, or 0.

    Pads are masked, so any id will do that the model has: a pad that was added to a tokenizer after the model was made
    lies beyond its table.
    """
    named = (tokenizer.pad_token_id, tokenizer.eos_token_id)
    return next((int(each) for each in named if each is not None and 0 <= each < vocab_size), 0)


def eos_ids(generation_config: Any, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids that end a sequence: the model's, or else the tokenizer's."""
    configured = getattr(generation_config, "eos_token_id", None)
    if configured is None:
        configured = tokenizer.eos_token_id
    if configured is None:
        return frozenset()
    return frozenset(configured if isinstance(configured, Iterable) else (configured,))


def until_eos(row: Sequence[int], eos: Collection[int]) -> tuple[int, ...]:
    """Return a row up to and with its first end-of-sequence token."""
    for index, token_id in enumerate(row):
        if token_id in eos:
            return tuple(row[: index + 1])
    return tuple(row)
