"""Text to token ids and back by a transformers tokenizer, and its special tokens as plain data."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from llmtrack.engines.base import SpecialTokens

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def special_tokens(tokenizer: PreTrainedTokenizerBase) -> SpecialTokens:
    """Return the special tokens of a tokenizer: those with a role, and those that are only marked as special."""
    names = {
        int(token_id): str(token.content)
        for token_id, token in tokenizer.added_tokens_decoder.items()
        if token.special
    }
    for token in tokenizer.all_special_tokens:
        names[int(tokenizer.convert_tokens_to_ids(token))] = str(token)
    return SpecialTokens(names, tokenizer.bos_token_id, tokenizer.eos_token_id)


def encode(
    tokenizer: PreTrainedTokenizerBase, text: str, special_tokens: bool, eos_ids: Collection[int]
) -> list[int]:
    """Return the token ids of a text as the model expects them: with a BOS where its tokenizer adds one.

    An end-of-sequence token that the tokenizer adds by itself is left out: the text is to go on.
    """
    # Not verbose: a text longer than the context is no mistake, it is cut into windows later.
    ids = list(tokenizer(text, add_special_tokens=special_tokens, verbose=False)["input_ids"])
    while special_tokens and ids and ids[-1] in eos_ids and not text.endswith(tokenizer.decode([ids[-1]])):
        ids.pop()
    return ids


def decode(tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
    """Return the text of token ids, special tokens left out."""
    return tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)


def pad_id(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the id that fills a batch up: the tokenizer's pad, its EOS, or 0."""
    return next(
        (int(each) for each in (tokenizer.pad_token_id, tokenizer.eos_token_id) if each is not None), 0
    )


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
