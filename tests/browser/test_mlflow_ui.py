"""Tracked runs in MLflow's own UI, in a real browser; see also screenshots.py."""

from __future__ import annotations

import re

import pytest
from mlflow import MlflowClient

from llmtrack.tracking import views
from llmtrack.tracking.views import run_link, runs_link
from tests.browser.chromium import (
    artifact_place,
    compare_place,
    evaluation_place,
    expect,
    models_place,
    runs_place,
    traces_place,
)

pytestmark = pytest.mark.slow(5)

WIDTH = "image => image.complete ? image.naturalWidth : 0"


def test_the_table_of_runs_lists_studies_and_scenarios(tab, tracked):
    page = tab.open(runs_place(tracked.experiment_id))
    expect(page.get_by_text(f"{len(tracked.run_names)} matching runs")).to_be_visible()
    assert {"prompt_length/prompt_16", "prompt_length/prompt_64"} < set(tracked.run_names)
    for name in tracked.run_names:
        expect(page.get_by_role("link", name=name, exact=True).first).to_be_visible()
    assert any(name.startswith("prompt_length ") and name.endswith(", study of tiny") for name in tracked.run_names)


def test_two_scenarios_are_compared(tab, tracked):
    pair = [tracked.scenarios["prompt_16"], tracked.scenarios["prompt_64"]]
    page = tab.open(compare_place(tracked.experiment_id, pair))
    expect(page.get_by_text("Comparing 2 Runs from 1 Experiment")).to_be_visible()
    for run_id in pair:
        expect(page.get_by_role("link", name=run_id)).to_be_visible()
    expect(page.get_by_role("row", name=re.compile(r"^prompt_tokens 16 64$"))).to_be_visible()
    for metric in ("avg_latency_per_token_ms", "decode_tokens_per_sec"):
        expect(page.get_by_role("link", name=metric, exact=True)).to_be_visible()


def test_the_models_tab_lists_each_way_once_with_its_metrics(tab, tracked):
    page = tab.open(models_place(tracked.experiment_id))
    expect(page.get_by_text(re.compile(r"^tiny · torch float32 · \d+ threads?$"))).to_have_count(1)
    expect(page.get_by_text("Ready").first).to_be_visible()


def test_the_traces_of_a_run_show_its_prompt_its_tokens_and_its_duration(tab, tracked):
    (trace,) = MlflowClient(tracked.server).search_traces(
        locations=[tracked.experiment_id], run_id=tracked.scenarios["prompt_16"], include_spans=False
    )
    page = tab.open(traces_place(tracked.experiment_id, tracked.scenarios["prompt_16"]))
    row = page.get_by_role("row").filter(has_text=trace.info.request_preview)
    expect(row).to_have_count(1)
    expect(row.get_by_text("20", exact=True)).to_be_visible()  # 16 tokens of the prompt, 4 generated
    expect(row.get_by_text(re.compile(r"^[\d.]+s$"))).to_be_visible()
    expect(row.get_by_text("OK", exact=True)).to_be_visible()


def test_documents_are_rows_of_mlflows_artifact_comparison(tab, documents):
    page = tab.open(evaluation_place(documents))
    expect(page.get_by_text("eval_results_table.json").first).to_be_visible()
    for document in ("1: Once upon a time", "2: A harbour wakes"):
        expect(page.get_by_text(document)).to_be_visible()
    for perplexity in (r"8\.5|11\.5", r"9\.25|9\.75"):  # of one run: the other's column is beyond the page
        expect(page.get_by_text(re.compile(f"^({perplexity})$"))).to_be_visible()


def test_outputs_of_a_prompt_are_compared_across_runs(tab, documents):
    page = tab.open(evaluation_place(documents))
    page.get_by_text("eval_results_table.json").first.click()
    for table in ("generations_table.json", "eval_results_table.json"):  # this one in place of that one
        page.get_by_role("option", name=table).click()
    page.keyboard.press("Escape")
    expect(page.get_by_text("Once upon a time", exact=True)).to_be_visible()
    expect(page.get_by_text(re.compile("^as (float32|int4) says$")).first).to_be_visible()


def test_a_png_is_shown(tab, tracked):
    page = tab.open(artifact_place(tracked.experiment_id, tracked.study, "table.png"))
    image = page.get_by_alt_text("table.png")
    expect(image).to_be_visible()
    page.wait_for_function("() => document.querySelector('img[alt=\"table.png\"]').complete")
    assert image.evaluate(WIDTH) > 1000


def test_the_report_opens_and_its_plots_are_drawn(tab, tracked):
    page = tab.open(artifact_place(tracked.experiment_id, tracked.study, "report.html"))
    report = page.frame_locator("iframe")
    expect(report.get_by_text("Conditions: model, machine and versions")).to_be_visible()
    expect(report.get_by_text("prompt_64").first).to_be_visible()
    plots = report.get_by_role("img").and_(report.locator("img"))
    assert plots.count() >= 2
    assert all(plots.nth(index).evaluate(WIDTH) > 500 for index in range(plots.count()))


