"""System metrics around timed calls, under MLflow's own names, by numbers worked out by hand."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from types import SimpleNamespace

import pytest
from mlflow.system_metrics.metrics import gpu_monitor
from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.measure.disturbances import CpuReading
from llmtrack.measure.gauges import NvmlGauge
from llmtrack.measure.system_metrics import MAX_POINTS, MIN_POINT_S, SystemReading, system_reader, system_steps
from llmtrack.measure.timing import Arm, requests_for, time_arms
from llmtrack.spec.task import GenerateTask, RepeatPolicy
from tests.measure.nvml import ScriptedNvml

CARD = {
    "nvmlDeviceGetName": "NVIDIA H100",
    "nvmlDeviceGetIndex": 0,
    "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=20e9, total=80e9),
    "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97),
    "nvmlDeviceGetPowerUsage": 350_000,
    "nvmlDeviceGetEnforcedPowerLimit": 700_000,
}


def reading(at: float, busy: float, **values: float) -> SystemReading:
    """A machine of two CPUs."""
    return SystemReading(at, CpuReading(busy, busy, 2 * at), values)


def call(at: float, seconds: float, busy: float, **values: float):
    return reading(at, 0.0), reading(at + seconds, busy * seconds, **values)


def test_names_equal_those_of_mlflows_monitors(monkeypatch):
    monitor = CPUMonitor()
    monitor.collect_metrics()
    names = set(monitor._metrics)
    assert set(system_reader(None)().values) | {"cpu_utilization_percentage"} == names

    nvml = ScriptedNvml(**CARD)
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    monkeypatch.setattr(gpu_monitor, "pynvml", nvml, raising=False)
    nvml.NVMLError = KeyError
    card = object.__new__(gpu_monitor.GPUMonitor)
    card._metrics, card.gpu_handles = defaultdict(list), ["handle"]
    card.collect_metrics()
    assert NvmlGauge(nvml, "handle").usage() == {name: values[0] for name, values in card._metrics.items()}


def test_unsupported_values_are_absent_and_the_index_is_the_drivers():
    assert NvmlGauge(ScriptedNvml(nvmlDeviceGetName="K80"), "handle").usage() == {}
    third = ScriptedNvml(**{**CARD, "nvmlDeviceGetIndex": 2, "nvmlDeviceGetEnforcedPowerLimit": 0})
    assert set(NvmlGauge(third, "handle").usage()) == {
        "gpu_2_memory_usage_percentage",
        "gpu_2_memory_usage_megabytes",
        "gpu_2_utilization_percentage",
        "gpu_2_power_usage_watts",
    }


def test_a_point_has_the_cpu_use_during_calls_and_the_state_after_them():
    # 1.5 of 2 CPUs in the first second, both in the second.
    first, second = system_steps([call(10, 1, 1.5, gpu_0_x=1.0), call(20, 1, 2.0, gpu_0_x=4.0)])
    assert (first.step, first.at) == (0, 11)
    assert first.values == {"system/cpu_utilization_percentage": 75.0, "system/gpu_0_x": 1.0}
    assert (second.step, second.at) == (1, 21)
    assert second.values == {"system/cpu_utilization_percentage": 100.0, "system/gpu_0_x": 4.0}


def test_short_calls_share_a_point():
    (point,) = system_steps([call(number, 0.2, number % 2, used=number) for number in range(4)])
    assert point.at == 3.2
    assert point.values == {"system/cpu_utilization_percentage": 25.0, "system/used": 1.5}


@pytest.mark.parametrize("calls", [0, 1, MAX_POINTS, MAX_POINTS + 1, 1000])
@pytest.mark.parametrize("seconds", [0.0, 0.001, MIN_POINT_S, 60.0])
def test_the_number_of_points_is_bounded(calls, seconds):
    points = system_steps([call(10 * number, seconds, 1.0, used=1.0) for number in range(calls)])
    assert len(points) <= min(MAX_POINTS, calls)
    assert [point.step for point in points] == list(range(len(points)))
    assert bool(points) is bool(calls)
    assert all(point.values["system/used"] == 1.0 for point in points)


def test_the_machine_is_not_read_inside_a_timed_call():
    clock = FakeClock()
    engine = ScriptedEngine(clock, Script(0.030, 0.005))
    calls: list[str] = []
    generate = engine.generate

    def slow_reading() -> SystemReading:
        calls.append("read")
        clock.now += 100.0
        return reading(time.time(), 0.0)

    def recording(*args, **kwargs):
        calls.append("generate")
        return generate(*args, **kwargs)

    engine.generate = recording
    task = GenerateTask(("hello",), max_new_tokens=5)
    arm = Arm(requests_for(task, ((1, 2, 3),)), RepeatPolicy(warmup=1, min_repeats=3, max_repeats=3, min_seconds=0))
    ((_, timing),) = time_arms(engine, {"": arm}, clock, system=slow_reading)
    assert calls == ["generate", *["read", "generate", "read"] * 3]
    assert timing.samples["total_latency_s"] == pytest.approx([0.050] * 3)
    assert len(timing.around) == 3


def test_a_failed_reading_loses_the_system_metrics_only():
    clock = FakeClock()

    def broken() -> SystemReading:
        raise RuntimeError("no permission")

    task = GenerateTask(("hello",), max_new_tokens=5)
    arm = Arm(requests_for(task, ((1, 2, 3),)), RepeatPolicy(min_repeats=2, max_repeats=2))
    ((_, timing),) = time_arms(ScriptedEngine(clock, Script(0.030, 0.005)), {"": arm}, clock, system=broken)
    assert (timing.around, len(timing.samples["total_latency_s"])) == ((), 2)
    assert any("the state of the machine is missing: no permission" in warning for warning in timing.warnings)
