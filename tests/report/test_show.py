"""A list of runs and the block of a run, as printed and as CSV or JSON."""

from __future__ import annotations

import csv
import io
import json

import pytest

from llmtrack.errors import UsageError
from llmtrack.report.show import AS_TABLE, metrics_block, render_runs, show_runs
from llmtrack.tracked.frames import check_columns
from tests.report.artificial_runs import interval, make_runs, run


def test_the_block_has_a_line_per_metric_with_its_spread():
    runs = make_runs(run("one", perplexity=18.5, **interval("tokens_per_sec", 1234.5, 1200.0, 1300.0, n=7)))
    lines = metrics_block(runs[0])
    assert [line.split()[0] for line in lines] == ["tokens_per_sec", "perplexity"]
    assert lines[0].endswith("1,234.500 tokens/s  [95 % interval 1,200.000 to 1,300.000, n=7]")
    assert "interval" not in lines[1]


RUNS = make_runs(
    run("a", tokens_per_sec=10.123456, start_time="2026-11-28T10:01:00Z"),
    run("b", status="FAILED", reason='a, "b"'),
)


def test_json_and_csv_contain_every_value():
    rows = json.loads(render_runs(RUNS, "json"))
    assert [row["scenario"] for row in rows] == ["a", "b"]
    assert rows[0]["tokens_per_sec"] == 10.123456
    assert rows[1]["tokens_per_sec"] is None
    assert rows[0]["start_time"].startswith("2026-11-28T10:01:00")
    assert "perplexity" not in rows[0]
    table = list(csv.DictReader(io.StringIO(render_runs(RUNS, "csv"))))
    assert table[1]["reason"] == 'a, "b"'
    assert float(table[0]["tokens_per_sec"]) == 10.123456


def test_the_table_has_a_line_per_run(capsys):
    show_runs(RUNS, AS_TABLE)
    text = capsys.readouterr().out
    assert "10.12" in text
    assert "FAILED" in text
    assert "2026-11-28 10:01" in text
    assert text.rstrip().endswith("2 runs")


def test_an_empty_list_is_valid(capsys):
    empty = RUNS[0:0]
    assert json.loads(render_runs(empty, "json")) == []
    show_runs(empty, AS_TABLE)
    assert capsys.readouterr().out.strip().endswith("0 runs")


@pytest.mark.parametrize(
    ("unknown", "known", "remedy"),
    [
        ("verdit", ["metric", "verdict"], "did you mean verdict?"),
        ("size", ["metric", "verdict"], "choose from metric, verdict"),
        ("size", [f"column_{number}" for number in range(31)], "`llmtrack runs --format csv` shows all of them"),
    ],
)
def test_an_unknown_column_is_answered_with_what_to_choose(unknown, known, remedy):
    with pytest.raises(UsageError) as refused:
        check_columns([unknown], known)
    assert str(refused.value) == f"there is no column {unknown!r}: {remedy}"
