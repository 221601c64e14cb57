"""What MLflow's page opens on: the columns that matter, in the right order, and charts without hashes."""

from __future__ import annotations

import json

import pytest
from mlflow import MlflowClient

from llmtrack.report.study import prepare_views
from llmtrack.report.table import summary_table
from llmtrack.report.views import MOST_OF_EACH, as_text, chart_view, table_view
from llmtrack.tracking import views
from tests.report.frames import frame, run

RUNS = frame(
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


def test_the_view_shows_this_study_best_first_with_what_runs_differ_in():
    view = table_view(summary_table(RUNS), "llmtrack.study_id", "s")
    assert view["searchFilter"] == "tags.`llmtrack.study_id` = 's' and tags.`llmtrack.kind` = 'scenario'"
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`tokens_per_sec`", False)
    assert view["selectedColumns"][:2] == ["params.`dtype`", "metrics.`tokens_per_sec`"]
    assert len(view["selectedColumns"]) <= 2 * MOST_OF_EACH


def test_a_study_of_quality_is_in_the_order_of_quality():
    runs = frame(run("a", perplexity=18.0), run("b", perplexity=19.0))
    view = table_view(summary_table(runs), "llmtrack.study_id", "s")
    assert (view["orderByKey"], view["orderByAsc"]) == ("metrics.`perplexity`", True)


def test_the_charts_are_bars_speed_against_quality_and_parallel_coordinates_without_hashes():
    view = chart_view(summary_table(RUNS), RUNS, "llmtrack.study_id", "s")
    charts = {each["type"]: each for each in view["compareRunCharts"]}
    assert charts["BAR"]["metricKey"] == "tokens_per_sec"
    assert (charts["SCATTER"]["xaxis"]["key"], charts["SCATTER"]["yaxis"]["key"]) == (
        "tokens_per_sec",
        "perplexity",
    )
    assert charts["PARALLEL"]["selectedParams"] == ["dtype"]
    assert not any("digest" in key for key in charts["PARALLEL"]["selectedParams"])
    (section,) = view["compareRunSections"]
    assert {each["metricSectionId"] for each in charts.values()} == {section["uuid"]}
    assert len({each["uuid"] for each in charts.values()}) == 3
    assert len(as_text(view)) < views.MOST_CHARACTERS
    assert as_text(view) == as_text(chart_view(summary_table(RUNS), RUNS, "llmtrack.study_id", "s"))


def test_a_study_without_figures_has_a_view_too():
    failed = frame(run("a", status="FAILED", study_id="s"))
    assert (
        table_view(summary_table(failed), "llmtrack.study_id", "s")["orderByKey"] == "attributes.start_time"
    )
    assert "BAR" not in as_text(chart_view(summary_table(failed), failed, "llmtrack.study_id", "s"))


def test_views_are_kept_with_the_experiment_and_the_oldest_go(tracker, uri, monkeypatch):
    study = tracker.start_study("precision", "q", {}, {})
    monkeypatch.setattr(views, "MOST_KEPT", 4)
    client = MlflowClient(uri)
    for hour in range(5):
        runs = RUNS.assign(study_id=f"precision-20261128-0{hour}0000-aaaa")
        prepare_views(summary_table(runs), runs, "study_id", study.experiment_id, uri)
    kept = views.kept_views(study.experiment_id, uri)
    assert {key.removesuffix(views.CHARTS) for key in kept} == {
        f"precision-20261128-0{hour}0000-aaaa" for hour in (3, 4)
    }
    tags = client.get_experiment(study.experiment_id).tags
    (text,) = [text for key, text in tags.items() if key.endswith("40000-aaaa")]
    assert json.loads(text)["orderByKey"] == "metrics.`tokens_per_sec`"


def test_a_store_that_keeps_no_views_costs_nothing():
    prepare_views(summary_table(RUNS), RUNS, "study_id", "1", "sqlite:////nowhere/at/all.db")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "http://h/#/experiments/1/runs?workflowType=machine_learning"),
        ({"key": "s"}, "http://h/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=s"),
        (
            {"key": "s", "charts": True},
            "http://h/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=s.charts&compareRunsMode=CHART",
        ),
    ],
)
def test_links(options, expected):
    assert views.runs_link("http://h/", "1", **options) == expected
