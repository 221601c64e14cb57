"""Which device and dtype are really used, and the label that says so."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

from llmtrack.errors import UsageError

if TYPE_CHECKING:
    import torch

DTYPE_ALIASES = {
    "float32": "float32",
    "fp32": "float32",
    "float": "float32",
    "float16": "float16",
    "fp16": "float16",
    "half": "float16",
    "bfloat16": "bfloat16",
    "bf16": "bfloat16",
}
DTYPES = tuple(dict.fromkeys(DTYPE_ALIASES.values()))


def canonical_dtype(name: str) -> str:
    """Return `float32`, `float16` or `bfloat16` for a dtype's name or alias, in any case.

    Raises:
        UsageError: the name is none of these.
    """
    key = str(name).strip().lower().removeprefix("torch.")
    if key not in DTYPE_ALIASES:
        raise UsageError(f"unknown dtype {name!r}: use one of {', '.join(DTYPE_ALIASES)}")
    return DTYPE_ALIASES[key]


def choose_dtype(requested: str, device: str, bfloat16_supported: bool) -> tuple[str, str]:
    """Decide which dtype a request leads to on a device, without asking torch.

    Args:
        requested: a dtype's name or alias.
        device: `cpu`, `cuda` or `cuda:N`.
        bfloat16_supported: whether that device can compute in bfloat16.

    Returns:
        The canonical name of the dtype to load, and its label: the same name, or the name with the
        reason why it is not the one asked for.

    Raises:
        UsageError: the dtype's name is unknown.
    """
    name = canonical_dtype(requested)
    on_cpu = device.split(":")[0] == "cpu"
    if name == "float16" and on_cpu:
        return "float32", "float32 (forced on CPU)"
    if name == "bfloat16" and not bfloat16_supported:
        fallback = "float32" if on_cpu else "float16"
        return fallback, f"{fallback} (bfloat16 not supported on {'CPU' if on_cpu else 'this GPU'})"
    return name, name


def resolve_dtype(requested: str, device: str = "cpu") -> tuple[torch.dtype, str]:
    """Return the torch dtype to load with and the label that says what is really used.

    >>> resolve_dtype("fp16", "cpu")
    (torch.float32, 'float32 (forced on CPU)')

    Raises:
        UsageError: the dtype's name is unknown.
    """
    import torch

    name, label = choose_dtype(requested, device, supports_bfloat16(device.split(":")[0]))
    return getattr(torch, name), label


def stored_label(counts: Mapping[str, int], chosen: str = "") -> str:
    """Return the label of what weights are really stored as: one dtype, or `mixed` with the share of each.

    >>> stored_label({"bfloat16": 984, "float32": 16}, "bfloat16")
    'mixed (bfloat16 98.4 %, float32 1.6 %)'

    Args:
        counts: number of weights by the name of their dtype.
        chosen: label of `choose_dtype`, which holds where all weights are what it names; one that ends in `weights`
            is a recipe's, which says itself how it stores them.
    """
    name, bracket, reason = chosen.partition(" (")
    if name.endswith(" weights") or set(counts) == {name}:
        return chosen
    if len(counts) == 1:
        return next(iter(counts))
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shares = ", ".join(f"{each} {_percent(count / total)}" for each, count in ordered)
    return f"mixed ({shares})" + (f", {name}{bracket}{reason}" if bracket else "")


def _percent(share: float) -> str:
    """Return a share in percent, without rounding it to none or to all."""
    if share < 0.0005:
        return "<0.1 %"
    return ">99.9 %" if share > 0.9995 else f"{100 * share:.1f} %"


def free_on_card(device: str | torch.device) -> int:
    """Return the bytes of a GPU that can still be had: what is free, and what PyTorch keeps and does not use."""
    import torch

    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + kept)


def arithmetic_of(dtype_name: str, device: str) -> str:
    """Return what matrix products of a dtype are computed in on a device; empty where that is not known.

    That is the dtype, but for float32 on a GPU where torch may shorten its factors to TF32 (10 bits of mantissa).

    Args:
        dtype_name: of the weights as they are used, such as `bfloat16`.
        device: `cpu`, `cuda` or `cuda:N`.
    """
    if dtype_name not in DTYPES:
        return ""
    if dtype_name == "float32" and device.startswith("cuda"):
        import torch

        return "float32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return dtype_name


def resolve_device(requested: str = "auto") -> str:
    """Return `cpu` or `cuda:N` for `auto`, `cpu`, `cuda` or `cuda:N`.

    Raises:
        UsageError: the device is unknown or not there.
    """
    import torch

    name = requested.strip().lower()
    kind, _, index = name.partition(":")
    if name == "cpu":
        return "cpu"
    if name == "auto":
        return "cuda:0" if torch.cuda.is_available() else "cpu"
    if kind != "cuda" or (index and not index.isdigit()):
        raise UsageError(f"unknown device {requested!r}: use auto, cpu, cuda or cuda:N")
    if not torch.cuda.is_available():
        raise UsageError(
            f"device {requested!r} is not available: torch {torch.__version__} sees no GPU; use device=cpu"
        )
    number = int(index or 0)
    if number >= torch.cuda.device_count():
        raise UsageError(
            f"device {requested!r} is not available: this machine has {torch.cuda.device_count()} GPU(s)"
        )
    return f"cuda:{number}"


@cache
def supports_bfloat16(device_kind: str) -> bool:
    """Return whether torch can multiply bfloat16 matrices on a kind of device (`cpu` or `cuda`)."""
    import torch

    if device_kind == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    try:
        one = torch.ones(2, 2, dtype=torch.bfloat16)
        return bool((one @ one == 2).all())
    except RuntimeError:
        return False
