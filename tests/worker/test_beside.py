"""Failing side measurements never discard a result; they are listed as missing."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import ScenarioError
from llmtrack.measure import ceilings
from llmtrack.measure.ceilings import buffer_bytes
from llmtrack.measure.memory import available_bytes, free_memory
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

MIB = 2**20


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
@pytest.mark.usefixtures("_known_bandwidth")
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
@pytest.mark.usefixtures("_known_bandwidth")
def test_doubtful_ceilings_give_no_shares(monkeypatch, doubt):
    monkeypatch.setattr(ceilings, "doubts", lambda device: doubt)
    outcome = measure(generating("one"))
    scoring = scoring_roofline(ScriptedEngine(FakeClock(), Script(1, 1)).info, [(4, 4)], 1.0, Roof(1e9, 1e12, doubt))
    for metrics, facts, stage in ((outcome.metrics, outcome.facts, "decode"), (*scoring, "score")):
        told = {name for name in (*metrics, *facts) if name.endswith(SHARES)}
        assert bool(told) is not bool(doubt)
        assert metrics["copy_bandwidth_gb_per_s"] > 0, "it is told, and marked"
        assert facts.get("ceilings_in_doubt", "") == doubt
        assert f"{stage}_mib" in metrics, "what a stage moves depends on no ceiling"


@pytest.mark.parametrize("method", ["reset_peak_memory", "peak_memory_bytes"])
@pytest.mark.parametrize("scenario", [generating("one"), scored("ppl")], ids=["timed", "scored"])
@pytest.mark.usefixtures("_known_bandwidth")
def test_a_result_survives_an_unknown_peak_memory(method, scenario):
    outcome = measure(scenario, **{method: broken})
    assert isinstance(outcome, Measurement), outcome
    assert outcome.metrics.get("tokens_per_sec", outcome.metrics.get("perplexity")) > 0
    assert "peak_memory_mib" not in outcome.metrics, "of a peak that was not reset nothing is known either"
    assert "the peak memory is missing: no such thing here" in outcome.warnings


@pytest.mark.usefixtures("_known_bandwidth")
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


@pytest.mark.usefixtures("_known_bandwidth")
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
    for what in (
        "explanation of the loss",
        "FLOP count",
        "sample",
        "load of the machine",
        "tracked checkpoint",
    ):
        assert any(f"{what}" in w and "is missing" in w for w in outcome.warnings), what


def test_probe_buffers_shrink_with_the_free_memory():
    assert buffer_bytes(10_000 * MIB, 256 * MIB) == 256 * MIB
    assert buffer_bytes(800 * MIB, 256 * MIB) == 100 * MIB
    assert buffer_bytes(512 * MIB, 256 * MIB) == 64 * MIB
    with pytest.raises(ScenarioError, match="only 511 MiB are free"):
        buffer_bytes(511 * MIB, 256 * MIB)


def test_the_probe_retries_with_smaller_buffers(monkeypatch):
    requests = []

    def refuse(device, size):
        requests.append(size // MIB)
        if size > 100 * MIB:
            raise RuntimeError("can't allocate memory")
        return 7.0

    monkeypatch.setattr(ceilings, "free_memory", lambda device: 100_000 * MIB)
    monkeypatch.setattr(ceilings, "last_caches_bytes", lambda: 100 * MIB)
    monkeypatch.setattr(ceilings, "_copy_rate", refuse)
    assert ceilings.measure_bandwidth("cpu") == 7.0
    assert requests == [256, 128, 64]
    monkeypatch.setattr(ceilings, "_copy_rate", broken)
    with pytest.raises(ScenarioError, match="no memory for two buffers of 64 MiB"):
        ceilings.measure_bandwidth("cpu")


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
    said = process.stdout.read()
    assert process.wait(HANG_S) == 0, said
    assert said.startswith("Measurement False"), said
    assert "the copy bandwidth is missing: " in said


@pytest.mark.slow(1)
@pytest.mark.skipif(sys.platform == "darwin", reason="macOS knows no limit of the address space")
@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_process_limit_bounds_the_free_memory(limit):
    code = f"""
import resource
from llmtrack.measure.memory import free_memory
from llmtrack.measure import memory
used = memory.psutil.Process().memory_info()
taken = used.vms if "{limit}" == "RLIMIT_AS" else used.data
resource.setrlimit(resource.{limit}, (taken + 100 * 2**20, resource.RLIM_INFINITY))
print(free_memory("cpu") // 2**20)
"""
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=HANG_S)
    assert 80 < int(process.stdout) <= 100, process.stdout + process.stderr


def test_free_memory_is_bounded_by_the_tightest_limit(monkeypatch, tmp_path):
    from llmtrack.measure import memory

    groups, own = tmp_path / "sys/fs/cgroup", tmp_path / "proc/self/cgroup"
    own.parent.mkdir(parents=True)
    inner = groups / "outer" / "inner"
    inner.mkdir(parents=True)
    for folder, limit, used in ((inner, "max", 10), (inner.parent, 500, 300)):
        (folder / "memory.max").write_text(f"{limit}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text("anon 100\ninactive_file 50\n")
    own.write_text("0::/outer/inner\n")
    monkeypatch.setattr(memory, "ROOT", tmp_path)
    assert available_bytes() == free_memory("cpu") == 500 - 300 + 50
    first = groups / "memory" / "docker" / "a"
    first.mkdir(parents=True)
    (first / "memory.limit_in_bytes").write_text("400\n")
    (first / "memory.usage_in_bytes").write_text("390\n")
    (first / "memory.stat").write_text("inactive_file 1\ntotal_inactive_file 7\n")
    own.write_text("11:cpu,cpuacct:/x\n4:memory:/docker/a\n0::/outer/inner\n")
    assert available_bytes() == 400 - 390 + 7
    own.unlink()
    assert available_bytes() > 500
