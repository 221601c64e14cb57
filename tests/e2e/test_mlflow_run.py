"""Entry points by `mlflow run`, from a checkout and a working directory with spaces in their names.

What starts a program is seen here: parameters through a shell, workers, exit codes; what signals do, in tests/run/test_borders.py,
and that a run succeeds, in tests/test_packaging.py. No program can import what its side of the border has no business with. Each
run costs the imports of two or three programs, so what an entry point measures and reports is seen in test_entry_points.py.
"""

from __future__ import annotations

from functools import partial

import pytest

from llmtrack.run import main as entry
from llmtrack.run.executors.process import ProcessExecutor
from tests import wall
from tests.forking import ForkedWorker

pytestmark = pytest.mark.slow(25)

QUICK = {"max_new_tokens": 4, "min_repeats": 2, "min_seconds": 0, "max_seconds": 1}
# So many seconds each scenario takes: its calls vary by more than any number of repeats would settle.
TINY = {"model": "synthetic:tiny", **QUICK, "max_seconds": 0.05}

REPORT = {"table.csv", "table.md", "table.png", "reading.md", "plots"}


def study_of(tracked, experiment: str):
    (_, study), *others = tracked.runs(kind="study", experiment=experiment).iterrows()
    assert not others
    return study


def plots_of(runs, *names: str) -> set[str]:
    """Return the plots of a study, without the roofline, which is left out while other programs are busy."""
    shares = runs.filter(regex="_floor_share$").notna().any(axis=None)
    return {f"plots/{name}.png" for name in (*names, *(["roofline"] if shares else []))}


def test_prompt_lengths_from_a_git_url_measure_the_real_model_and_a_failing_scenario_is_a_failed_run(
    mlflow_run, tracked, checkout, smollm2_spec
):
    # A value with spaces reaches the experiment.
    done = mlflow_run(
        "prompt_length",
        uri=f"file://{checkout}",
        model=smollm2_spec,
        lengths="4, 8, 100000",
        **QUICK | {"max_new_tokens": 2, "max_seconds": 0.1},
    )
    assert done.returncode != 0, done.stdout + done.stderr
    assert f"Loaded: {smollm2_spec} | device=cpu | dtype=float32" in done.stdout
    assert "prompt_8" in done.stdout
    runs = tracked.runs().set_index("scenario")
    assert runs["status"].to_dict() == {"prompt_4": "FINISHED", "prompt_8": "FINISHED", "prompt_100000": "FAILED"}
    met = runs.loc[["prompt_4", "prompt_8"]]
    assert met["prompt_tokens"].to_dict() == {"prompt_4": 4, "prompt_8": 8}
    assert met["baseline"].to_dict() == {"prompt_4": True, "prompt_8": False}
    assert runs.loc["prompt_100000", "failure"] == "too_long"
    assert "exceed the context" in runs.loc["prompt_100000", "reason"]
    run = runs.loc["prompt_4"]
    assert run["model_id"] == smollm2_spec
    assert run["max_new_tokens"] == 2
    assert run["tokens_generated"] == 2
    assert run["tokens_per_sec"] == pytest.approx(2 / run["total_latency_s"])
    assert run["avg_latency_per_token_ms"] == pytest.approx(1000 / run["tokens_per_sec"])
    assert run["time_to_first_token_ms"] < 1000 * run["total_latency_s"]
    assert run["model_size_mib"] == pytest.approx(134_515_008 * 4 / 2**20, rel=0.01)
    assert run["peak_memory_mib"] > run["model_size_mib"]
    assert tracked.artifacts(run["run_id"]) >= {"samples.json", "sample.txt"}
    assert tracked.text(run["run_id"], "sample.txt").strip()
    study = study_of(tracked, "prompt_length")
    assert (study["status"], study["outcome"]) == ("FAILED", "failed")
    # The study is the run that `mlflow run` opened, and it is the only other one.
    everything = tracked.client.search_runs([tracked.client.get_run(study["run_id"]).info.experiment_id])
    others = [
        other.info.run_id
        for other in everything
        if other.data.tags.get("llmtrack.kind") not in ("scenario", "set_aside")
    ]
    assert others == [study["run_id"]]
    assert tracked.artifacts(study["run_id"]) >= REPORT
    assert tracked.artifacts(study["run_id"], "plots") == plots_of(runs, "latency", "tokens_per_sec")
    lines = tracked.text(study["run_id"], "reading.md").splitlines()
    assert 3 <= sum(not line.startswith("- Warning") for line in lines) <= 6
    assert "prompt_100000 failed" in tracked.text(study["run_id"], "table.md")
    tags = tracked.client.get_run(study["run_id"]).data.tags
    assert f"runs/{run['run_id']}" in tags["mlflow.note.content"]
    assert tags["mlflow.project.entryPoint"] == "prompt_length"
    assert tags["mlflow.source.git.commit"] == study["env.git_commit"]
    params = tracked.client.get_run(study["run_id"]).data.params
    assert (params["max_new_tokens"], params["cfg.max_new_tokens"]) == ("2", "2")


