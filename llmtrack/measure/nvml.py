"""Counters of an NVIDIA card through NVML (package nvidia-ml-py, if installed)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from llmtrack.measure.gauge import GaugeReading
from llmtrack.measure.gpus import card_of, other_pids, torch_uuid

# Constants of nvml.h: clock event reasons, and perf policy types of violation counters.
REASONS = {
    0x04: "its power cap",
    0x08: "its hardware's protection",
    0x20: "heat",
    0x40: "heat",
    0x80: "its power supply (brake)",
}
VIOLATIONS = {0: "its power cap", 1: "heat", 3: "the limit of its board", 5: "its reliability limit"}
_CLOCK_SM, _TEMPERATURE_GPU = 1, 0

PERIOD_S = 0.1
"""Update period of the energy counter in seconds, as observed on an H200."""


def open_card(device: str) -> NvmlGauge | None:
    """Return the gauge of a torch device's card, or None without NVML or the card."""
    try:
        import pynvml

        pynvml.nvmlInit()
        own = torch_uuid(device)
        card = card_of(device, own)
        uuid = card.uuid if card else f"GPU-{own}" if own and not own.startswith(("GPU-", "MIG-")) else own
        if uuid is None:
            return None
        handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
        # On a MIG card the counters cover all instances.
        return NvmlGauge(pynvml, handle, whole=not (card and card.instances))
    except Exception:  # no package, no driver, no permission
        return None


class NvmlGauge:
    """Reads the counters of one card.

    Args:
        nvml: the module `pynvml` or a substitute.
        handle: NVML handle of the card.
        whole: whether this process computes on the whole card; on a MIG instance, energy is unknown.
    """

    period_s = PERIOD_S

    def __init__(self, nvml: Any, handle: Any, whole: bool = True) -> None:
        self._nvml, self._handle, self._whole = nvml, handle, whole
        name = self._get("nvmlDeviceGetName")
        self.name = f"NVML, {name.decode() if isinstance(name, bytes) else name or 'a GPU'}"

    def read(self) -> GaugeReading:
        """Read the counters; unsupported ones are left out."""
        energy = self._get("nvmlDeviceGetTotalEnergyConsumption") if self._whole else None
        at = time.perf_counter()
        clock = self._get("nvmlDeviceGetClockInfo", _CLOCK_SM)
        heat = self._get("nvmlDeviceGetTemperature", _TEMPERATURE_GPU)
        bits = self._get("nvmlDeviceGetCurrentClocksEventReasons")
        if bits is None:  # older name
            bits = self._get("nvmlDeviceGetCurrentClocksThrottleReasons")
        slowed: dict[str, float] = {}
        for kind, cause in VIOLATIONS.items():
            if (status := self._get("nvmlDeviceGetViolationStatus", kind)) is not None:
                slowed[cause] = status.violationTime / 1e9
        processes = self._get("nvmlDeviceGetComputeRunningProcesses") or ()
        return GaugeReading(
            at=at,
            energy_j=None if energy is None else energy / 1000,
            clock_mhz=clock,
            temperature_c=heat,
            slowed_s=slowed,
            reasons=frozenset(cause for bit, cause in REASONS.items() if (bits or 0) & bit),
            others=other_pids(int(process.pid) for process in processes),
        )

    def usage(self) -> dict[str, float]:
        """Return the card's memory, utilization and power by MLflow's names; unsupported ones are left out."""
        memory, busy = self._get("nvmlDeviceGetMemoryInfo"), self._get("nvmlDeviceGetUtilizationRates")
        power, limit = self._get("nvmlDeviceGetPowerUsage"), self._get("nvmlDeviceGetEnforcedPowerLimit")
        values: dict[str, float] = {}
        if memory is not None:
            values |= {"memory_usage_percentage": 100 * memory.used / memory.total}
            values |= {"memory_usage_megabytes": memory.used / 1e6}
        if busy is not None:
            values["utilization_percentage"] = busy.gpu
        if power is not None:
            values["power_usage_watts"] = power / 1000
        if power is not None and limit:
            values["power_usage_percentage"] = 100 * power / limit
        index = self._get("nvmlDeviceGetIndex") or 0
        return {f"gpu_{index}_{name}": value for name, value in values.items()}

    def _get(self, name: str, *more: int) -> Any:
        """Call an NVML function; return None if the library or the card does not support it."""
        ask: Callable[..., Any] | None = getattr(self._nvml, name, None)
        try:
            return ask(self._handle, *more) if ask else None
        except Exception:  # NVMLError_NotSupported and its kin
            return None
