"""Failing side measurements never discard a result; they are listed as missing."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path

import pytest
import torch

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.measure import ceilings
from llmtrack.measure.roofline import Roof
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import QualityCheck, Scenario, Variant
from llmtrack.spec.task import PerplexityTask, TrainTask
from llmtrack.train.session import Session
from llmtrack.worker import device_metrics
from llmtrack.worker import generate as generation
from llmtrack.worker import train as training
from llmtrack.worker.device_metrics import scoring_roofline
from llmtrack.worker.measuring import EngineCache, measure_group
from tests.conftest import HANG_S
from tests.forking import Forked
from tests.run.scenarios import generating
from tests.run.scenarios import scoring as scored


def broken(*_arguments, **_settings):
    raise RuntimeError("no such\nthing here")


def measure(scenario, **replaced):
    clock = FakeClock()
    engine = ScriptedEngine(clock, Script(0.03, 0.005))
    for name, function in replaced.items():
        setattr(engine, name, function)
    events = []
    measure_group([scenario], EngineCache(lambda variant: engine), events.append, clock)
    return events[-1]


SIDES = {
    "copy bandwidth": (ceilings, "copy_bandwidth", "copy_bandwidth_gb_per_s"),
    "roofline": (generation, "generation_roofline", "decode_floor_ms"),
    "load of the machine": (generation, "read_cpu", None),
    "load of the machine, at the end": (generation, "busy_warning", None),
    "what held the device back": (generation, "device_warnings", None),
    "energy": (generation, "energy_figures", "joules_per_token"),
    "comparison with unpadded rows": (generation, "rows_differing", "rows_equal_unpadded"),
}


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.usefixtures("_known_ceilings")
def test_a_timing_survives_failing_side_measurements(monkeypatch, side):
    where, name, metric = SIDES[side]
    monkeypatch.setattr(where, name, broken)
    outcome = measure(generating("one", prompts=("abcd", "ab"), compare_unpadded=True))
    assert isinstance(outcome, Measurement), outcome
    assert outcome.metrics["tokens_per_sec"] > 0
    assert metric not in outcome.metrics
    assert [w for w in outcome.warnings if side.partition(",")[0] in w and "missing: no such thing here" in w]


SHARES = ("floor_ms", "floor_share", "flops_utilization", "bandwidth_utilization", "_bound")


@pytest.mark.parametrize("doubt", ["", "copy bandwidth: other programs took 40% of the CPU time"])
@pytest.mark.usefixtures("_known_ceilings")
def test_doubtful_ceilings_give_no_shares(monkeypatch, doubt):
    monkeypatch.setattr(ceilings, "doubts", lambda device, arithmetic: doubt)
    outcome = measure(generating("one"))
    scoring = scoring_roofline(ScriptedEngine(FakeClock(), Script(1, 1)).info, [(4, 4)], 1.0, Roof(1e9, 1e12, doubt))
    for metrics, facts, stage in ((outcome.metrics, outcome.facts, "decode"), (*scoring, "score")):
        names = {name for name in (*metrics, *facts) if name.endswith(SHARES)}
        assert bool(names) is not bool(doubt)
        assert metrics["copy_bandwidth_gb_per_s"] > 0, "it is told, and marked"
        assert facts.get("ceilings_in_doubt", "") == doubt
        assert f"{stage}_mib" in metrics, "what a stage moves depends on no ceiling"


@pytest.mark.parametrize("method", ["reset_peak_memory", "peak_memory_bytes"])
@pytest.mark.parametrize("scenario", [generating("one"), scored("ppl")], ids=["timed", "scored"])
@pytest.mark.usefixtures("_known_ceilings")
def test_a_result_survives_an_unknown_peak_memory(method, scenario):
    outcome = measure(scenario, **{method: broken})
    assert isinstance(outcome, Measurement), outcome
    assert outcome.metrics.get("tokens_per_sec", outcome.metrics.get("perplexity")) > 0
    assert "peak_memory_mib" not in outcome.metrics, "of a peak that was not reset nothing is known either"
    assert "the peak memory is missing: no such thing here" in outcome.warnings


@pytest.mark.usefixtures("_known_ceilings")
def test_a_timing_survives_a_failing_sample_text():
    outcome = measure(generating("one"), decode=broken)
    assert outcome.metrics["tokens_per_sec"] > 0
    assert outcome.sample_text is None
    assert "the sample text is missing: no such thing here" in outcome.warnings


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", ["read_cpu", "busy_warning"])
def test_a_score_survives_an_unknown_machine_load(monkeypatch, name):
    monkeypatch.setattr(device_metrics, name, broken)
    outcome = measure(scored("ppl"))
    assert outcome.metrics["perplexity"] > 1
    assert any("the load of the machine is missing" in warning for warning in outcome.warnings)


@pytest.mark.usefixtures("_known_ceilings")
def test_a_timing_survives_a_failing_score():
    check = QualityCheck(PerplexityTask(corpus="builtin", max_length=8), Variant("reference"))
    outcome = measure(dataclasses.replace(generating("one"), quality=check), score=broken)
    assert outcome.metrics["tokens_per_sec"] > 0
    assert "perplexity" not in outcome.metrics


@pytest.mark.slow(1)
def test_a_training_survives_failing_side_measurements(monkeypatch, tmp_path):
    for name in ("explain", "flops_per_token", "peak_flops", "prompt"):
        monkeypatch.setattr(Session, name, broken)
    for name in ("read_cpu", "busy_warning"):
        monkeypatch.setattr(device_metrics, name, broken)
    monkeypatch.setattr(training.checkpoint, "model_files", broken)
    task = TrainTask(
        corpus="builtin", steps=2, eval_every=1, sequence_length=16, batch_size=2, warmup_steps=1,
        validation_tokens=50, sample_tokens=3, explain=True, output=str(tmp_path),
    )  # fmt: skip
    events = []
    scenario = Scenario("t", Variant("synthetic:tiny", device="cpu"), task)
    training.measure_training(scenario, task, events.append, time.perf_counter)
    outcome = events[-1]
    assert isinstance(outcome, Measurement), outcome
    assert outcome.metrics["steps_done"] == 2
    for title in ("explanation of the loss", "FLOP count", "sample", "load of the machine", "tracked checkpoint"):
        assert any(f"{title}" in w and "is missing" in w for w in outcome.warnings), title


def measure_with_little_room():
    import resource

    torch.ones(1) @ torch.ones(1)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 100 * 2**20, resource.RLIM_INFINITY))
    outcome = measure(generating("one"))
    print(type(outcome).__name__, "copy_bandwidth_gb_per_s" in outcome.metrics, *outcome.warnings)


@pytest.mark.slow(1)
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS knows no limit of the address space")
def test_an_address_space_limit_costs_only_the_probe(tmp_path):
    """In another process, whose limit leaves no room for buffers once torch is loaded."""
    environ = os.environ | {"LLMTRACK_CACHE": str(tmp_path)}  # a bandwidth that was kept would do
    process = Forked(measure_with_little_room, environment=environ)
    output = process.stdout.read()
    assert process.wait(HANG_S) == 0, output
    assert output.startswith("Measurement False"), output
    assert "the copy bandwidth is missing: " in output
