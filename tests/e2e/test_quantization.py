"""Quantization from end to end: the real model keeps its quality, and the focused suite answers its question.

In this process: by processes they start some ten or fifteen, each of which imports PyTorch and more for seconds. That workers
measure what `mlflow run` asks is seen in test_mlflow_run.py, and that exports are made apart in tests/quantize/test_build.py.
"""

from __future__ import annotations

import csv
import io
import re

import pytest

from experiments.suite import FOCUSES
from llmtrack.host.packages import available
from llmtrack.quality.corpora import load_corpus
from llmtrack.spec.task import BUILTIN_TEXT
from tests.conftest import make_here
from tests.e2e.test_entry_points import ok
from tests.e2e.test_mlflow_run import QUICK, TINY, study_of

pytestmark = [
    pytest.mark.slow(15),
    pytest.mark.skipif(
        not available("onnx", "any"), reason="the onnx extra is not installed: the rest works without it"
    ),
]

# Perplexity over float32's at most, on text that quantization has not seen; these do not depend on the machine's speed.
BOUNDS = {"onnx-int8-weight-only": 1.01, "onnx-int8-dynamic": 1.03}


@pytest.mark.slow(200)
@pytest.mark.usefixtures("loaded_once")
def test_recipes_keep_the_quality_of_the_real_model(run_here, tracked, smollm2_spec, tmp_path, monkeypatch):
    make_here(monkeypatch)
    recipes = ",".join(name.replace("onnx-", "onnx/") for name in BOUNDS)
    # What follows the scored beginnings: the default text differs between versions of Python. A quarter of the default tokens;
    # by fewer, the search finds layers that do not keep the quality of other text.
    text = tmp_path / "calibration.txt"
    text.write_text("\n\n".join(document[300:] for document in load_corpus(BUILTIN_TEXT).texts), encoding="utf-8")
    parameters = {**QUICK, "recipes": recipes, "calibration": text, "calibration_tokens": 512}
    # The beginnings of the documents tell the recipes apart as their wholes do, which test_entry_points.py scores.
    parameters |= {"prompt_tokens": 32, "reference_tokens": 256, "max_length": 32}
    output = ok(run_here("quantization", model=smollm2_spec, **parameters))
    runs = tracked.runs().set_index("scenario")
    assert set(runs["status"]) == {"FINISHED"}
    base = runs.loc["torch-float32"]
    # By a plain loop over the documents' first 32 tokens, unpadded, log-softmax in float64: 752 tokens.
    assert base["perplexity"] == pytest.approx(77.147847, rel=1e-4)
    for name, bound in BOUNDS.items():
        run = runs.loc[name]
        assert run["perplexity"] / base["perplexity"] < bound, name
        assert run["corpus_digest"] == base["corpus_digest"]
        assert run["tokens_scored"] == base["tokens_scored"]
        assert 0 < run["kl_divergence"] < 0.2
        assert 0.8 < run["top1_agreement"] < 1
        assert run["file_size_mib"] < 0.75 * base["file_size_mib"]
        assert run["prefill_tokens_per_sec"] > 0
        assert run["decode_tokens_per_sec"] > 0
        assert run["parity_max_share"] < 1e-3
        assert "sample.txt" in tracked.artifacts(run["run_id"])
        assert name in output
    run = runs.loc["onnx-int8-dynamic"]
    assert run["calibration_digest"] != run["corpus_digest"]
    rows = list(csv.DictReader(io.StringIO(tracked.text(run["run_id"], "quantization/layers.csv"))))
    assert len(rows) == run["linear_layers"] == 210  # all but the head
    assert sum(row["left_out"] == "True" for row in rows) == run["left_out_layers"] > 0
    # The layers that facts about this model name: few, and at the end of an MLP.
    assert all(row["layer"].endswith("down_proj") for row in rows[:6])
    assert "quantization/search.csv" in tracked.artifacts(run["run_id"], "quantization")
    study = study_of(tracked, "quantization")
    assert {"plots/decode_against_perplexity.png", "plots/layer_errors.png"} <= tracked.artifacts(
        study["run_id"], "plots"
    )
    table = tracked.text(study["run_id"], "table.md")
    assert "file MiB" in table
    # On a slow or busy machine the time is up after one repeat, of which there is no interval.
    assert re.search(r"\dx (\([\d.]+ to [\d.]+\) )?decode", table)


@pytest.mark.slow(20)
def test_a_suite_focused_on_quantization(run_here, tracked, monkeypatch):
    """Of its experiments, those whose scenarios the focus changes; test_entry_points.py runs the others."""
    make_here(monkeypatch)
    others = ("baseline", "cache_padding", "batching", "perplexity")
    assert set(FOCUSES["quantization"]) == {"quantization", "edge_prompts", *others}
    monkeypatch.setitem(FOCUSES, "quantization", ("quantization", "edge_prompts"))
    output = ok(run_here("suite", focus="quantization", quick="true", **TINY | {"max_new_tokens": 2}))
    runs = tracked.runs()
    assert set(runs["experiment"]) == {"quantization", "edge_prompts"}
    assert set(runs["status"]) == {"FINISHED"}
    edge = runs[runs["experiment"] == "edge_prompts"]
    # Edge prompts are put to a quantized variant, whichever was best here.
    assert set(edge["backend"]) == {"onnx"}
    assert "none" not in set(edge["quantization"])
    suite = study_of(tracked, "suite")
    assert {"table.csv", "table.png", "report.html"} <= tracked.artifacts(suite["run_id"])
    assert "quantization" in output
