"""Check whether a batch fits the context and the device's memory before building it."""

from __future__ import annotations

from llmtrack.devices import free_on_card, on_gpu
from llmtrack.engine import EngineInfo
from llmtrack.errors import ScenarioError
from llmtrack.host.formatting import GIB
from llmtrack.measure.memory import available_bytes

# A token id in a list, and its id, mask and position in a batch.
TOKEN_BYTES = 4 * 8


def check_batch(
    info: EngineInfo,
    rows: int,
    prompt_tokens: int,
    new_tokens: int = 0,
    *,
    padded: int | None = None,
    cached: bool = True,
    free: int | None = None,
) -> None:
    """Reject a batch that cannot fit.

    Only the unavoidable minimum is counted: token ids, and keys and values where they are kept (in the cache, or for
    the backward pass). A batch that passes may still run out of memory, which fails its scenario, too.

    Args:
        rows: rows of the batch.
        prompt_tokens: tokens of its longest row.
        new_tokens: tokens generated per row.
        padded: padded row length; None for the longest row's.
        cached: whether keys and values of all tokens are kept.
        free: free bytes on the device; None to ask the device.

    Raises:
        ScenarioError: it exceeds the context (`too_long`) or the memory (`out_of_memory`).
    """
    check_context(info, prompt_tokens, new_tokens)
    check_memory(info, rows, max(prompt_tokens, padded or 0) + new_tokens, cached=cached, free=free)


def check_context(info: EngineInfo, prompt_tokens: int, new_tokens: int = 0) -> None:
    """Reject a row that exceeds the context.

    Raises:
        ScenarioError: it does.
    """
    context = info.context_length
    if context is not None and new_tokens >= context:
        raise ScenarioError(
            f"{new_tokens:,} new tokens leave no room for a prompt in the context of {context:,} tokens of "
            f"{info.model_id}: ask for fewer than {context:,} new tokens",
            kind="too_long",
        )
    if context is not None and prompt_tokens + new_tokens > context:
        raise ScenarioError(
            f"a prompt of {prompt_tokens} tokens and {new_tokens} new {'one' if new_tokens == 1 else 'ones'} exceed the context of {context} "
            f"tokens of {info.model_id}: ask for at most {context - new_tokens} prompt tokens",
            kind="too_long",
        )


def check_memory(
    info: EngineInfo,
    rows: int,
    length: int,
    *,
    cached: bool = True,
    scored: bool = False,
    free: int | None = None,
) -> None:
    """Reject rows that the device's memory cannot hold; see `check_batch`.

    Args:
        rows: rows of the batch.
        length: tokens per row, including pads.
        cached: whether keys and values of all tokens are kept.
        scored: whether logits of all tokens are computed at once.
        free: free bytes on the device; None to ask the device.

    Raises:
        ScenarioError: they need more than is free.
    """
    token_bytes = TOKEN_BYTES + cached * info.kv_bytes_per_token + scored * info.score_bytes_per_token
    # A sharded model takes a part of it on each device.
    needed = rows * length * token_bytes // info.devices
    there = free_memory(info.device) if free is None else free
    if needed > there:
        raise ScenarioError(
            f"a batch of {rows:,} rows of {length:,} tokens takes {needed / GIB:,.1f} GiB of memory at least, and "
            f"{there / GIB:,.1f} GiB are free on {info.device}: ask for fewer rows or tokens",
            kind="out_of_memory",
        )


def free_memory(device: str) -> int:
    """Return the free bytes of a device."""
    return free_on_card(device) if on_gpu(device) else available_bytes()
