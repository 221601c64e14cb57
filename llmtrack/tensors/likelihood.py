"""Sum negative log-likelihoods of next tokens without holding a whole batch's logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch

from llmtrack.devices import free_on_card, has_float64
from llmtrack.host.formatting import MIB

CHUNK_BYTES, GPU_CHUNK_BYTES = 64 * MIB, 2**31
"""Maximum bytes of a chunk's logits: float32 on a CPU, float64 on a GPU (enough to keep its matrix units busy)."""

HEAP_BYTES, CHUNK_TOKENS = 31 * MIB, 128
"""On a CPU: the largest freed block that the C library reuses (larger allocations are new memory that the system clears
page by page), and the number of tokens below which a product gets slower."""

CACHE_BYTES = 2 * MIB
"""Bytes of float32 logits exponentiated at once on a CPU, so that they stay in its cache until summed."""

GPU_CHUNK_TOKENS = 2048
"""Larger products with the head are not faster."""

SHARE = 8
"""On a GPU, a chunk takes at most one part in this many of the free memory, and intermediate results another."""


def predicted(attention_mask: torch.Tensor, scored: torch.Tensor | None = None) -> torch.Tensor:
    """Return (rows, length - 1) booleans: which tokens are predicted from a token before them.

    Neither the token nor its predecessor may be a pad: with left padding, the first token follows a pad and would be
    scored without context.

    Args:
        attention_mask: (rows, length), 1 for tokens and 0 for pads.
        scored: (rows, length) booleans: tokens that count if predicted; None for all.
    """
    real = attention_mask.bool()
    valid = real[:, 1:] & real[:, :-1]
    return valid if scored is None else valid & scored[:, 1:]


def sum_nll(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    valid: torch.Tensor,
    head: Callable[[torch.Tensor], torch.Tensor],
    vocab_size: int,
) -> torch.Tensor:
    """Sum the negative log-likelihood of the targets per row.

    Args:
        hidden: (rows, length, width) inputs of the head.
        targets: (rows, length) token ids to predict.
        valid: (rows, length) booleans: which targets count.
        head: maps (tokens, width) to (tokens, vocabulary) logits.
        vocab_size: width of the logits; determines the chunk size.

    Returns:
        (rows,) sums in nats, float64; on the CPU if the device has no float64.
    """
    rows = valid.nonzero()[:, 0]
    flat_hidden, flat_targets = hidden[valid], targets[valid]
    chunk, nll_of = chunk_tokens(vocab_size, hidden.device), _nll_on(hidden.device.type)
    device = hidden.device if has_float64(hidden.device) else torch.device("cpu")
    rows, sums = rows.to(device), torch.zeros(len(hidden), dtype=torch.float64, device=device)
    for first in range(0, len(flat_targets), chunk):
        part = slice(first, first + chunk)
        sums.index_add_(0, rows[part], nll_of(head(flat_hidden[part]), flat_targets[part]))
    return sums


def chunk_tokens(vocab_size: int, device: torch.device) -> int:
    """Return the number of tokens whose logits are held at once."""
    if device.type != "cuda":
        limit, reusable = (size // (4 * vocab_size) for size in (CHUNK_BYTES, HEAP_BYTES))
        return max(1, min(limit, max(reusable, CHUNK_TOKENS)))
    limit = min(GPU_CHUNK_BYTES, free_on_card(device) // SHARE) // (8 * vocab_size)
    return max(1, min(GPU_CHUNK_TOKENS, limit))


def token_nll(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the negative log-likelihood of each target in nats, float64.

    In float32, the sum over a vocabulary of 50,000 is low by about 2e-5 nats per token.

    Args:
        logits: (tokens, vocabulary), any float dtype.
        targets: (tokens,) ids.
    """
    exact = logits.double()
    return exact.logsumexp(dim=-1) - exact.gather(1, targets[:, None])[:, 0]


def token_nll_in_cache(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Like `token_nll` to 1e-6 nats per token, several times as fast on a CPU: float32 exponentials, summed in float64.

    Each exponential is as exact as the logits; only a float32 sum would lose precision. The intermediate results of a
    few tokens stay in the cache, while float64 ones of a chunk would go through memory.
    """
    size = max(1, CACHE_BYTES // (4 * logits.shape[1]))
    dtype = torch.promote_types(logits.dtype, torch.float32)
    nll = []
    for part, ids in zip(logits.split(size), targets.split(size), strict=True):
        largest = part.amax(dim=-1, keepdim=True)
        total = (part.to(dtype) - largest).exp_().sum(dim=-1, dtype=torch.float64)
        nll.append(total.log() + largest[:, 0].double() - part.gather(1, ids[:, None])[:, 0].double())
    return torch.cat(nll)


@cache
def _nll_on(device_type: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the implementation of `token_nll`; with CUDA a single kernel, so that float64 logits are never stored."""
    if not has_float64(device_type):
        return lambda logits, targets: token_nll_in_cache(logits.cpu(), targets.cpu())
    if device_type == "cpu":
        return token_nll_in_cache
    if device_type != "cuda" or find_spec("triton") is None:
        return token_nll
    compiled = torch.compile(token_nll, dynamic=True)

    def run(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # A single token would trigger a recompilation.
        return (compiled if len(targets) > 1 else token_nll)(logits, targets)

    return run
