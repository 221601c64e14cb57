"""Every entry point by `mlflow run`, from a checkout and a working directory with spaces in their names."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time

import pytest

from tests.conftest import HANG_S

pytestmark = pytest.mark.slow(15)

QUICK = {"max_new_tokens": 4, "min_repeats": 2, "min_seconds": 0, "max_seconds": 1}
TINY = {"model": "synthetic:tiny", **QUICK}

REPORT = {"table.csv", "table.md", "table.png", "reading.md", "plots"}


def ok(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def study_of(tracked, experiment: str):
    (_, study), *others = tracked.runs(kind="study", experiment=experiment).iterrows()
    assert not others
    return study


def test_baseline_measures_the_real_model(mlflow_run, tracked, smollm2_spec):
    output = ok(mlflow_run("baseline", model=smollm2_spec, **QUICK))
    assert f"Loaded: {smollm2_spec} | device=cpu | dtype=float32" in output
    assert "tokens_per_sec" in output
    (_, run), *others = tracked.runs().iterrows()
    assert not others
    assert (run["status"], run["scenario"], run["model_id"]) == ("FINISHED", "baseline", smollm2_spec)
    assert run["max_new_tokens"] == 4
    assert run["tokens_generated"] == 4
    assert run["tokens_per_sec"] == pytest.approx(4 / run["total_latency_s"])
    assert run["avg_latency_per_token_ms"] == pytest.approx(1000 / run["tokens_per_sec"])
    assert run["time_to_first_token_ms"] < 1000 * run["total_latency_s"]
    assert run["model_size_mib"] == pytest.approx(134_515_008 * 4 / 2**20, rel=0.01)
    assert run["peak_memory_mib"] > run["model_size_mib"]
    assert tracked.artifacts(run["run_id"]) >= {"samples.json", "sample.txt"}
    assert tracked.text(run["run_id"], "sample.txt").strip()
    study = study_of(tracked, "baseline")
    # The study is the run that `mlflow run` opened, and it is the only other one.
    assert len(tracked.client.search_runs([tracked.client.get_run(study["run_id"]).info.experiment_id])) == 2
    assert tracked.artifacts(study["run_id"]) >= REPORT
    assert tracked.artifacts(study["run_id"], "plots") == {"plots/token_latency.png"}
    tags = tracked.client.get_run(study["run_id"]).data.tags
    assert f"runs/{run['run_id']}" in tags["mlflow.note.content"]
    assert tags["mlflow.project.entryPoint"] == "baseline"
    params = tracked.client.get_run(study["run_id"]).data.params
    assert (params["max_new_tokens"], params["cfg.max_new_tokens"]) == ("4", "4")


def test_prompt_length_meets_its_targets(mlflow_run, tracked):
    ok(mlflow_run("prompt_length", lengths="16,64", **TINY))
    runs = tracked.runs().set_index("scenario")
    assert runs["prompt_tokens"].to_dict() == {"prompt_16": 16, "prompt_64": 64}
    assert runs["baseline"].to_dict() == {"prompt_16": True, "prompt_64": False}
    study = study_of(tracked, "prompt_length")
    assert tracked.artifacts(study["run_id"], "plots") == {"plots/latency.png", "plots/tokens_per_sec.png"}
    assert 3 <= len(tracked.text(study["run_id"], "reading.md").splitlines()) <= 6


def test_precision_runs_the_forced_fallback_once(mlflow_run, tracked):
    output = ok(mlflow_run("precision", **TINY))
    runs = tracked.runs().set_index("scenario")
    assert runs["dtype"].to_dict() == {
        "float32": "float32",
        "float16": "float32 (forced on CPU)",
        "bfloat16": "bfloat16",
    }
    assert runs["tokens_per_sec"].notna().to_dict() == {"float32": True, "float16": False, "bfloat16": True}
    assert runs.loc["float16", "outcome"] == "same_as"
    assert "float16 was not measured again" in output
    study = study_of(tracked, "precision")
    assert tracked.artifacts(study["run_id"], "plots") == {"plots/tokens_per_sec.png"}


def test_perplexity_of_the_real_model(mlflow_run, tracked, smollm2_spec):
    output = ok(mlflow_run("perplexity", model=smollm2_spec, batch_size=4, verbose="true"))
    assert "batch 1/7 - loss" in output
    assert "average loss 3.3086 nats" in output
    (_, run), *_ = tracked.runs().iterrows()
    assert (run["corpus"], run["protocol"], run["documents_scored"]) == ("builtin", "documents", 25)
    # By a plain loop over the documents, one at a time and unpadded, log-softmax in float64.
    assert run["loss"] == pytest.approx(3.308643298556601, rel=1e-6)
    assert (run["tokens_scored"], run["tokens_truncated"]) == (5220, 0)
    study = study_of(tracked, "perplexity")
    assert study["status"] == "FINISHED"
    assert tracked.artifacts(study["run_id"], "plots") == {"plots/batch_loss_perplexity_float32.png"}


def test_a_corpus_path_with_a_space_reaches_the_experiment(mlflow_run, tracked, tmp_path):
    corpus = tmp_path / "my corpus.txt"
    corpus.write_text("One small text to score.", encoding="utf-8")
    ok(mlflow_run("perplexity", corpus=corpus, model="synthetic:tiny"))
    assert tracked.runs()["corpus"].tolist() == ["my corpus.txt"]


def test_cache_padding_tells_which_rows_padding_changes(mlflow_run, tracked):
    ok(mlflow_run("cache_padding", lengths="4,12", multiple="256", **TINY))
    runs = tracked.runs().set_index("scenario")
    assert (runs["status"] == "FINISHED").all()
    assert runs.loc["cache_off_12", "inter_token_latency_last_quarter_ms"] > 0
    equal = runs["rows_equal_unpadded"]
    assert (equal["pad_none"], equal["pad_left"], equal["pad_left_to_256"]) == (1, 1, 1)
    assert equal["pad_right"] < 1
    assert runs.loc["pad_left_to_256", "pad_share"] > runs.loc["pad_left", "pad_share"] > 0
    study = study_of(tracked, "cache_padding")
    assert tracked.artifacts(study["run_id"], "plots") == {
        "plots/cache_latency.png",
        "plots/padding_tokens_per_sec.png",
    }


def test_batching_does_the_same_work_in_each_arm(mlflow_run, tracked):
    ok(mlflow_run("batching", sizes="1,3", **TINY))
    runs = tracked.runs().set_index("scenario")
    assert runs["prompts"].to_dict() == {"batch_1": 3, "batch_3": 3}
    assert runs["tokens_generated"].to_dict() == {"batch_1": 12, "batch_3": 12}
    assert runs["latency_per_sample_s"].to_dict() == pytest.approx((runs["total_latency_s"] / 3).to_dict())
    study = study_of(tracked, "batching")
    assert len(tracked.artifacts(study["run_id"], "plots")) == 3


def test_edge_prompts_all_run(mlflow_run, tracked):
    ok(mlflow_run("edge_prompts", long_tokens="64", **TINY))
    runs = tracked.runs().set_index("scenario")
    assert (runs["status"] == "FINISHED").all()
    assert {"plain", "empty", "one_token", "beyond_context", "right_to_left"} <= set(runs.index)
    assert (runs["tokens_generated"] == 4).all()


def test_training_learns_and_its_checkpoint_is_a_model_to_others(mlflow_run, tracked, tmp_path):
    small = {"corpus": "builtin", "steps": 6, "eval_every": 3, "sequence_length": 32, "batch_size": 2}
    ok(mlflow_run("training", output=tmp_path / "out", sample_tokens=4, model="synthetic:tiny", **small))
    (_, run), *others = tracked.runs().iterrows()
    assert not others
    assert run["status"] == "FINISHED"
    assert run["perplexity"] < run["perplexity_before"]
    history = tracked.client.get_metric_history(run["run_id"], "series/train_loss")
    assert sorted(each.step for each in history) == [1, 2, 3, 4, 5, 6]
    assert {"checkpoint", "samples.md", "validation.jsonl"} <= tracked.artifacts(run["run_id"])
    study = study_of(tracked, "training")
    plots = {"plots/loss_training.png", "plots/learning_rate_training.png"}
    assert tracked.artifacts(study["run_id"], "plots") == plots

    held_out = tmp_path / "validation.jsonl"
    held_out.write_text(tracked.text(run["run_id"], "validation.jsonl"), encoding="utf-8")
    spec = f"runs:/{run['run_id']}/checkpoint"
    scoring = {"protocol": "rolling", "max_length": 32, "bos_rule": "model", "corpus": held_out}
    ok(mlflow_run("perplexity", model=spec, **scoring))
    scored = tracked.runs(experiment="perplexity").iloc[0]
    assert scored["model_id"] == spec
    assert scored["perplexity"] == pytest.approx(run["perplexity"], rel=1e-6)
    compared = ok(mlflow_run("compare", experiment="training"))
    assert "perplexity before" in compared


def test_suite_and_compare(mlflow_run, tracked):
    output = ok(mlflow_run("suite", experiments="baseline,perplexity", **TINY))
    suite = study_of(tracked, "suite")
    runs = tracked.runs()
    assert set(runs["suite_id"]) == {suite["study_id"]}
    assert set(runs["experiment"]) == {"baseline", "perplexity"}
    assert tracked.artifacts(suite["run_id"]) >= REPORT - {"plots"}
    assert "[2/2] perplexity" in output
    assert "perplexity_float32" in output

    compared = ok(mlflow_run("compare", experiment="baseline"))
    assert "tokens/s" in compared
    assert "perplexity_float32" not in compared
    run = study_of(tracked, "compare")
    assert tracked.artifacts(run["run_id"]) >= {"table.csv", "table.md", "table.png"}


def test_a_failing_scenario_is_a_failed_run_and_exit_code_1(mlflow_run, tracked):
    done = mlflow_run("prompt_length", lengths="16,100000", **TINY)
    assert done.returncode != 0
    runs = tracked.runs().set_index("scenario")
    assert runs["status"].to_dict() == {"prompt_16": "FINISHED", "prompt_100000": "FAILED"}
    assert runs.loc["prompt_100000", "failure"] == "too_long"
    assert "exceed the context" in runs.loc["prompt_100000", "reason"]
    study = study_of(tracked, "prompt_length")
    assert (study["status"], study["outcome"]) == ("FAILED", "failed")
    assert "prompt_100000 failed" in tracked.text(study["run_id"], "table.md")


def test_runs_from_a_git_url(mlflow_run, tracked, checkout):
    ok(mlflow_run("baseline", uri=f"file://{checkout}", **TINY))
    assert len(tracked.runs()) == 1
    tags = tracked.client.get_run(study_of(tracked, "baseline")["run_id"]).data.tags
    assert tags["mlflow.source.git.commit"] == tags["llmtrack.env.git_commit"]


def start(checkout, environment, elsewhere, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    environment = environment | {"MLFLOW_TRACKING_URI": f"sqlite:///{elsewhere / 'mlflow.db'}"} | variables
    return subprocess.Popen(
        [sys.executable, "-m", *arguments],
        cwd=checkout,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "Ctrl-C"])
def test_a_signal_leaves_no_run_running(checkout, environment, elsewhere, tracked, number):
    long = ("--model", "synthetic:tiny", "--min-seconds", "300", "--max-seconds", "300", "--lengths", "16,32")
    running = start(checkout, environment, elsewhere, "experiments.prompt_length", *long)
    assert running.stdout is not None
    for line in running.stdout:
        if line.startswith("Loaded:"):
            break
    time.sleep(1)
    running.send_signal(number)
    output, _ = running.communicate(timeout=HANG_S)
    assert running.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number], output
    assert "Traceback" not in output
    study = study_of(tracked, "prompt_length")
    assert (study["status"], study["outcome"]) == ("KILLED", "killed")
    assert not (tracked.runs(kind=None)["status"] == "RUNNING").any()


def test_an_unreachable_server_loses_nothing(checkout, environment, elsewhere):
    with socket.socket() as taken:
        # Bound and not listening: every connection is refused.
        taken.bind(("127.0.0.1", 0))
        server = f"http://127.0.0.1:{taken.getsockname()[1]}"
        quick = (
            "--model",
            "synthetic:tiny",
            "--max-new-tokens",
            "2",
            "--min-repeats",
            "1",
            "--min-seconds",
            "0",
        )
        spool = elsewhere / "spool"
        running = start(
            checkout, environment, elsewhere, "experiments.baseline", *quick,
            MLFLOW_TRACKING_URI=server, LLMTRACK_SPOOL=str(spool),
        )  # fmt: skip
        output, _ = running.communicate(timeout=HANG_S)
    assert running.returncode == 0, output
    assert "llmtrack sync" in output
    command = [sys.executable, "-m", "llmtrack", "sync", "--spool", str(spool), "--tracking-uri"]
    sent = subprocess.run(
        [*command, f"sqlite:///{elsewhere / 'mlflow.db'}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert sent.returncode == 0, sent.stderr
    assert "2 sent, 0 still kept" in sent.stdout


@pytest.mark.parametrize(
    ("option", "value", "says"),
    [
        ("--dtype", "float7", "unknown dtype 'float7'"),
        ("--model", "packaged:nothing", "smollm2"),
        ("--device", "tpu", "unknown device 'tpu'"),
        ("--backend", "abacus", "unknown backend 'abacus'"),
    ],
)
def test_a_usage_error_is_one_line_and_exit_code_2(checkout, environment, elsewhere, option, value, says):
    running = start(
        checkout, environment, elsewhere, "experiments.baseline", "--model", "synthetic:tiny", option, value
    )
    output, _ = running.communicate(timeout=HANG_S)
    assert running.returncode == 2, output
    assert says in output
    assert "Traceback" not in output
