"""Throttling and other programs, from counter readings, by numbers worked out by hand."""

from __future__ import annotations

import pytest

from llmtrack.measure.disturbances import (
    CpuReading,
    busy_warning,
    other_processes,
    others_share,
    read_cpu,
    throttle_causes,
)
from llmtrack.measure.gauges import GaugeReading

QUOTA = "the CPU quota of its control group"


@pytest.fixture(autouse=True)
def quiet_machine():
    """Override the fixture that hides other programs: they are tested here."""


def slowed(name, seconds, **counters):
    """A call of 10 s that a cause slowed for some of them."""
    return GaugeReading(0, slowed_s={name: 100.0}), GaugeReading(10, slowed_s={name: 100.0 + seconds}, **counters)


@pytest.mark.parametrize(("calls", "device", "message", "temporary"), [
    ([slowed("its power cap", 2.5)], "cuda:0",
     "the GPU was held back by its power cap for 25% of the time: its speed is that under this cap", False),
    ([slowed("heat", 1.0, temperature_c=88.0), slowed("heat", 2.0, temperature_c=91.0)], "cuda:0",
     "the GPU was held back by heat (up to 91 °C) for 15% of the time: cool it, and measure again", True),
    ([slowed(QUOTA, 5.0)], "cpu",
     f"the CPU was held back by {QUOTA} for 50% of the time: give it more CPU time, or fewer threads", True),
    ([(GaugeReading(0, slowed_times={"heat": 4}), GaugeReading(1, slowed_times={"heat": 6}))], "cpu",
     "the CPU was held back by heat 2 times: cool it, and measure again", True),
    ([(GaugeReading(0), GaugeReading(1, reasons=frozenset({"its power supply (brake)"}))), (GaugeReading(1), GaugeReading(2))], "cuda",
     "the GPU was held back by its power supply (brake) after 1 of 2 calls: measure again", True),
    ([(GaugeReading(0), GaugeReading(1, clock_mhz=1980.0)), (GaugeReading(1), GaugeReading(2, clock_mhz=1200.0))], "cuda:0",
     "the clock of the GPU moved between 1,200 and 1,980 MHz: warm up for longer, and measure again", True),
])  # fmt: skip
def test_causes_name_remedy_and_duration(calls, device, message, temporary):
    (cause,) = throttle_causes(calls, device)
    assert (cause.message, cause.temporary) == (message, temporary)


@pytest.mark.parametrize("calls", [
    [],
    [(GaugeReading(0), GaugeReading(1))],
    [slowed("its power cap", 0.4)],
    [(GaugeReading(0, clock_mhz=500.0), GaugeReading(1, clock_mhz=1980.0)), (GaugeReading(1), GaugeReading(2, clock_mhz=1900.0))],
])  # fmt: skip
def test_without_throttling_there_is_no_cause(calls):
    assert throttle_causes(calls, "cuda:0") == ()


def test_a_cause_with_a_counter_and_a_flag_is_reported_once():
    before, after = slowed("its power cap", 5.0, reasons=frozenset({"its power cap"}))
    (cause,) = throttle_causes([(before, after)], "cuda:0")
    assert "50% of the time" in cause.message


def test_other_processes_of_any_reading_count():
    calls = [
        (GaugeReading(0), GaugeReading(1, others=frozenset({7}))),
        (GaugeReading(2, others=frozenset({8})), GaugeReading(3)),
    ]
    assert other_processes(calls) == {7, 8}


def test_share_of_others():
    # 10 s of two cores: 20 s available, 16 used, 12 of them by this process: others took 4 of 20
    before, after = CpuReading(100, 50, 1000), CpuReading(116, 62, 1020)
    assert others_share(before, after) == pytest.approx(0.2)
    assert "other programs took 20%" in busy_warning(before, after)[0]
    assert busy_warning(before, CpuReading(113, 62, 1020)) == ()
    assert others_share(before, before) == 0
    assert others_share(CpuReading(0, 0, 0), CpuReading(0.03, 0.0, 0.02)) == 1.0
    # 0.2 of 0.4 s of CPU time: too short for the counters to tell.
    assert busy_warning(before, CpuReading(100.2, 50, 1000.4)) == ()
    # 0.08 of 0.6 s are 13 %, but four readings in ticks of 10 ms may make 0.04 s of them.
    assert busy_warning(before, CpuReading(100.08, 50, 1000.6)) == ()
    assert "took 20%" in busy_warning(before, CpuReading(100.12, 50, 1000.6))[0]


def test_the_real_counters_advance():
    before = read_cpu()
    sum(value * value for value in range(300_000))
    after = read_cpu()
    assert after.this_process >= before.this_process
    assert after.available > before.available


def test_steal_time_is_distinguished_from_other_programs():
    # 20 CPU-seconds: 4 of others, of which 3 are steal.
    (message,) = busy_warning(CpuReading(0, 0, 0, 0), CpuReading(16, 12, 20, 3))
    assert message.startswith(
        "the machine was busy: its host gave 15% of its CPU time to other virtual machines (steal), and programs on it took 5%"
    )
    (message,) = busy_warning(CpuReading(0, 0, 0, 0), CpuReading(16, 12, 20, 1))
    assert message.startswith("the machine was busy: other programs took 20%")
