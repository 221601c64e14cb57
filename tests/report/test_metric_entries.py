"""One entry defines a metric or param for docs, tables, comparisons, gate and Pareto front."""

from __future__ import annotations

import dataclasses

import pytest

from llmtrack import metrics as schema
from llmtrack.decide.candidates import gather_candidates
from llmtrack.decide.comparability import why_not_comparable
from llmtrack.decide.compare import compare_pairs
from llmtrack.decide.gate import check_samples, check_values, parse_rule
from llmtrack.decide.selection import Pair
from llmtrack.metrics.page import page
from llmtrack.report.pareto import pareto_table
from llmtrack.report.show import metrics_block
from llmtrack.report.tables.summary import summary_table, to_csv
from llmtrack.report.tables.table import condition_columns, values_of_runs, with_columns
from tests.report.artificial_runs import make_runs, replace_values, run

SPEEDY = schema.Metric(
    "requests_per_sec",
    "requests/s",
    "higher",
    "whole requests per second",
    "requests / s",
    headline=True,
    shown=schema.Shown("requests/s", schema.decimals(1), order=15, compared=True),
)
WORTH = schema.Metric("worth", "-", "higher", "a figure of the text", "sum", needs=("text",))
SIZE = schema.Metric("size", "MiB", "lower", "a size", "count", needs=(), tolerance=0.1)


@pytest.fixture(autouse=True)
def added(monkeypatch):
    """Add three metrics and a param."""
    metrics = (SPEEDY, WORTH, SIZE)
    monkeypatch.setattr(schema, "METRICS", (*schema.METRICS, *metrics))
    for metric in metrics:
        monkeypatch.setitem(schema.METRIC_BY_NAME, metric.name, metric)
    param = schema.Param("flavour", str, "of what", shown=schema.Shown("flavour", str.upper, order=35))
    monkeypatch.setattr(schema, "PARAMS", (*schema.PARAMS, param))
    monkeypatch.setitem(schema.PARAM_BY_NAME, param.name, param)


def two_runs(**other):
    ids = {"environment_id": "e1", "workload_id": "w1"}
    values = {"requests_per_sec": 10.0, "tokens_per_sec": 5.0, "perplexity": 9.0, "worth": 4.0, "size": 100.0}
    base = run("base", baseline=True, flavour="plain", **ids, **values)
    return make_runs(base, run("cand", **(ids | values | {"requests_per_sec": 12.0, "flavour": "new"} | other)))


def test_docs_list_it():
    text = page()
    assert "| `requests_per_sec` | requests/s | higher |  | work, machine | whole requests per second |" in text
    assert "| `worth` | - | higher |  | text |" in text
    assert "| `flavour` | str | of what |" in text


def test_a_table_has_its_column_in_order_and_its_change():
    runs = two_runs()
    table = summary_table(runs)
    assert table.titles[:4] == ("scenario", "flavour", "requests/s", "tokens/s")
    assert [row[1:3] for row in table.rows] == [("PLAIN", "10.0"), ("NEW", "12.0")]
    assert table.rows[1][-1].startswith("1.20x requests/s")
    assert "requests_per_sec" in to_csv(runs).splitlines()[0]
    assert "flavour" in [column.key for column in condition_columns()]
    # One without a column is shown where it is asked for.
    assert "worth" not in table.titles
    assert "worth" in with_columns(table, values_of_runs(runs), ["worth"]).titles


def test_it_is_compared_by_its_own_rules():
    runs = two_runs(worth=4.4, size=109.0)
    pair = Pair(runs[0], runs[1])
    headlines = compare_pairs([pair], None).comparisons
    assert [comparison.difference.metric for comparison in headlines] == [
        "requests_per_sec",
        "tokens_per_sec",
        "perplexity",
    ]
    comparisons = compare_pairs([pair], ["requests_per_sec", "worth", "size"]).comparisons
    assert {comparison.difference.metric: comparison.difference.verdict for comparison in comparisons} == {
        "requests_per_sec": "unknown",
        "worth": "better",
        "size": "same",
    }


def test_its_needs_decide_which_runs_are_comparable():
    runs = two_runs(environment_id="e2", workload_id="w2", bytes_scored=7.0)
    base, cand = runs[0], runs[1]
    assert "workloads differ" in why_not_comparable(base, cand, "requests_per_sec")
    assert "different environments" in why_not_comparable(base, cand, "requests_per_sec", across_work=True)
    assert "scored text differs" in why_not_comparable(base, cand, "worth")
    assert why_not_comparable(base, cand, "size") == ""


@pytest.mark.slow(1)
def test_gate_and_pareto_front_accept_it():
    rule = parse_rule("requests_per_sec < -5%")
    assert check_values(rule, 10, 9).outcome == "inconclusive"
    # A rate is compared through its times: the median of 1/1, 1/3 is 2/3, so its rate is 1.5.
    assert check_samples(rule, [1.0, 3.0], [3.0, 3.0]).change.startswith("2.00x")
    assert check_values(parse_rule("size > +5%"), 100, 109).outcome == "kept"
    runs = two_runs()
    spread = {
        "n": 8.0,
        "ci_low": [0.99 * rate for rate in runs.values("requests_per_sec")],
        "ci_high": [1.01 * rate for rate in runs.values("requests_per_sec")],
    }
    repeated = replace_values(
        runs, **{schema.spread_key("requests_per_sec", key): value for key, value in spread.items()}
    )
    points = gather_candidates(repeated, "requests_per_sec", "perplexity")
    table = pareto_table(points, ("requests_per_sec", "perplexity"))
    assert [(row[0], row[-1]) for row in table.rows] == [("cand", "on the front"), ("base", "beaten by cand")]


@pytest.mark.slow(1)
def test_the_block_of_a_run_has_it():
    assert any(line.split()[:2] == ["requests_per_sec", "10.000"] for line in metrics_block(two_runs()[0]))


@pytest.mark.parametrize(
    ("name", "needs"),
    [
        ("loss_before", {"tokens"}),
        ("perplexity_before", {"tokens"}),
        ("reference_perplexity_ratio", {"tokens", "reference"}),
        ("train_loss", {"tokens", "work"}),
        ("tokens_compared", {"convention"}),
        ("pad_share", {"work"}),
        ("steps_done", {"work"}),
        ("file_size_mib", set()),
    ],
)
def test_metrics_other_than_timings_do_not_need_the_machine(name, needs):
    assert set(schema.metric(name).needs) == needs
    assert schema.metric(name).sureness == "exact"


@pytest.mark.parametrize("name", ["mfu", "memory_bandwidth_utilization", "load_time_s", "score_tokens_per_sec"])
def test_a_single_timed_value_is_inconclusive(name):
    assert schema.metric(name).sureness == "once"


def test_an_unknown_metric_gets_the_safest_assumptions():
    unknown = schema.metric("somebody's")
    assert (unknown.sureness, unknown.needs, unknown.better) == ("once", ("work", "machine"), "-")
    assert dataclasses.replace(unknown, unit="frames/s").rate
