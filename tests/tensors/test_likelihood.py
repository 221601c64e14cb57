"""Of how many tokens the logits are there at once."""

from __future__ import annotations

import pytest
import torch

from llmtrack.tensors.likelihood import CHUNK_BYTES, CHUNK_TOKENS, HEAP_BYTES, chunk_tokens


@pytest.mark.parametrize(
    ("vocab_size", "tokens"),
    [
        (49_152, 165),  # 31 MiB: what the C library keeps, and need not be cleared again
        (128_000, CHUNK_TOKENS),  # 62.5 MiB: fewer tokens would make the product slower
        (262_144, 64),  # 64 MiB: the most
        (100_000_000, 1),
    ],
)
def test_a_chunk_is_memory_that_is_kept_unless_the_product_wants_more_tokens(vocab_size, tokens):
    assert chunk_tokens(vocab_size, torch.device("cpu")) == tokens
    size = 4 * vocab_size * tokens
    assert size <= (HEAP_BYTES if tokens > CHUNK_TOKENS else CHUNK_BYTES) or tokens == 1
