"""Comparisons with peers: equal settings, and the small form of each."""

from __future__ import annotations

import importlib
import json
import runpy
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from benchmarks import __main__ as bench
from benchmarks import llama, lm_eval, optimum
from benchmarks.models import tiny
from benchmarks.peers import SCRIPTS, PeerError, Worker, environment, program, version
from benchmarks.results import Goal, load


@pytest.mark.slow(1)
def test_each_name_of_make_bench_is_a_benchmark():
    for name in bench.NAMES:
        module = importlib.import_module(f"benchmarks.{name}")
        assert {option.name for option in module.main.params} >= {"small", "file"}


@pytest.mark.parametrize("name", ["lm-eval", "optimum-benchmark"])
def test_a_peer_is_pinned_and_never_brings_its_own_pytorch(name):
    requirements = environment(name).requirements
    assert all("==" in requirement for requirement in requirements)
    assert not [requirement for requirement in requirements if requirement.startswith(("torch==", "nvidia-", "triton"))]
    assert version(name).startswith(f"{name} 0.")


def test_both_tools_get_the_same_settings():
    shape = optimum.Shape(128, 32, 5)
    settings = yaml.safe_load(optimum.configuration(Path("folder"), shape, 2, "pytorch", "process"))
    assert settings["scenario"]["input_shapes"] == {"batch_size": 1, "sequence_length": 128}
    assert settings["scenario"]["generate_kwargs"] == {"max_new_tokens": 32, "min_new_tokens": 32}
    assert (settings["backend"]["inter_op_num_threads"], settings["backend"]["intra_op_num_threads"]) == (2, 2)
    assert settings["backend"]["torch_dtype"] == "float32"
    assert (
        "torch_dtype"
        not in yaml.safe_load(optimum.configuration(Path("folder"), shape, 2, "onnxruntime", "inline"))["backend"]
    )


def test_a_tools_figures_are_medians_and_its_wall_time_is_per_measured_second():
    figures = optimum.figures_of([1.0, 2.0, 3.0], [100.0, 300.0, 200.0], [10.0, 30.0, 20.0], 12.0)
    assert figures == {
        "total latency": 2.0,
        "time to first token": 200.0,
        "inter-token latency": 20.0,
        "wall time": 12.0,
        "wall time per measured second": 2.0,
    }


def samples(**speeds: float) -> dict[str, dict[str, list[float]]]:
    return {
        name: {"tokens/s": [speed], "loss": [2.0], "MiB above the model": [speed / 10]}
        for name, speed in speeds.items()
    }


def test_scoring_goals_compare_with_the_float32_loop():
    measured = samples(plain=100.0, float32=120.0, bfloat16=150.0)
    rows = {
        (row.where.split(",")[0], row.figure): row
        for row in lm_eval.comparison_rows(measured, "text", ["plain"], Goal(most=0.5))
    }
    assert rows["float32", "tokens/s"].verdict == "met"
    assert rows["bfloat16", "tokens/s"].verdict == "missed"  # 1.5 of 1.7
    assert rows["float32", "loss"].verdict == "met"
    assert rows["float32", "MiB above the model"].verdict == "missed"
    assert ("bfloat16", "MiB above the model") not in rows


@pytest.mark.slow(1)
def test_llmtrack_and_the_loop_give_equal_losses():
    scorers, text = runpy.run_path(str(SCRIPTS / "score.py")), "The harbour wakes before the town does. " * 5
    sums = [scorers[who](str(tiny()), "float32", 64)(text) for who in ("plain", "ours")]
    assert sums[0][1] == sums[1][1] == 200
    assert sums[0][0] == pytest.approx(sums[1][0], rel=1e-6)


def test_a_worker_that_exits_reports_why(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import sys\nraise KeyError(sys.argv[1])\n")
    worker = Worker(program("plain"), script, ["nobody"])
    try:
        with pytest.raises(PeerError, match="nobody"):
            worker.ask("1")
    finally:
        worker.close()


def test_without_llama_bench_its_comparison_is_left_out_with_the_remedy(monkeypatch, tmp_path):
    monkeypatch.delenv(llama.BINARY, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = llama.measure(small=True, model=None)
    assert not findings.rows
    assert llama.BINARY in findings.left_out[0]


@pytest.mark.slow(45)
@pytest.mark.parametrize(
    ("name", "peer"), [("plain_loop", None), ("lm_eval", "lm-eval"), ("optimum", "optimum-benchmark")]
)
def test_the_small_form_fills_its_table(name, peer, tmp_path):
    if peer and not environment(peer).is_complete:
        pytest.skip(f"the environment of {peer} is not there: python -m benchmarks {name} makes it")
    module = importlib.import_module(f"benchmarks.{name}")
    done = CliRunner().invoke(module.main, ["--small", "--json", str(tmp_path / "made.json")], catch_exceptions=False)
    assert done.exit_code == 0
    result = load(tmp_path / "made.json")
    assert result.small
    assert result.findings.rows
    assert not result.findings.left_out
    assert json.loads((tmp_path / "made.json").read_text())["machine"]["cpu_threads"]
