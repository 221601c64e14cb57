"""Shared text methods of engines with a transformers tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llmtrack.engine import EngineInfo, Tokenized
from llmtrack.tensors import tokens


class WithTokenizer:
    """Tokenizer and info methods of an engine.

    Attributes:
        tokenizer: a transformers tokenizer.
    """

    tokenizer: Any
    _info: EngineInfo

    @property
    def info(self) -> EngineInfo:
        """See `Engine.info`."""
        return self._info

    def encode(self, text: str, special_tokens: bool = True) -> list[int]:
        """See `Engine.encode`."""
        return tokens.encode(self.tokenizer, text, special_tokens)

    def tokenize(self, text: str, special_tokens: bool = True) -> Tokenized:
        """See `Engine.tokenize`."""
        return tokens.tokenize(self.tokenizer, text, special_tokens)

    def decode(self, ids: Sequence[int]) -> str:
        """See `Engine.decode`."""
        return tokens.decode(self.tokenizer, ids)
