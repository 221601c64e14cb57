"""Resolve devices and dtypes, and label what is actually used."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmtrack.errors import UsageError
from llmtrack.host.machine import cpu_model, read_text

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Kind:
    """Differences between kinds of device; everything else is in PyTorch's module of that name.

    Attributes:
        title: name in messages.
        tried: whether llmtrack was tested on such hardware; `auto` chooses no other.
        float64: whether every such device supports float64.
        several: whether there can be several, so that PyTorch's functions take a device argument.
        peaks: whether PyTorch's allocator reports peak memory.
    """

    title: str
    tried: bool = False
    float64: bool = False
    several: bool = False
    peaks: bool = False


KINDS = {
    "cpu": Kind("the CPU", tried=True, float64=True),
    "cuda": Kind("an NVIDIA GPU", tried=True, float64=True, several=True, peaks=True),
    "xpu": Kind("an Intel GPU (XPU)", several=True, peaks=True),
    "mps": Kind("an Apple GPU (MPS)"),
}
"""By PyTorch name; `auto` prefers GPUs in this order. A ROCm build calls an AMD GPU `cuda`, too."""

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

DEVICE_HELP = "auto, cpu, cuda, cuda:N, xpu, xpu:N or mps"

_GPU_CLASSES = ("0x03", "0x12")
"""PCI classes of display controllers and accelerators."""


def canonical_dtype(name: str) -> str:
    """Return `float32`, `float16` or `bfloat16` for a dtype name or alias, case-insensitively.

    Raises:
        UsageError: the name is unknown.
    """
    key = str(name).strip().lower().removeprefix("torch.")
    if key not in DTYPE_ALIASES:
        raise UsageError(f"unknown dtype {name!r}: use one of {', '.join(DTYPE_ALIASES)}")
    return DTYPE_ALIASES[key]


def choose_dtype(requested: str, device: str, bfloat16_supported: bool) -> tuple[str, str]:
    """Return the canonical dtype to load on a device, and its label, with the reason if it is not the one requested.

    Raises:
        UsageError: the dtype name is unknown.
    """
    name = canonical_dtype(requested)
    on_cpu = not on_gpu(device)
    if name == "float16" and on_cpu:
        return "float32", "float32 (forced on CPU)"
    if name == "bfloat16" and not bfloat16_supported:
        fallback = "float32" if on_cpu else "float16"
        return fallback, f"{fallback} (bfloat16 not supported on {'CPU' if on_cpu else 'this GPU'})"
    return name, name


def resolve_dtype(requested: str, device: str = "cpu") -> tuple[torch.dtype, str]:
    """Return the torch dtype to load and the label of what is used.

    >>> resolve_dtype("fp16", "cpu")
    (torch.float32, 'float32 (forced on CPU)')

    Raises:
        UsageError: the dtype name is unknown.
    """
    import torch

    name, label = choose_dtype(requested, device, supports_bfloat16(kind_of(device)))
    return getattr(torch, name), label


def stored_label(counts: Mapping[str, int], chosen: str = "") -> str:
    """Label the stored weights: one dtype, or `mixed` with shares.

    >>> stored_label({"bfloat16": 984, "float32": 16}, "bfloat16")
    'mixed (bfloat16 98.4 %, float32 1.6 %)'

    Args:
        counts: number of weights by dtype name.
        chosen: label from `choose_dtype`, used if it matches all weights; a label ending in `weights` comes from a
            recipe and is kept.
    """
    name, bracket, reason = chosen.partition(" (")
    if name.endswith(" weights") or set(counts) == {name}:
        return chosen
    if len(counts) == 1:
        return next(iter(counts))
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    shares = ", ".join(f"{dtype} {_percent(count / total)}" for dtype, count in ordered)
    return f"mixed ({shares})" + (f", {name}{bracket}{reason}" if bracket else "")


def _percent(share: float) -> str:
    """Format a share in percent, never rounded to 0 or 100."""
    if share < 0.0005:
        return "<0.1 %"
    return ">99.9 %" if share > 0.9995 else f"{100 * share:.1f} %"


def arithmetic_of(dtype_name: str, device: str) -> str:
    """Return the arithmetic of matrix products of a dtype on a device; empty if unknown.

    It is the dtype itself, except for float32 on an NVIDIA GPU, where torch may use TF32 (10 mantissa bits).
    """
    if dtype_name not in DTYPES:
        return ""
    if dtype_name == "float32" and kind_of(device) == "cuda":
        import torch

        return "float32" if torch.get_float32_matmul_precision() == "highest" else "tf32"
    return dtype_name


def kind_of(device: str | torch.device) -> str:
    """Return the kind of a device: a key of `KINDS`."""
    return str(device).partition(":")[0]


def on_gpu(device: str | torch.device) -> bool:
    """Return whether a device is a PyTorch GPU; device names of other engines are not."""
    return kind_of(device) in _gpu_kinds()


def has_float64(device: str | torch.device) -> bool:
    """Return whether every device of this kind supports float64."""
    return kind_of(device) in KINDS and KINDS[kind_of(device)].float64


def choose_device(requested: str, available: Sequence[str]) -> str:
    """Choose a device from those available, without importing torch.

    `auto` is the first GPU of a tested kind, else the CPU; a kind without a number is its first device. An unavailable
    device is returned as requested.
    """
    name = requested.strip().lower()
    if name == "auto":
        return next((f"{kind}:0" for kind in _gpu_kinds(tried=True) if f"{kind}:0" in available), "cpu")
    return f"{name}:0" if name in _gpu_kinds() else name


def resolve_device(requested: str = "auto") -> str:
    """Return `cpu` or `KIND:N` for `auto`, `cpu`, a kind of `KINDS` or `KIND:N`.

    Raises:
        UsageError: the device is unknown or unavailable.
    """
    import torch

    if requested.strip().lower() == "auto":
        return choose_device("auto", [device for kind in _gpu_kinds(tried=True) for device in devices(kind)])
    if (name := choose_device(requested, ())) == "cpu":
        return name
    kind, _, index = name.partition(":")
    if kind not in _gpu_kinds() or not index.isdigit():
        raise UsageError(f"unknown device {requested!r}: use {DEVICE_HELP}")
    available = devices(kind)
    if not available:
        title = "GPU" if kind == "cuda" else f"{kind} device"
        raise UsageError(
            f"device {requested!r} is not available: torch {torch.__version__} sees no {title}; use device=cpu"
        )
    if (name := f"{kind}:{int(index)}") not in available:
        raise UsageError(f"device {requested!r} is not available: this machine has {len(available)} GPU(s)")
    return name


def devices(kind: str) -> list[str]:
    """Return the usable devices of a kind, such as `cuda:0` and `cuda:1`.

    With `PYTORCH_NVML_BASED_CUDA_CHECK=1` this does not initialise CUDA.
    """
    if not on_gpu(kind):
        return [kind]
    import torch

    if kind == "mps":
        count = int(torch.backends.mps.is_available())
    else:
        module = _module(kind)
        count = module.device_count() if module.is_available() else 0
    return [f"{kind}:{index}" for index in range(count)]


def require_tried(device: str, feature: str) -> None:
    """Raise a UsageError for a feature on a kind of device that llmtrack was never tested on."""
    if not KINDS[kind_of(device)].tried:
        raise UsageError(f"{feature} on {device} is not supported: use device=cpu or cuda")


def name_of(device: str) -> str:
    """Return the name of a GPU."""
    if kind_of(device) == "mps":
        return f"{cpu_model()} GPU"
    return str(_module(device).get_device_name(device))


def platform_facts() -> dict[str, str]:
    """Return the version of ROCm or CUDA that PyTorch was built with."""
    import torch

    return {"rocm": torch.version.hip} if torch.version.hip else {"cuda": str(torch.version.cuda)}


def synchronize(device: str | torch.device) -> None:
    """Wait until a device has finished all submitted work; no-op on CPU."""
    if on_gpu(device):
        _module(device).synchronize(*((device,) if KINDS[kind_of(device)].several else ()))


def reset_peak_memory(device: str) -> None:
    """Reset a GPU's peak memory, if its allocator reports it."""
    if KINDS[kind_of(device)].peaks:
        _module(device).reset_peak_memory_stats(device)


