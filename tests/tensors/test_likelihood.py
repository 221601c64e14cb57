from __future__ import annotations

import pytest
import torch

from llmtrack.tensors.likelihood import CHUNK_BYTES, CHUNK_TOKENS, HEAP_BYTES, chunk_tokens


@pytest.mark.parametrize(
    ("vocab_size", "tokens"),
    [
        (49_152, 165),  # 31 MiB: a block that the C library reuses
        (128_000, CHUNK_TOKENS),  # 62.5 MiB: fewer tokens would make the product slower
        (262_144, 64),  # 64 MiB: the maximum
        (100_000_000, 1),
    ],
)
def test_a_chunk_fits_into_reused_memory_unless_the_product_needs_more_tokens(vocab_size, tokens):
    assert chunk_tokens(vocab_size, torch.device("cpu")) == tokens
    size = 4 * vocab_size * tokens
    assert size <= (HEAP_BYTES if tokens > CHUNK_TOKENS else CHUNK_BYTES) or tokens == 1
