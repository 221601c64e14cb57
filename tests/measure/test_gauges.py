"""Device counters and the energy of calls, by numbers worked out by hand."""

from __future__ import annotations

import os
import sys

import pytest

from llmtrack.measure import gauges
from llmtrack.measure.gauges import CpuGauge, GaugeReading, NvmlGauge, energy_of
from llmtrack.worker.device_metrics import device_warnings
from tests.measure.nvml import ScriptedNvml, processes, violations

QUOTA = "the CPU quota of its control group"


def write(root, **files):
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")


def test_all_nvml_counters_are_read():
    card = NvmlGauge(
        ScriptedNvml(
            nvmlDeviceGetName=b"NVIDIA H100",
            nvmlDeviceGetTotalEnergyConsumption=2_500_000,
            nvmlDeviceGetClockInfo={1: 1980},
            nvmlDeviceGetTemperature={0: 61},
            nvmlDeviceGetCurrentClocksEventReasons=0x04 | 0x40 | 0x01,
            nvmlDeviceGetViolationStatus=violations(power=3 * 10**9, thermal=10**8),
            nvmlDeviceGetComputeRunningProcesses=processes(os.getpid(), 77),
        ),
        "handle",
    )
    reading = card.read()
    assert card.name == "NVML, NVIDIA H100"
    assert (reading.energy_j, reading.clock_mhz, reading.temperature_c) == (2500, 1980, 61)
    assert reading.reasons == {"its power cap", "heat"}, "idling is not throttling"
    assert reading.slowed_s == {"its power cap": 3.0, "heat": 0.1}
    assert reading.others == {77}


def test_counters_unsupported_by_a_card_or_driver_are_absent():
    old = ScriptedNvml(nvmlDeviceGetName="Tesla K80", nvmlDeviceGetCurrentClocksThrottleReasons=0x20)
    reading = NvmlGauge(old, "handle").read()
    assert reading.reasons == {"heat"}
    assert (reading.energy_j, reading.clock_mhz, reading.temperature_c) == (None, None, None)
    assert (reading.slowed_s, reading.others) == ({}, frozenset())


def test_the_energy_of_a_mig_instance_is_unknown():
    card = ScriptedNvml(nvmlDeviceGetTotalEnergyConsumption=1000)
    assert NvmlGauge(card, "handle", whole_card=False).read().energy_j is None