def peak_memory_bytes(device: str) -> int | None:
    """Return the peak of a GPU's allocator since the last reset, or None if unsupported."""
    return int(_module(device).max_memory_allocated(device)) if KINDS[kind_of(device)].peaks else None


def empty_cache(device: str | torch.device) -> None:
    """Release a GPU's cached memory."""
    if on_gpu(device):
        _module(device).empty_cache()


def free_on_card(device: str | torch.device) -> int:
    """Return the available bytes of a GPU: free, or cached by PyTorch."""
    module = _module(device)
    if kind_of(device) == "mps":
        return max(0, int(module.recommended_max_memory() - module.current_allocated_memory()))
    cached = module.memory_reserved(device) - module.memory_allocated(device)
    return int(module.mem_get_info(device)[0] + cached)


@cache
def supports_bfloat16(kind: str) -> bool:
    """Return whether torch can multiply bfloat16 matrices on a kind of device."""
    import torch

    if kind == "cuda":
        return torch.cuda.is_available() and torch.cuda.is_bf16_supported(including_emulation=False)
    if not devices(kind):
        return False
    try:
        ones = torch.ones(2, 2, dtype=torch.bfloat16, device=kind)
        return bool((ones @ ones == 2).all())
    except (RuntimeError, TypeError):  # MPS before macOS 14 raises a TypeError
        return False


