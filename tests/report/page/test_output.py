"""The files of a report, and its links."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from llmtrack.report.page.html import Report
from llmtrack.report.page.output import Parts, ReportContext, mlflow_server, write_report
from llmtrack.report.tables.summary import summary_table
from tests.report.artificial_runs import BASE, make_runs


@pytest.mark.slow(1)
def test_report_files(tmp_path):
    runs = make_runs(BASE)
    files = write_report(tmp_path / "new" / "folder", "title", summary_table(runs), runs, ["one", "two"])
    assert set(files) == {"table.csv", "table.md", "table.png", "reading.md"}
    assert files["reading.md"].read_text() == "- one\n- two\n"
    assert files["table.png"].read_bytes().startswith(b"\x89PNG")
    without = write_report(tmp_path, "title", summary_table(runs), runs)
    assert "reading.md" not in without


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("http://user:secret@host:8080/path/", ("http://host:8080/path", "")),
        ("https://host", ("https://host", "")),
        ("http://[::1]:5000", ("http://[::1]:5000", "")),
        (
            "sqlite:////tmp/a b.db",
            ("http://127.0.0.1:5000", "mlflow ui --backend-store-uri 'sqlite:////tmp/a b.db'"),
        ),
    ],
)
def test_a_link_holds_no_credentials(uri, expected):
    assert mlflow_server(uri) == expected


@pytest.mark.parametrize(("experiment_id", "runs_at"), [("7", "http://host/#/experiments/7/runs/"), (None, "")])
def test_a_report_links_to_runs_only_within_an_mlflow_experiment(tmp_path, experiment_id, runs_at):
    context = ReportContext("r1", experiment_id, "http://host", tmp_path, Console(file=io.StringIO()), Parts())
    page = Report("title", "question?", "r1", (), (), (), {}, None)
    assert context.with_links(page).runs_at == runs_at
