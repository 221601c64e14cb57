"""Measurements, tracking and reports of each entry point, in this process; test_mlflow_run.py starts them as programs."""

from __future__ import annotations

import socket

import pytest
from click.testing import CliRunner

from experiments.edge_prompts import PROMPT_BY_NAME
from llmtrack.cli import main as llmtrack_command
from tests.e2e.test_mlflow_run import REPORT, TINY, study_of

pytestmark = pytest.mark.slow(10)


def ok(done):
    assert done.exit_code == 0, f"{done.output}\n{done.exception!r}"
    return done.output


def test_precision_runs_the_forced_fallback_once(run_here, tracked):
    output = ok(run_here("precision", device="cpu", **TINY))
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
    assert tracked.artifacts(study["run_id"], "plots") == {"plots/roofline.png", "plots/tokens_per_sec.png"}


@pytest.mark.slow(15)
def test_perplexity_of_the_real_model(run_here, tracked, smollm2_spec):
    output = ok(run_here("perplexity", model=smollm2_spec, batch_size=5, max_length=8, verbose="true"))
    assert "batch 1/5 - loss" in output
    assert "average loss 6.0140 nats" in output
    (_, run), *_ = tracked.runs().iterrows()
    assert (run["corpus"], run["protocol"], run["documents_scored"]) == ("builtin", "documents", 25)
    # By a plain loop over the documents' first 8 tokens, one at a time and unpadded, log-softmax in float64.
    assert run["loss"] == pytest.approx(6.013985446586095, rel=1e-6)
    assert (run["tokens_scored"], run["tokens_truncated"]) == (175, 5045)
    study = study_of(tracked, "perplexity")
    assert study["status"] == "FINISHED"
    assert tracked.artifacts(study["run_id"], "plots") == {
        "plots/batch_loss_perplexity_float32.png",
        "plots/roofline.png",
    }


def test_cache_padding_reports_which_rows_padding_changes(run_here, tracked):
    ok(run_here("cache_padding", lengths="4,9", multiple="128", **TINY | {"max_new_tokens": 2}))
    runs = tracked.runs().set_index("scenario")
    assert (runs["status"] == "FINISHED").all()
    assert runs.loc["cache_off_9", "inter_token_latency_last_quarter_ms"] > 0
    equal = runs["rows_equal_unpadded"]
    assert (equal["pad_none"], equal["pad_left"], equal["pad_left_to_128"]) == (1, 1, 1)
    assert equal["pad_right"] < 1
    assert runs.loc["pad_left_to_128", "pad_share"] > runs.loc["pad_left", "pad_share"] > 0
    study = study_of(tracked, "cache_padding")
    assert tracked.artifacts(study["run_id"], "plots") == {
        "plots/cache_latency.png",
        "plots/padding_tokens_per_sec.png",
        "plots/roofline.png",
    }


def test_batching_does_the_same_work_in_each_arm(run_here, tracked):
    ok(run_here("batching", sizes="1,3", **TINY))
    runs = tracked.runs().set_index("scenario")
    assert runs["prompts"].to_dict() == {"batch_1": 3, "batch_3": 3}
    assert runs["tokens_generated"].to_dict() == {"batch_1": 12, "batch_3": 12}
    assert runs["latency_per_sample_s"].to_dict() == pytest.approx((runs["total_latency_s"] / 3).to_dict())
    study = study_of(tracked, "batching")
    plots = ("batch_latency", "latency_per_sample", "roofline", "tokens_per_sec")
    assert tracked.artifacts(study["run_id"], "plots") == {f"plots/{name}.png" for name in plots}


def test_edge_prompts_all_run(run_here, tracked):
    ok(run_here("edge_prompts", **TINY))
    runs = tracked.runs().set_index("scenario")
    assert (runs["status"] == "FINISHED").all()
    assert set(runs.index) == set(PROMPT_BY_NAME)
    assert runs.loc[["one_token", "empty", "very_long", "beyond_context"], "prompt_tokens"].tolist() == [
        1, 1, 1020, 1020,
    ]  # fmt: skip
    assert (runs["tokens_generated"] == 4).all()
    # What the rules did to a prompt is tracked with its run, and the reading tells it.
    assert runs.loc["empty", "prompt_rule"].startswith("empty: starts from ")
    assert runs.loc["beyond_context", "prompt_truncated_tokens"] > 0
    assert "truncated" in runs.loc["beyond_context", "warnings"]
    # Two prompts of equal length and unlike text are not one workload.
    assert runs["workload_id"].is_unique
    study = study_of(tracked, "edge_prompts")
    assert (study["status"], study["outcome"]) == ("FINISHED", "finished")
    assert "plain: " in tracked.text(study["run_id"], "reading.md")


def test_suite_and_compare(run_here, tracked, monkeypatch):
    output = ok(run_here("suite", experiments="baseline,perplexity", quick="true", **TINY))
    suite = study_of(tracked, "suite")
    runs = tracked.runs()
    assert set(runs["suite_id"]) == {suite["study_id"]}
    assert set(runs["experiment"]) == {"baseline", "perplexity"}
    assert tracked.artifacts(suite["run_id"]) >= REPORT - {"plots"}
    plots = tracked.artifacts(study_of(tracked, "baseline")["run_id"], "plots")
    assert plots == {"plots/token_latency.png", "plots/roofline.png"}
    assert "[2/2] perplexity" in output
    assert "perplexity_float32" in output

    # As `mlflow run` does.
    opened = tracked.client.create_run(tracked.client.get_experiment_by_name("tested").experiment_id)
    monkeypatch.setenv("MLFLOW_RUN_ID", opened.info.run_id)
    compared = ok(run_here("compare", experiment="baseline"))
    assert "tokens/s" in compared
    assert "perplexity_float32" not in compared
    run = study_of(tracked, "compare")
    assert run["run_id"] == opened.info.run_id
    assert tracked.artifacts(run["run_id"]) >= {"table.csv", "table.md", "table.png"}


def test_an_unreachable_server_loses_no_measurement(run_here, elsewhere, monkeypatch):
    monkeypatch.setenv("LLMTRACK_SPOOL", str(elsewhere / "spool"))
    with socket.socket() as bound:
        # Bound and not listening: every connection is refused.
        bound.bind(("127.0.0.1", 0))
        monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{bound.getsockname()[1]}")
        assert "llmtrack sync" in ok(run_here("baseline", **TINY))
    arguments = [
        "sync",
        "--spool",
        elsewhere / "spool",
        "--tracking-uri",
        f"sqlite:///{elsewhere / 'mlflow.db'}",
    ]
    output = ok(CliRunner().invoke(llmtrack_command, list(map(str, arguments))))
    assert "2 sent, 0 still kept" in output
