"""Sum the negative log-likelihood of next tokens without ever holding a whole batch's logits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch

from llmtrack.devices import free_on_card, has_float64
from llmtrack.host.units import MIB

CHUNK_BYTES, GPU_CHUNK_BYTES = 64 * MIB, 2**31
"""Bytes of a chunk's logits at most: on a CPU, of float32, as many as help, on a GPU, of float64, as keep its matrix units busy."""

HEAP_BYTES, CHUNK_TOKENS = 31 * MIB, 128
"""On a CPU: bytes of the largest block that the C library keeps once it has been freed (beyond 32 MiB each one is new memory, which the
system clears page by page, and by the first such block all smaller ones are kept, too), and tokens below which a product gets slower."""

CACHE_BYTES = 2 * MIB
"""Bytes of float32 logits whose exponentials are taken at once on a CPU: they stay in its cache until they are summed."""

GPU_CHUNK_TOKENS = 2048
"""Beyond, a product with the head gets no faster."""

SHARE = 8
"""On a GPU a chunk takes this part of what is free at most, and what is computed on the way as much again."""


def predicted(attention_mask: torch.Tensor, scored: torch.Tensor | None = None) -> torch.Tensor:
    """Return (rows, length - 1) booleans: which tokens are predicted from a real token before them.

    Both the token and the one before it must be real. With left padding the first real token follows a
    pad, so a rule that only ignores pads as targets would score it from nothing.

    Args:
        attention_mask: (rows, length), 1 for real tokens and 0 for pads.
        scored: (rows, length) booleans: tokens that count if they are predicted; None: all.
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
        hidden: (rows, length, width) what the head turns into logits.
        targets: (rows, length) token ids to predict.
        valid: (rows, length) booleans: which targets count.
        head: turns (tokens, width) into (tokens, vocabulary) logits.
        vocab_size: width of the logits; sets how many tokens make a chunk.

    Returns:
        (rows,) sums in nats, float64; on the CPU where the device has no float64.
    """
    rows = valid.nonzero()[:, 0]
    flat_hidden, flat_targets = hidden[valid], targets[valid]
    chunk, nll_of = chunk_tokens(vocab_size, hidden.device), _nll_on(hidden.device.type)
    place = hidden.device if has_float64(hidden.device) else torch.device("cpu")
    rows, sums = rows.to(place), torch.zeros(len(hidden), dtype=torch.float64, device=place)
    for first in range(0, len(flat_targets), chunk):
        part = slice(first, first + chunk)
        sums.index_add_(0, rows[part], nll_of(head(flat_hidden[part]), flat_targets[part]))
    return sums


def chunk_tokens(vocab_size: int, device: torch.device) -> int:
    """Return of how many tokens the logits are there at once.

    Args:
        vocab_size: width of the logits.
        device: where they are computed.
    """
    if device.type != "cuda":
        most, kept = (size // (4 * vocab_size) for size in (CHUNK_BYTES, HEAP_BYTES))
        return max(1, min(most, max(kept, CHUNK_TOKENS)))
    most_bytes = min(GPU_CHUNK_BYTES, free_on_card(device) // SHARE)
    return max(1, min(GPU_CHUNK_TOKENS, most_bytes // (8 * vocab_size)))


def token_nll(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the negative log-likelihood of each target in nats, float64.

    In float32 the sum over a vocabulary of 50,000 comes out low by about 2e-5 nats in each token.

    Args:
        logits: (tokens, vocabulary), of any float dtype.
        targets: (tokens,) ids.
    """
    exact = logits.double()
    return exact.logsumexp(dim=-1) - exact.gather(1, targets[:, None])[:, 0]


def token_nll_in_cache(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the same to 1e-6 nats a token, several times as fast on a CPU: float32 exponentials, summed in float64.

    What float32 loses is lost in the sum. Each of its exponentials is as exact as the logits are, and all that is made of a
    few tokens' logits stays in the cache, where float64 ones of a chunk would be written to memory and read again.
    """
    part, wide = (
        max(1, CACHE_BYTES // (4 * logits.shape[1])),
        torch.promote_types(logits.dtype, torch.float32),
    )
    found = []
    for some, wanted in zip(logits.split(part), targets.split(part), strict=True):
        most = some.amax(dim=-1, keepdim=True)
        total = (some.to(wide) - most).exp_().sum(dim=-1, dtype=torch.float64)
        found.append(total.log() + most[:, 0].double() - some.gather(1, wanted[:, None])[:, 0].double())
    return torch.cat(found)


@cache
def _nll_on(device_type: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return what computes `token_nll`: with CUDA one kernel, so that the float64 logits are never written down."""
    if not has_float64(device_type):
        return lambda logits, targets: token_nll_in_cache(logits.cpu(), targets.cpu())
    if device_type == "cpu":
        return token_nll_in_cache
    if device_type != "cuda" or find_spec("triton") is None:
        return token_nll
    compiled = torch.compile(token_nll, dynamic=True)

    def run(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        # A single row would be compiled anew.
        return (compiled if len(targets) > 1 else token_nll)(logits, targets)

    return run
