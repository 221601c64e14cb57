"""Peak and free memory, and whether a batch fits into it and into the context."""

from __future__ import annotations

import sys
from contextlib import suppress
from pathlib import Path

import psutil

from llmtrack.devices import free_on_card, on_gpu
from llmtrack.engine import EngineInfo
from llmtrack.errors import ScenarioError
from llmtrack.host.formatting import GIB, plural
from llmtrack.host.machine import control_groups, read_text

CLEAR_REFS = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")
ROOT = Path("/")

_IN_GROUPS = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}
"""By control-group version: the files of the limit and the usage, and the key of reclaimable page cache."""

TOKEN_BYTES = 4 * 8
"""Bytes of a token: its id in a list, and its id, mask and position in a batch."""


def reset_peak_rss() -> bool:
    """Reset the peak; return False if the system only knows the peak since process start."""
    try:
        CLEAR_REFS.write_text("5")
    except OSError:
        return False
    return True


def peak_rss_bytes() -> int:
    """Return the peak resident set in bytes since the last reset, or since process start without one."""
    try:
        for line in STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def available_bytes() -> int:
    """Return the bytes available without swapping: of the machine, or under this process's tightest limit."""
    return max(0, min([psutil.virtual_memory().available, *_room_in_groups(), *_room_in_limits()]))


def free_memory(device: str) -> int:
    """Return the free bytes of a device; of a CPU, as `available_bytes`."""
    return free_on_card(device) if on_gpu(device) else available_bytes()


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
    """Reject a batch that cannot fit, before building it.

    Only the unavoidable minimum is counted: token ids, and keys and values where they are kept (in the cache, or for
    the backward pass). A batch that passes may still run out of memory, which fails its scenario, too.

    Args:
        prompt_tokens: tokens of the longest row.
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
        ScenarioError: of kind `too_long`.
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
    info: EngineInfo, rows: int, length: int, *, cached: bool = True, scored: bool = False, free: int | None = None
) -> None:
    """Reject rows that the device's memory cannot hold; see `check_batch`.

    Args:
        length: tokens per row, including pads.
        cached: whether keys and values of all tokens are kept.
        scored: whether logits of all tokens are computed at once.
        free: free bytes on the device; None to ask the device.

    Raises:
        ScenarioError: of kind `out_of_memory`.
    """
    token_bytes = TOKEN_BYTES + cached * info.kv_bytes_per_token + scored * info.score_bytes_per_token
    # A sharded model takes a part of it on each device.
    needed = rows * length * token_bytes // info.devices
    free = free_memory(info.device) if free is None else free
    if needed > free:
        raise ScenarioError(
            f"a batch of {plural(rows, 'row')} of {length:,} tokens takes {needed / GIB:,.1f} GiB of memory at least, and "
            f"{free / GIB:,.1f} GiB are free on {info.device}: ask for fewer rows or tokens",
            kind="out_of_memory",
        )


def _room_in_limits() -> list[int]:
    """Return the bytes left under this process's resource limits (`ulimit -v`, `ulimit -d`)."""
    try:
        import resource
    except ImportError:  # Windows has none
        return []
    memory = psutil.Process().memory_info()
    usage = {resource.RLIMIT_AS: memory.vms, resource.RLIMIT_DATA: getattr(memory, "data", 0)}
    limits = [(resource.getrlimit(kind)[0], used) for kind, used in usage.items()]
    return [limit - used for limit, used in limits if limit != resource.RLIM_INFINITY]


def _room_in_groups() -> list[int]:
    """Return the bytes left under each control-group memory limit of this process."""
    room = []
    for version, group in control_groups("memory", ROOT):
        limit, used, cached = _IN_GROUPS[version]
        counts = dict(line.split(" ", 1) for line in read_text(group / "memory.stat").splitlines() if " " in line)
        # Page cache is reclaimed on demand.
        with suppress(ValueError, KeyError):  # unlimited (`max`), or not visible
            room.append(int(read_text(group / limit)) - int(read_text(group / used)) + int(counts[cached]))
    return room
