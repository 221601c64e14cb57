"""Describe the measuring machine and installation as text facts, for tags and decisions."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from llmtrack.devices import (
    KINDS,
    devices,
    name_of,
    on_gpu,
    platform_facts,
    supports_bfloat16,
    unused_devices,
)
from llmtrack.host.machine import control_groups, read_text
from llmtrack.host.packages import installed_version
from llmtrack.measure.gpus import card_of, torch_uuid

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "accelerate",
    "numpy",
    "optimum",
    "optimum-onnx",
    "onnxruntime",
    "llama-cpp-python",
    "llama-cpp-py-sync",
)


def describe() -> dict[str, str]:
    """Return versions, thread counts, devices and their capabilities.

    Keys: `version.PACKAGE`, `threads`, `interop_threads`, `devices` (comma list), `bfloat16` (comma list of the kinds
    of device that support it), `cpu_quota` (CPUs' worth of time allowed by the control group) and `cpu_affinity`
    (numbers of the usable CPUs) if limited, with a GPU `gpu` (names in PyTorch's order; one name if all are alike),
    with CUDA or ROCm `gpu_uuids` (comma list), `gpu_driver` and `cuda` or `rocm`, and `unused_devices` (GPUs that
    `device=auto` does not use, with the reason).
    """
    import torch

    facts = {f"version.{name}": version for name in PACKAGES if (version := installed_version(name))}
    facts["threads"] = str(torch.get_num_threads())
    facts["interop_threads"] = str(torch.get_num_interop_threads())
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        if name in os.environ:
            facts[name.lower()] = os.environ[name]
    if (quota := cpu_quota()) is not None:
        facts["cpu_quota"] = f"{quota:g}"
    if affinity := cpu_affinity():
        facts["cpu_affinity"] = affinity
    available = [device for kind in KINDS for device in devices(kind)]
    facts["devices"] = ",".join(available)
    facts["bfloat16"] = ",".join(kind for kind in KINDS if supports_bfloat16(kind))
    if gpus := [device for device in available if on_gpu(device)]:
        facts |= _gpu_names(gpus)
    if cards := devices("cuda"):
        facts |= _gpu_cards(cards) | platform_facts()
    if unused := unused_devices():
        facts["unused_devices"] = "; ".join(unused)
    return facts


def cpu_quota(root: Path = Path("/")) -> float | None:
    """Return the CPUs' worth of time allowed by this process's control groups, or None if unlimited.

    A container with a quota still sees all CPUs of its host. The smallest limit of the group and its parents counts, by
    version 2 (`cpu.max`) or 1 (`cpu.cfs_quota_us`).

    Args:
        root: parent of `proc` and `sys`.
    """
    return min(_quotas(root), default=None)


def _quotas(root: Path) -> Iterator[float]:
    for version, group in control_groups("cpu", root):
        if version == 2:
            yield from _limit(*read_text(group / "cpu.max").split()[:2])
        else:
            yield from _limit(*(read_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period")))


def _limit(quota: str = "", period: str = "") -> Iterator[float]:
    if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
        yield round(int(quota) / int(period), 2)


def cpu_affinity() -> str:
    """Return the numbers of the CPUs that this process may use, such as `0-3,8`; empty if all."""
    if not hasattr(os, "sched_getaffinity"):
        return ""
    usable = sorted(os.sched_getaffinity(0))
    return "" if len(usable) == os.cpu_count() else ranges(usable)


def ranges(numbers: Iterable[int]) -> str:
    """Format sorted numbers, with consecutive ones as `first-last`."""
    groups = (
        [number for _, number in group] for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])
    )
    return ",".join(f"{group[0]}-{group[-1]}" if len(group) > 1 else str(group[0]) for group in groups)


def _gpu_names(gpus: Sequence[str]) -> dict[str, str]:
    names = [name_of(device) for device in gpus]
    return {
        "gpu": names[0] if len(set(names)) == 1 else ", ".join(names),
        "gpu_count": str(len(gpus)),
    }


def _gpu_cards(gpus: Iterable[str]) -> dict[str, str]:
    cards = [card_of(device, torch_uuid(device)) for device in gpus]
    drivers = {card.driver for card in cards if card}
    return {
        "gpu_uuids": ",".join(card.uuid if card else "unknown" for card in cards),
        "gpu_driver": ", ".join(sorted(drivers)) or "unknown",
    }