def test_without_package_or_driver_there_is_no_gauge(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gauges.open_card("cuda:0") is None


def test_all_linux_cpu_counters_are_read(tmp_path):
    rapl, cpus = "sys/class/powercap/intel-rapl", "sys/devices/system/cpu"
    write(
        tmp_path,
        **{
            f"{rapl}:0/name": "package-0",
            f"{rapl}:0/energy_uj": 900,
            f"{rapl}:0/max_energy_range_uj": 1000,
            f"{rapl}:0:0/name": "core",
            f"{rapl}:0:0/energy_uj": 5,
            f"{rapl}:0:1/name": "dram",
            f"{rapl}:0:1/energy_uj": 10,
            f"{rapl}:0:1/max_energy_range_uj": 1000,
            f"{rapl}:1/name": "psys",
            f"{rapl}:1/energy_uj": 5,
            f"{cpus}/cpu0/cpufreq/scaling_cur_freq": 800_000,
            f"{cpus}/cpu1/cpufreq/scaling_cur_freq": 3_000_000,
            f"{cpus}/cpu0/thermal_throttle/core_throttle_count": 2,
            f"{cpus}/cpu1/thermal_throttle/package_throttle_count": 3,
            "proc/self/cgroup": "0::/box/inner",
            "sys/fs/cgroup/box/cpu.stat": "usage_usec 5\nthrottled_usec 1500000",
            "sys/fs/cgroup/box/inner/cpu.stat": "usage_usec 5\nthrottled_usec 0",
        },
    )
    gauge = CpuGauge(tmp_path)
    assert gauge.name == "RAPL, package-0 and dram"
    first = gauge.read()
    assert (first.clock_mhz, first.slowed_times, first.slowed_s) == (3000, {"heat": 5}, {QUOTA: 1.5})
    # The package went from 900 over its limit of 1,000 to 50: 150; memory from 10 to 30: 20 microjoules.
    write(tmp_path, **{f"{rapl}:0/energy_uj": 50, f"{rapl}:0:1/energy_uj": 30})
    assert gauge.read().energy_j - first.energy_j == pytest.approx(170e-6)


RAPL = "sys/class/powercap/intel-rapl"


def show(root, **microjoules):
    """Let zones show counters; `z0_1` is `intel-rapl:0:1`."""
    for zone, counter in microjoules.items():
        write(root, **{f"{RAPL}:{zone[1:].replace('_', ':')}/energy_uj": counter})


def rapl(root, limit=262_143_328_850, **names):
    for zone, name in names.items():
        folder = f"{RAPL}:{zone[1:].replace('_', ':')}"
        write(root, **{f"{folder}/name": name})
        if limit is not None:
            write(root, **{f"{folder}/max_energy_range_uj": limit})


DIES = {"z0": "package-0-die-0", "z0_0": "dram", "z1": "package-0-die-1", "z1_0": "dram"}


def test_two_zones_of_one_counter_count_once(tmp_path):
    rapl(tmp_path, **DIES)
    show(tmp_path, z0=7_000_000, z0_0=500, z1=7_000_000, z1_0=500)
    gauge = CpuGauge(tmp_path)
    assert gauge.name == "RAPL, package-0-die-0 and dram"
    first = gauge.read()
    show(tmp_path, z0=57_000_000, z0_0=8_000_500, z1=57_000_000, z1_0=8_000_500)
    assert gauge.read().energy_j - first.energy_j == pytest.approx(50 + 8)
    # Both wrap at their limit.
    show(tmp_path, z0=1_000_000, z0_0=8_000_500, z1=1_000_000, z1_0=8_000_500)
    assert gauge.read().energy_j - first.energy_j == pytest.approx(262_143.32885 + 1 - 7 + 8)


@pytest.mark.parametrize("begin", [7_000_000, 9_000_000], ids=["equal at first", "different"])
def test_different_counters_are_summed(tmp_path, begin):
    rapl(tmp_path, z0="package-0-die-0", z1="package-0-die-1")
    show(tmp_path, z0=7_000_000, z1=begin)
    gauge = CpuGauge(tmp_path)
    first = gauge.read()
    show(tmp_path, z0=37_000_000, z1=begin + 20_000_000)
    assert gauge.read().energy_j - first.energy_j == pytest.approx(30 + 20)
    show(tmp_path, z0=38_000_000, z1=begin + 22_000_000)
    assert gauge.read().energy_j - first.energy_j == pytest.approx(31 + 22)


@pytest.mark.parametrize("limit", [None, 0, "none"])
def test_energy_across_a_wrap_at_an_unknown_limit_is_unknown(tmp_path, limit):
    rapl(tmp_path, limit, z0="package-0")
    show(tmp_path, z0=262_143_000_000)
    gauge = CpuGauge(tmp_path)
    first = gauge.read()
    assert (first.energy_j, first.energy_unknown) == (0, "")
    show(tmp_path, z0=50_000_000)
    wrapped = gauge.read()
    assert wrapped.energy_j is None
    assert energy_of([(first, wrapped)], 0.001) is None
    (warning,), temporary = device_warnings("cpu", [(first, wrapped)])
    assert warning.startswith("energy is unknown: the counter of package-0 began anew, and where it does (")
    assert not temporary
    # Afterwards it is known.
    before = gauge.read()
    show(tmp_path, z0=80_000_000)
    assert gauge.read().energy_j - before.energy_j == pytest.approx(30)


def test_a_vanished_counter_is_reported(tmp_path):
    rapl(tmp_path, z0="package-0")
    show(tmp_path, z0=5)
    gauge = CpuGauge(tmp_path)
    (tmp_path / f"{RAPL}:0/energy_uj").unlink()
    assert gauge.read().energy_unknown.endswith("energy_uj cannot be read any more")


def test_quota_of_control_groups_version_1_is_in_nanoseconds(tmp_path):
    write(
        tmp_path,
        **{
            "proc/self/cgroup": "4:cpu,cpuacct:/box",
            "sys/fs/cgroup/cpu,cpuacct/box/cpu.stat": "nr_throttled 3\nthrottled_time 2500000000",
        },
    )
    assert CpuGauge(tmp_path).read().slowed_s == {QUOTA: 2.5}


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may read everything")
def test_unreadable_counters_are_absent(tmp_path):
    write(
        tmp_path,
        **{"sys/class/powercap/intel-rapl:0/name": "package-0", "sys/class/powercap/intel-rapl:0/energy_uj": 1},
    )
    (tmp_path / "sys/class/powercap/intel-rapl:0/energy_uj").chmod(0)
    assert CpuGauge(tmp_path).read().energy_j is None


def test_a_machine_without_counters(tmp_path):
    reading = CpuGauge(tmp_path).read()
    assert (reading.energy_j, reading.clock_mhz, reading.slowed_s, reading.slowed_times) == (None, None, {}, {})


def test_energy_of_two_calls():
    # 300 J in 2 s and 330 J in 2 s, of a counter that moves every 0.1 s.
    calls = [(GaugeReading(0, 1000), GaugeReading(2, 1300)), (GaugeReading(5, 1800), GaugeReading(7, 2130))]
    energy = energy_of(calls, 0.1)
    assert (energy.joules, energy.seconds, energy.watts) == (630, 4, 157.5)
    assert energy.idle_share(63) == pytest.approx(0.4)
    assert energy.idle_share(1000) == 1


@pytest.mark.parametrize(("seconds", "calls", "reported"), [
    (2.0, 1, True),    # 0.1 / 2: 5 %
    (1.9, 1, False),
    (1.0, 4, True),    # 0.1 / (1 x 2): 5 %
    (0.9, 4, False),
    (0.1, 9, False),
])  # fmt: skip
def test_energy_is_reported_if_the_counter_is_fine_enough(seconds, calls, reported):
    assert (energy_of([(GaugeReading(0, 0), GaugeReading(seconds, 100))] * calls, 0.1) is not None) is reported


@pytest.mark.parametrize("calls", [
    [],
    [(GaugeReading(0), GaugeReading(9))],
    [(GaugeReading(0, 1), GaugeReading(9, 2)), (GaugeReading(10, 2), GaugeReading(19))],
    [(GaugeReading(0, 5), GaugeReading(9, 5))],
])  # fmt: skip
def test_incomplete_or_constant_readings_give_no_energy(calls):
    assert energy_of(calls, 0.1) is None
