"""What engines say of text that have a transformers tokenizer, and of themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmtrack.engine import EngineInfo, Tokenized
from llmtrack.tensors import tokens


class WithTokenizer:
    """The part of an engine that is its tokenizer's, and what it is known as.

    Attributes:
        tokenizer: of transformers.
    """

    tokenizer: Any
    _info: EngineInfo

    @property
    def info(self) -> EngineInfo:
        """Facts about what is loaded."""
        return self._info

    def encode(self, text: str, special_tokens: bool = True) -> list[int]:
        """Return the token ids of a text that is to go on; see `Engine.encode`."""
        return tokens.encode(self.tokenizer, text, special_tokens)

    def tokenize(self, text: str, special_tokens: bool = True) -> Tokenized:
        """Return the same token ids, and the part of the text that each covers."""
        return tokens.tokenize(self.tokenizer, text, special_tokens)

    def decode(self, ids: Sequence[int]) -> str:
        """Return the text of token ids, special tokens left out."""
        return tokens.decode(self.tokenizer, ids)
