"""The special tokens of a transformers tokenizer as plain data."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