def emulates_bfloat16(kind: str) -> bool:
    """Return whether a kind of device computes bfloat16 without instructions for it, slowly, as a CPU may."""
    import torch

    if kind != "cpu":
        return False
    native = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return not (native and native()) and torch.backends.cpu.get_cpu_capability() != "SVE256"


def unused_devices(root: Path = Path("/")) -> tuple[str, ...]:
    """Describe each GPU that `auto` does not use, and why."""
    untried = [
        f"{KINDS[kind].title} is used only by device={kind} (never tried on hardware)"
        for kind in _gpu_kinds(tried=False)
        if devices(kind)
    ]
    return (*untried, *_without_pytorch(root))


def _without_pytorch(root: Path) -> Iterator[str]:
    """Describe the GPUs on the PCI bus that PyTorch cannot use."""
    import torch

    xpu = getattr(torch.xpu, "_is_compiled", lambda: False)()
    # Vendor id: name, kind, required PyTorch build, whether this is one, variable that can hide the devices.
    vendors = {
        "0x10de": ("NVIDIA", "cuda", "CUDA", torch.version.cuda, "CUDA_VISIBLE_DEVICES"),
        "0x1002": ("AMD", "cuda", "ROCm", torch.version.hip, "HIP_VISIBLE_DEVICES"),
        "0x8086": ("Intel", "xpu", "XPU", xpu, "ZE_AFFINITY_MASK"),
    }
    pci_devices = sorted((root / "sys/bus/pci/devices").glob("*"))
    gpus = [path for path in pci_devices if read_text(path / "class").startswith(_GPU_CLASSES)]
    for vendor in dict.fromkeys(read_text(path / "vendor") for path in gpus):
        if vendor not in vendors:
            continue
        name, kind, build, is_built, variable = vendors[vendor]
        if not is_built:
            yield f"{name} GPU: PyTorch {torch.__version__} is built without {build}"
        elif not devices(kind):
            reason = f"{variable} hides it" if variable in os.environ else "PyTorch cannot use its driver"
            yield f"{name} GPU: {reason}"


def _gpu_kinds(tried: bool | None = None) -> list[str]:
    return [name for name, kind in KINDS.items() if name != "cpu" and tried in (None, kind.tried)]


def _module(device: str | torch.device) -> Any:
    """Return PyTorch's module for a kind of GPU."""
    import torch

    return getattr(torch, kind_of(device))
