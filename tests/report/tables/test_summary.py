"""The summary table of artificial runs."""

from __future__ import annotations

import io

import pandas as pd
import pytest

from llmtrack.metrics import decimals
from llmtrack.report.tables.summary import summary_table, to_csv
from llmtrack.report.tables.table import DASH
from tests.report.artificial_runs import BASE, interval, make_runs, run, table_of


def cell(table, row, title):
    return table.rows[row][table.titles.index(title)]


def test_shared_conditions_are_above_the_table_and_differing_ones_are_columns():
    table = table_of(BASE, run("bfloat16", dtype="bfloat16", tokens_per_sec=12.0))
    assert "device: cpu" in table.conditions
    assert "model: packaged:smollm2" in table.conditions
    assert "prompt tokens: 16" in table.conditions
    assert not any(condition.startswith("dtype") for condition in table.conditions)
    assert table.titles[:2] == ("scenario", "dtype")
    assert [cell(table, row, "dtype") for row in (0, 1)] == ["float32", "bfloat16"]
    assert "device" not in table.titles


def test_empty_columns_are_dropped_and_missing_cells_are_dashes():
    table = table_of(BASE, run("other", total_latency_s=3.25))
    assert "perplexity" not in table.titles
    assert cell(table, 0, "latency s") == "–"
    assert cell(table, 1, "latency s") == "3.250"
    assert cell(table, 1, "tokens/s") == "–"


def test_several_experiments_are_named_and_compared_separately():
    rows = (
        BASE,
        run(
            "ppl",
            experiment="perplexity",
            study_id="p-1",
            batch_size=4,
            prompt_tokens=None,
            perplexity=18.7444,
        ),
    )
    table = table_of(*rows)
    assert table.titles[0] == "experiment"
    assert [row[0] for row in table.rows] == ["precision", "perplexity"]
    assert "batch" not in table.titles, "the batch of scoring is no condition of generating"
    assert cell(table, 1, "perplexity") == "18.744"
    assert "experiment" not in table_of(BASE).titles


@pytest.mark.parametrize(
    ("value", "low", "high", "expected"),
    [
        (12.5, 12.0, 13.0, "1.25x (1.19 to 1.31) tokens/s"),
        (5.0, 4.9, 5.1, "0.50x (0.49 to 0.52) tokens/s"),
        # The baseline's interval is 9.9 to 10.1.
        (10.2, 10.05, 10.4, "1.02x (1.00 to 1.05) tokens/s (no significant difference)"),
        (10.0, 9.0, 11.0, "1.00x (0.89 to 1.11) tokens/s (no significant difference)"),
        (10.2, 10.1, 10.4, "1.02x (1.00 to 1.05) tokens/s (no significant difference)"),
        (10.2, 10.11, 10.4, "1.02x (1.00 to 1.05) tokens/s"),
    ],
)
def test_a_change_with_overlapping_intervals_is_not_significant(value, low, high, expected):
    table = table_of(BASE, run("other", **interval("tokens_per_sec", value, low, high)))
    assert table.titles[-1] == "against baseline"
    assert [row[-1] for row in table.rows] == ["baseline", expected]


def test_without_an_interval_a_difference_is_inconclusive():
    table = table_of(BASE, run("other", tokens_per_sec=10.01))
    assert table.rows[1][-1] == "1.00x tokens/s (inconclusive: one value each)"


@pytest.mark.slow(1)
@pytest.mark.parametrize(("n", "others"), [(2, 1), (3, 1), (5, 7)])
def test_too_few_repeats_are_inconclusive_as_in_compare(n, others):
    spread = interval("tokens_per_sec", 20.0, 19.0, 21.0, n)
    base = {**run("base", baseline=True), **interval("tokens_per_sec", 10.0, 9.9, 10.1, n)}
    arms = [run(f"arm{number}", **spread) for number in range(others)]
    rows = [{**row, "workload_id": "w"} for row in (base, *arms)]
    assert table_of(*rows).rows[1][-1] == "2.00x (1.88 to 2.12) tokens/s (inconclusive: too few repeats)"


def test_perplexity_is_compared_too():
    rows = (run("a", baseline=True, perplexity=20.0), run("b", perplexity=21.0))
    assert table_of(*rows).rows[1][-1] == "+5 % perplexity"


def test_perplexity_of_other_tokens_is_not_compared():
    base = run("a", perplexity=20.0, baseline=True, scored_tokens_digest="k1")
    assert table_of(base, run("b", perplexity=10.0, scored_tokens_digest="k2")).rows[1][-1] == DASH


