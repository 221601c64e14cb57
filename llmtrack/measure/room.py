"""Whether a batch fits the model's context and the device's memory, told before anything of it is made."""

from __future__ import annotations

from llmtrack.devices import free_on_card, on_gpu
from llmtrack.engine import EngineInfo
from llmtrack.errors import ScenarioError
from llmtrack.host.units import GIB
from llmtrack.measure.memory import available_bytes

# A token's id as it waits in a list, and its id, mask and position as a batch holds them.
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
    """Refuse a batch that cannot be held.

    What is counted is the least that it takes: token ids, and keys and values where they are kept (in the cache, or for the
    way back of a training). What passes may still run out of memory, and that is a failure of its scenario, too.

    Args:
        info: the engine.
        rows: rows of the batch.
        prompt_tokens: tokens of its longest row.
        new_tokens: tokens that are generated behind each row.
        padded: tokens of a row once it is padded; None: as many as the longest has.
        cached: whether keys and values of all tokens are kept.
        free: bytes that are free on the device; None: as many as it says.

    Raises:
        ScenarioError: it is longer than the context (`too_long`), or takes more memory than there is (`out_of_memory`).
    """
    check_context(info, prompt_tokens, new_tokens)
    check_memory(info, rows, max(prompt_tokens, padded or 0) + new_tokens, cached=cached, free=free)


def check_context(info: EngineInfo, prompt_tokens: int, new_tokens: int = 0) -> None:
    """Refuse a row that is longer than the context.

    Raises:
        ScenarioError: it is.
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
    """Refuse rows of so many tokens that the device's memory cannot hold; see `check_batch`.

    Args:
        info: the engine.
        rows: rows of the batch.
        length: tokens of each, pads included.
        cached: whether keys and values of all tokens are kept.
        scored: whether the next token of each is predicted at once.
        free: bytes that are free on the device; None: as many as it says.

    Raises:
        ScenarioError: they take more than there is.
    """
    token_bytes = TOKEN_BYTES + cached * info.kv_bytes_per_token + scored * info.score_bytes_per_token
    # What is shared out takes a part of it on each device.
    needed = rows * length * token_bytes // info.devices
    there = free_memory(info.device) if free is None else free
    if needed > there:
        raise ScenarioError(
            f"a batch of {rows:,} rows of {length:,} tokens takes {needed / GIB:,.1f} GiB of memory at least, and "
            f"{there / GIB:,.1f} GiB are free on {info.device}: ask for fewer rows or tokens",
            kind="out_of_memory",
        )


def free_memory(device: str) -> int:
    """Return the bytes that can still be had on a device."""
    return free_on_card(device) if on_gpu(device) else available_bytes()
