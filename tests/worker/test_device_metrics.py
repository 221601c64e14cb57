"""Energy and throttling of a run, by a scripted gauge."""

from __future__ import annotations

import pytest

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.measure import gauges
from llmtrack.measure.gauges import GaugeReading
from llmtrack.spec.outcome import Measurement
from llmtrack.worker import device_metrics
from llmtrack.worker.measuring import EngineCache, measure_group
from tests.run.scenarios import generating, scoring

pytestmark = pytest.mark.usefixtures("_known_ceilings")


class ScriptedGauge:
    """A GPU of 100 W idle and 400 W busy, by an engine's clock, throttled as a test says."""

    name, period_s = "NVML, scripted", 1e-6

    def __init__(self, clock, held=0.0, broken=False):
        self.clock, self.held, self.broken, self.idle = clock, held, broken, 0.0

    def read(self):
        if self.broken:
            raise RuntimeError("no permission")
        now = self.clock()
        return GaugeReading(now + self.idle, 400 * now + 100 * self.idle, slowed_s={"heat": self.held * now})


@pytest.fixture
def run(monkeypatch):
    def run(scenario, **settings):
        clock = FakeClock()
        card = ScriptedGauge(clock, **settings)
        monkeypatch.setattr(gauges, "gauge_of", lambda device: card)
        monkeypatch.setattr(device_metrics.time, "sleep", lambda seconds: setattr(card, "idle", card.idle + seconds))
        device_metrics.idle_watts.cache_clear()
        events = []
        engine = ScriptedEngine(clock, Script(0.030, 0.005))
        measure_group([scenario], EngineCache(lambda variant: engine), events.append, clock)
        assert isinstance(events[-1], Measurement), events[-1]
        return events[-1]

    yield run
    device_metrics.idle_watts.cache_clear()


def test_joules_per_token_by_hand(run):
    # Two repeats of 50 ms and 5 tokens at 400 W: 40 J for 10 tokens, of which 100 W x 0.1 s are idle.
    outcome = run(generating("one"))
    assert outcome.metrics["joules_per_token"] == pytest.approx(4)
    assert outcome.metrics["power_w"] == pytest.approx(400)
    assert outcome.metrics["idle_power_w"] == pytest.approx(100)
    assert outcome.metrics["idle_energy_share"] == pytest.approx(0.25)
    assert outcome.facts["energy_source"] == "NVML, scripted"
    assert not outcome.disturbed


def test_throttling_is_a_warning_and_marks_the_run_as_disturbed(run):
    outcome = run(generating("one"), held=0.5)
    assert any("held back by heat for 50% of the time" in warning for warning in outcome.warnings)
    assert outcome.disturbed


def test_a_broken_gauge_costs_only_the_energy(run):
    outcome = run(generating("one"), broken=True)
    assert outcome.metrics["tokens_per_sec"] > 0
    assert outcome.metrics["peak_memory_mib"] > 0
    assert "joules_per_token" not in outcome.metrics
    assert any("the state of the device is missing: no permission" in warning for warning in outcome.warnings)


def test_a_score_has_its_own_energy(run):
    outcome = run(scoring("ppl"))
    assert "joules_per_token" not in outcome.metrics
    assert outcome.metrics["perplexity"] > 1