def test_runs_are_compared_with_the_baseline_of_their_own_study():
    other = run("other", study_id="precision-2", tokens_per_sec=20.0)
    assert table_of(BASE, other).rows[1][-1] == "–"
    its_base = run("float32", study_id="precision-2", baseline=True, tokens_per_sec=16.0)
    table = summary_table(make_runs(BASE, other), among=make_runs(BASE, its_base, other))
    assert table.rows[1][-1] == "1.25x tokens/s (inconclusive: one value each)"


def test_a_failed_run_has_its_reason():
    failed = run("big", status="FAILED", outcome="failed", failure="out_of_memory", reason="needs 9 GiB")
    table = table_of(BASE, failed)
    assert table.rows[1][-1] == "FAILED (out_of_memory)"
    assert table.notes == ("big failed: needs 9 GiB",)
    both = table_of(BASE, failed, failed | {"scenario": "bigger", "run_id": "bigger"})
    assert both.notes == ("big, bigger failed: needs 9 GiB",)
    killed = [run(name, status="KILLED", reason="by hand", run_id=name) for name in ("a", "b")]
    assert table_of(BASE, *killed).notes == ("a was killed: by hand", "b was killed: by hand")
    assert table_of(BASE, *killed).rows[1][-1] == "KILLED", "the notes say why"
    silent = table_of(BASE, run("lost", status="KILLED"))
    assert silent.rows[1][-1] == "KILLED (no reason was tracked)"
    # Killed is no failure: nothing went wrong but the end.
    assert silent.notes == ("lost was killed",)


def test_a_failed_baseline_compares_nothing():
    base = run("float32", baseline=True, status="FAILED", failure="load", reason="gone")
    assert [row[-1] for row in table_of(base, run("b", tokens_per_sec=5.0)).rows] == ["FAILED (load)", "–"]


def test_a_run_equal_to_another_refers_to_it():
    reason = "same as float32: float32 (forced on CPU)"
    table = table_of(BASE, run("float16", outcome="same_as", same_as="float32", reason=reason))
    assert table.rows[1][-1] == "= float32"
    assert table.notes == (f"float16 was not measured again: {reason}",)


def test_csv_is_unrounded_and_has_the_spread():
    value, low = 10.123456789012345, 9.87654321
    runs = make_runs(run("one", **interval("tokens_per_sec", value, low, 10.5)))
    table = pd.read_csv(io.StringIO(to_csv(runs)))
    assert table.loc[0, "tokens_per_sec"] == value
    assert table.loc[0, "spread/tokens_per_sec.ci_low"] == low
    assert table.loc[0, "scenario"] == "one"
    assert "perplexity" not in table.columns


def test_small_values_keep_two_digits():
    """Such as a GPU's milliseconds in a column of seconds."""
    table = table_of(
        BASE, run("fast", latency_per_sample_s=0.00014, batch_latency_s=0.0087, time_to_first_token_ms=0.53)
    )
    cells = dict(zip(table.titles, table.rows[1], strict=True))
    assert (cells["s/sample"], cells["s/batch"], cells["TTFT ms"]) == ("0.00014", "0.0087", "0.53")
    assert [decimals(4)(value) for value in (0.0, 0.00002, 0.00023, 0.0345)] == [
        "0.0000",
        "0.0000",
        "0.00023",
        "0.0345",
    ]
    assert [decimals(0)(value) for value in (0.4, 4.4, 12345.6)] == ["0.4", "4", "12,346"]


TEXT = {"corpus_digest": "c", "protocol": "documents", "max_length": 64, "scored_tokens_digest": "t"}


@pytest.mark.parametrize(
    ("base", "changed", "loss"),
    [
        ({"perplexity": 20.0, **TEXT}, {"perplexity": 23.0, **TEXT}, "1.15x the baseline's"),
        ({"perplexity": 20.0, **TEXT}, {"perplexity": 21.0, **TEXT}, ""),
        # Another text: what is known is the comparison with the reference.
        ({"perplexity": 20.0, **TEXT}, {"perplexity": 23.0, **TEXT, "corpus_digest": "d"}, "1.20x the reference's"),
        ({}, {}, "1.20x the reference's"),
    ],
)
def test_a_loss_of_quality_is_judged_by_the_whole_text_if_scored(base, changed, loss):
    """The comparison with a reference covers the first tokens only."""
    table = table_of({**BASE, **base}, run("int4", reference_perplexity_ratio=1.2, **changed))
    assert table.notes == ((f"int4 loses quality: its perplexity is {loss}",) if loss else ())