def test_a_studys_note_links_to_its_runs(tab, tracked):
    page = tab.open(f"/experiments/{tracked.experiment_id}/runs/{tracked.study}")
    with page.expect_popup() as opened:
        page.get_by_role("link", name="prompt_64", exact=True).click()
    expect(opened.value).to_have_url(re.compile(tracked.scenarios["prompt_64"]))
    opened.value.close()


def test_a_studys_page_begins_with_its_answer_and_metrics(tab, tracked):
    page = tab.open(run_link("", tracked.experiment_id, tracked.study).removeprefix("#"))
    expect(page.get_by_text("From 16 to 64 prompt tokens the call takes").first).to_be_visible()
    expect(page.get_by_role("link", name="scenarios_measured", exact=True)).to_be_visible()
    expect(page.get_by_text("No metrics recorded")).to_have_count(0)
    expect(page.get_by_role("button", name=re.compile(r"^1 prompt \([0-9a-f]{16}\)$"))).to_be_visible()


def test_the_answer_is_the_first_thing_on_a_page_and_its_tags_are_short(tab, tracked):
    study, scenario = tracked.study, tracked.scenarios["prompt_64"]
    page = tab.open(run_link("", tracked.experiment_id, study).removeprefix("#"))
    # MLflow's assistant, open at first, makes a page so narrow that what is beside the description comes above it.
    page.get_by_role("button", name="Close").click()
    for run_id, answer_text, metric in (
        (study, "From 16 to 64 prompt tokens", "scenarios_measured"),
        (scenario, re.compile(r"tokens/s, .* ms/token"), "tokens_per_sec"),
    ):
        tab.open(run_link("", tracked.experiment_id, run_id).removeprefix("#"))
        figures = page.get_by_role("link", name=metric, exact=True)
        expect(figures).to_be_visible()
        for width in (1400, 1600):
            page.set_viewport_size({"width": width, "height": 900})
            answer = page.get_by_text(answer_text).first.bounding_box()
            assert answer["y"] < min(250, figures.bounding_box()["y"])
            expect(page.get_by_text("llmtrack.experiment", exact=True)).to_be_visible()
        for name in ("process", "version", "environment", "spread", "asked", "scenario_id", "model_uri"):
            expect(page.get_by_text(f"llmtrack.{name}", exact=True)).to_have_count(0)
        for begun in ('{"llmtrack_version', '{"asked', '{"question'):
            expect(page.get_by_text(begun)).to_have_count(0)


def test_a_scenarios_charts_show_metrics_without_spreads(tab, tracked):
    run_id = tracked.scenarios["prompt_16"]
    page = tab.open(f"/experiments/{tracked.experiment_id}/runs/{run_id}/model-metrics")
    for chart in ("token_latency_ms", "avg_latency_per_token_ms"):
        expect(page.get_by_role("heading", name=chart, exact=True)).to_be_visible()
    expect(page.get_by_role("heading", name=re.compile(r"\.(ci_low|ci_high|mean|sd|n)$"))).to_have_count(0)


def test_the_page_of_system_metrics_shows_the_machine_during_the_calls(tab, tracked):
    run_id = tracked.scenarios["prompt_16"]
    page = tab.open(f"/experiments/{tracked.experiment_id}/runs/{run_id}/system-metrics")
    for chart in ("cpu_utilization_percentage", "system_memory_usage_megabytes", "system_memory_usage_percentage"):
        expect(page.get_by_role("heading", name=chart, exact=True)).to_be_visible()


def test_the_prepared_view_shows_the_studys_scenarios_with_relevant_columns(tab, tracked):
    page = tab.open(runs_link("", tracked.experiment_id, tracked.study_id).removeprefix("#"))
    # Neither the study's own run nor, of a busy machine, those that were set aside.
    expect(page.get_by_text(f"{len(tracked.scenarios)} matching runs")).to_be_visible()
    expect(page.get_by_text("tokens_per_sec").first).to_be_visible()
    expect(page.get_by_text("prompt_tokens").first).to_be_visible()
    expect(page.get_by_text("does not exist")).to_have_count(0)


def test_the_prepared_charts_are_bars_and_parallel_coordinates(tab, tracked):
    page = tab.open(runs_link("", tracked.experiment_id, tracked.study_id, charts=True).removeprefix("#"))
    expect(page.get_by_text("What was asked").first).to_be_visible()
    expect(page.get_by_text("Parallel Coordinates").first).to_be_visible()


def test_the_view_of_an_older_study_shows_its_runs(tab, tracked, monkeypatch):
    """The last test: it removes the study's views."""
    monkeypatch.setattr(views, "MOST_KEPT", 1)
    own = views.existing_views(tracked.experiment_id, tracked.server)
    assert tracked.study_id in own
    views.keep_views({"precision-99991231-000000-aaaa": "{}"}, tracked.experiment_id, tracked.server)
    page = tab.open(runs_link("", tracked.experiment_id, tracked.study_id).removeprefix("#"))
    page.reload()  # MLflow reads an experiment's views once
    expect(page.get_by_text(f"{len(tracked.scenarios)} matching runs")).to_be_visible()
    expect(page.get_by_text("does not exist")).to_have_count(0)
