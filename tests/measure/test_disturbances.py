"""Throttling and other programs, from counter readings, by numbers worked out by hand."""

from __future__ import annotations

import pytest

from llmtrack.measure import disturbances
from llmtrack.measure.disturbances import CpuReading, busy_warning, other_processes, throttle_causes
from llmtrack.measure.gauges import GaugeReading

QUOTA = "the CPU quota of its control group"


def held(name, seconds, **more):
    """A call of 10 s of which a cause took some."""
    return GaugeReading(0, slowed_s={name: 100.0}), GaugeReading(10, slowed_s={name: 100.0 + seconds}, **more)


@pytest.mark.parametrize(("calls", "device", "words", "passing"), [
    ([held("its power cap", 2.5)], "cuda:0",
     "the GPU was held back by its power cap for 25% of the time: its speed is that under this cap", False),
    ([held("heat", 1.0, temperature_c=88.0), held("heat", 2.0, temperature_c=91.0)], "cuda:0",
     "the GPU was held back by heat (up to 91 °C) for 15% of the time: cool it, and measure again", True),
    ([held(QUOTA, 5.0)], "cpu",
     f"the CPU was held back by {QUOTA} for 50% of the time: give it more CPU time, or fewer threads", True),
    ([(GaugeReading(0, slowed_times={"heat": 4}), GaugeReading(1, slowed_times={"heat": 6}))], "cpu",
     "the CPU was held back by heat 2 times: cool it, and measure again", True),
    ([(GaugeReading(0), GaugeReading(1, reasons=frozenset({"its power supply (brake)"}))), (GaugeReading(1), GaugeReading(2))], "cuda",
     "the GPU was held back by its power supply (brake) after 1 of 2 calls: measure again", True),
    ([(GaugeReading(0), GaugeReading(1, clock_mhz=1980.0)), (GaugeReading(1), GaugeReading(2, clock_mhz=1200.0))], "cuda:0",
     "the clock of the GPU moved between 1,200 and 1,980 MHz: warm up for longer, and measure again", True),
])  # fmt: skip
def test_the_cause_is_said_in_words(calls, device, words, passing):
    (cause,) = throttle_causes(calls, device)
    assert (cause.message, cause.temporary) == (words, passing)


@pytest.mark.parametrize("calls", [
    [],
    [(GaugeReading(0), GaugeReading(1))],
    [held("its power cap", 0.4)],
    [(GaugeReading(0, clock_mhz=500.0), GaugeReading(1, clock_mhz=1980.0)), (GaugeReading(1), GaugeReading(2, clock_mhz=1900.0))],
])  # fmt: skip
def test_a_device_that_ran_as_it_can_is_not_talked_about(calls):
    assert throttle_causes(calls, "cuda:0") == ()


def test_a_cause_that_a_counter_tells_is_said_once():
    before, after = held("its power cap", 5.0, reasons=frozenset({"its power cap"}))
    (cause,) = throttle_causes([(before, after)], "cuda:0")
    assert "50% of the time" in cause.message


def test_others_count_that_were_seen_at_any_reading():
    calls = [
        (GaugeReading(0), GaugeReading(1, others=frozenset({7}))),
        (GaugeReading(2, others=frozenset({8})), GaugeReading(3)),
    ]
    assert other_processes(calls) == {7, 8}


def test_time_that_the_host_took_is_told_from_programs(monkeypatch):
    monkeypatch.setattr(disturbances, "BUSY_SHARE", 0.1)
    # 20 CPU-seconds: 4 of others, of which 3 are steal.
    (words,) = busy_warning(CpuReading(0, 0, 0, 0), CpuReading(16, 12, 20, 3))
    assert words.startswith(
        "the machine was busy: its host gave 15% of its CPU time to other virtual machines (steal), and programs on it took 5%"
    )
    (words,) = busy_warning(CpuReading(0, 0, 0, 0), CpuReading(16, 12, 20, 1))
    assert words.startswith("the machine was busy: other programs took 20%")