def test_training_improves_the_model_and_other_experiments_load_its_checkpoint(
    run_here, tracked, tmp_path, monkeypatch
):
    """Trained by a worker; the programs of both are seen above, but not what these import."""
    monkeypatch.setattr(entry, "ProcessExecutor", partial(ProcessExecutor, start=wall.WalledWorker))
    small = {"corpus": "builtin", "steps": 6, "eval_every": 3, "sequence_length": 32, "batch_size": 2}
    output = tmp_path / "trained here"
    small |= {"output": output, "sample_tokens": 4, "model": "synthetic:tiny"}
    with monkeypatch.context() as patch:
        wall.forbid_here(patch, wall.FRAMEWORKS)
        done = run_here("training", executor="process", **small)
    assert done.exit_code == 0, done.output
    (_, run), *others = tracked.runs().iterrows()
    assert not others
    assert run["status"] == "FINISHED"
    assert any((tmp_path / "trained here").iterdir())
    assert run["perplexity"] < run["perplexity_before"]
    history = tracked.client.get_metric_history(run["run_id"], "series/train_loss")
    assert sorted(value.step for value in history) == [1, 2, 3, 4, 5, 6]
    assert {"checkpoint", "samples.md", "validation.jsonl"} <= tracked.artifacts(run["run_id"])
    study = study_of(tracked, "training")
    plots = {"plots/loss_training.png", "plots/learning_rate_training.png"}
    assert tracked.artifacts(study["run_id"], "plots") == plots

    held_out = tmp_path / "held out.jsonl"
    held_out.write_text(tracked.text(run["run_id"], "validation.jsonl"), encoding="utf-8")
    spec = f"runs:/{run['run_id']}/checkpoint"
    scoring = {"protocol": "rolling", "max_length": 32, "bos_rule": "model", "corpus": held_out}
    done = run_here("perplexity", model=spec, **scoring)
    assert done.exit_code == 0, done.output
    scored = tracked.runs(experiment="perplexity").iloc[0]
    assert (scored["model_id"], scored["corpus"]) == (spec, "held out.jsonl")
    assert scored["perplexity"] == pytest.approx(run["perplexity"], rel=1e-6)
    compared = run_here("compare", experiment="training")
    assert "perplexity before" in compared.output


def test_a_usage_error_in_the_worker_is_one_line_and_exit_code_2(run_here, monkeypatch):
    """Other errors are tested in tests/run/test_borders.py."""
    monkeypatch.setattr(entry, "ProcessExecutor", partial(ProcessExecutor, start=ForkedWorker))
    done = run_here("baseline", executor="process", backend="abacus")
    assert done.exit_code == 2, done.output
    assert "unknown backend 'abacus'" in done.output
    assert "Traceback" not in done.output
