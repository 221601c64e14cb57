"""Prepared views of MLflow's page: relevant columns in the right order, and charts without hashes."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import ClassVar

import pytest
from mlflow import MlflowClient

from experiments import backends, quantization, tune
from llmtrack.report.page.reports import prepare_views
from llmtrack.report.page.views import MOST_OF_EACH, as_text, chart_view, table_view
from llmtrack.report.tables.summary import summary_table
from llmtrack.tracking import views
from tests.report.artificial_runs import column, make_runs, replace_values, run

RUNS = make_runs(
    run("a", tokens_per_sec=10.0, perplexity=18.0, peak_memory_mib=500.0, output_digest="x", study_id="s"),
    run(
        "b",
        tokens_per_sec=20.0,
        perplexity=19.0,
        peak_memory_mib=400.0,
        output_digest="y",
        study_id="s",
        dtype="bfloat16",
    ),
)


def test_the_table_shows_this_study_best_first_with_the_differing_params():
    view = table_view(summary_table(RUNS), RUNS, "llmtrack.study_id", "s")
    assert view["searchFilter"] == "tags.`llmtrack.study_id` = 's' and tags.`llmtrack.kind` = 'scenario'"
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`tokens_per_sec`", False)
    assert view["selectedColumns"][:2] == ["params.`dtype`", "metrics.`tokens_per_sec`"]
    assert len(view["selectedColumns"]) <= 2 * MOST_OF_EACH


def test_a_study_of_quality_is_sorted_by_quality():
    runs = make_runs(run("a", perplexity=18.0), run("b", perplexity=19.0))
    view = table_view(summary_table(runs), runs, "llmtrack.study_id", "s")
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`perplexity`", True)


def test_charts_are_bars_speed_against_quality_and_parallel_coordinates_without_hashes():
    view = chart_view(summary_table(RUNS), RUNS, "llmtrack.study_id", "s")
    charts = {chart["type"]: chart for chart in view["compareRunCharts"]}
    assert charts["BAR"]["metricKey"] == "tokens_per_sec"
    assert (charts["SCATTER"]["xaxis"]["key"], charts["SCATTER"]["yaxis"]["key"]) == (
        "tokens_per_sec",
        "perplexity",
    )
    assert charts["PARALLEL"]["selectedParams"] == ["dtype"]
    assert not any("digest" in key for key in charts["PARALLEL"]["selectedParams"])
    (section,) = view["compareRunSections"]
    assert {chart["metricSectionId"] for chart in charts.values()} == {section["uuid"]}
    assert len({chart["uuid"] for chart in charts.values()}) == 3
    assert len(as_text(view)) < views.MOST_CHARACTERS
    assert as_text(view) == as_text(chart_view(summary_table(RUNS), RUNS, "llmtrack.study_id", "s"))


def test_a_study_without_metrics_has_a_view():
    failed = make_runs(run("a", status="FAILED", study_id="s"))
    assert table_view(summary_table(failed), failed, "llmtrack.study_id", "s")["orderByKey"] == "attributes.start_time"
    assert "BAR" not in as_text(chart_view(summary_table(failed), failed, "llmtrack.study_id", "s"))


def _scored(name, **more):
    return run(name, task="perplexity", perplexity=len(str(more)), loss=2.9, bits_per_byte=1.0, **more)


def _timed(name, speed, **more):
    return run(name, task="generate", tokens_per_sec=speed, decode_tokens_per_sec=speed, **more)


# Of each study: its runs, its own table, its main metrics in order, and the metric plotted against speed.
STUDIES = {
    "perplexity": (
        [_scored("a"), _scored("b", dtype="bfloat16")],
        None,
        ["perplexity", "loss"],
        None,
    ),
    "training": (
        [run("t", task="train", train_tokens_per_sec=9.0, perplexity=9.0, perplexity_before=99.0)],
        None,
        ["perplexity", "train_tokens_per_sec", "perplexity_before"],
        None,
    ),
    "backends": (
        [
            _timed("a", 1.0, perplexity=1.0),
            _timed("b", 2.0, perplexity=2.0, backend="onnx"),
            _timed("b-batch", 3.0, backend="onnx", batch_size=4),
        ],
        backends.TABLE,
        ["decode_tokens_per_sec", "perplexity"],
        "perplexity",
    ),
    "tune": (
        [
            _timed("a", 1.0, tuned_for="decode_tokens_per_sec", race_place="winner", race_reason="best"),
            _timed("b", 2.0, tuned_for="decode_tokens_per_sec", race_place="dropped", race_reason="slower"),
        ],
        tune.TABLE,
        ["decode_tokens_per_sec", "tokens_per_sec"],
        None,
    ),
    "quantization": (
        [_timed("a", 1.0, perplexity=1.0), _timed("b", 2.0, perplexity=2.0, quantization="int8")],
        quantization.TABLE,
        ["tokens_per_sec", "perplexity", "decode_tokens_per_sec"],
        "perplexity",
    ),
    # Nothing was both timed and scored.
    "suite": (
        [_timed("a", 1.0), _timed("b", 2.0), _scored("c"), _scored("d")],
        None,
        ["tokens_per_sec", "perplexity"],
        None,
    ),
}


@pytest.mark.parametrize("name", STUDIES)
def test_each_kind_of_study_opens_on_its_main_metrics(name):
    rows, own, metrics, across = STUDIES[name]
    runs = make_runs(*rows)
    view = chart_view(summary_table(runs, own=own), runs, "llmtrack.study_id", "s")
    shown = [key.split("`")[1] for key in view["selectedColumns"] if key.startswith("metrics.")]
    assert shown[: len(metrics)] == metrics
    assert view["orderByKey"] == f"metrics.`{metrics[0]}`"
    charts = {chart["type"]: chart for chart in view["compareRunCharts"]}
    assert charts["BAR"]["metricKey"] == metrics[0]
    assert charts.get("SCATTER", {}).get("yaxis", {}).get("key") == across
    assert ("params.`race_place`" in view["selectedColumns"]) == (name == "tune")
    assert not any("digest" in key for key in view["selectedColumns"])
    # MLflow 3.17.2 draws no axis with a single value, and no run that lacks a value on an axis.
    for key in (
        *charts.get("PARALLEL", {}).get("selectedParams", ()),
        *charts.get("PARALLEL", {}).get("selectedMetrics", ()),
    ):
        drawn = column(runs.where(lambda run: run.has(metrics[0])), key)
        assert None not in drawn
        assert len(set(drawn)) > 1
    assert ("PARALLEL" in charts) == (name not in ("training", "suite"))


@pytest.mark.slow(1)
def test_the_size_of_an_experiments_tags_is_bounded(monkeypatch):
    class Client:
        tags: ClassVar[dict[str, str]] = {"mlflow.sharedViewState.a-persons-own": "{}"}

        def set_experiment_tag(self, experiment_id, key, text):
            self.tags[key] = text

        def delete_experiment_tag(self, experiment_id, key):
            del self.tags[key]

        def get_experiment(self, experiment_id):
            return SimpleNamespace(tags=dict(self.tags))

    monkeypatch.setattr(views.store, "open_existing", lambda uri: Client())
    monkeypatch.setattr(views.store, "resolve_tracking_uri", lambda uri: "sqlite://")
    default_count, bound = views.MOST_KEPT, 500_000
    monkeypatch.setattr(views, "MOST_KEPT", 3)
    monkeypatch.setattr(views, "MOST_SHORT", 2)
    table, studies = summary_table(RUNS), [f"precision-20261128-{number:06}-aaaa" for number in range(7)]
    for study in studies:
        prepare_views(table, replace_values(RUNS, study_id=study), "study_id", "1", "")
    ours = [key for key in Client.tags if studies[0].split("-")[0] in key]
    assert len(ours) == views.MOST_KEPT + views.MOST_SHORT
    assert f"mlflow.sharedViewState.{studies[-1]}" in ours
    assert f"mlflow.sharedViewState.{studies[0]}" not in ours
    assert "mlflow.sharedViewState.a-persons-own" in Client.tags
    short = [len(Client.tags[key]) for key in sorted(ours)[: views.MOST_SHORT]]
    assert sum(map(len, Client.tags.values())) - sum(short) < bound * views.MOST_KEPT / default_count
    assert max(short) * 1_500 < bound


@pytest.mark.slow(1)
def test_the_oldest_views_are_shortened_and_then_removed(tracker, uri, monkeypatch):
    study = tracker.start_study("precision", "q", {}, {})
    monkeypatch.setattr(views, "MOST_KEPT", 2)
    monkeypatch.setattr(views, "MOST_SHORT", 1)
    client = MlflowClient(uri)
    for hour in range(5):
        runs = replace_values(RUNS, study_id=f"precision-20261128-0{hour}0000-aaaa")
        prepare_views(summary_table(runs), runs, "study_id", study.experiment_id, uri)
    existing = views.existing_views(study.experiment_id, uri)
    assert existing == {f"precision-20261128-0{hour}0000-aaaa" for hour in (2, 3, 4)}
    tags = client.get_experiment(study.experiment_id).tags
    (older,) = [json.loads(text) for key, text in tags.items() if key.endswith("20000-aaaa")]
    assert older["searchFilter"].startswith("tags.`llmtrack.study_id` = 'precision-20261128-020000-aaaa'")
    assert "compareRunCharts" not in older
    (text,) = [text for key, text in tags.items() if key.endswith("40000-aaaa")]
    assert json.loads(text)["orderByKey"] == "metrics.`tokens_per_sec`"


@pytest.mark.parametrize("text", ["deflate;eJyrVspJ", "{}", '{"searchFilter":"tags.a = 1"}'])
def test_a_view_saved_by_the_user_is_unchanged(text):
    assert views._shortened(text) == text


def test_a_missing_store_is_ignored():
    prepare_views(summary_table(RUNS), RUNS, "study_id", "1", "sqlite:////nowhere/at/all.db")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "http://h/#/experiments/1/runs?workflowType=machine_learning"),
        ({"key": "s"}, "http://h/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=s"),
        (
            {"key": "s", "charts": True},
            "http://h/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=s&compareRunsMode=CHART",
        ),
    ],
)
def test_links(options, expected):
    assert views.runs_link("http://h/", "1", **options) == expected
