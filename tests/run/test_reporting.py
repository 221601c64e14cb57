"""A failing report costs no measurement, is named, and can be repeated."""

from __future__ import annotations

import errno
import re
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import TEMPORARILY_UNAVAILABLE

from experiments.suite import quick_remark
from llmtrack.cli import main
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.report.escape import in_markdown
from llmtrack.report.page.output import Parts
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.tracking import store_errors
from llmtrack.tracking.read.query import runs, studies
from llmtrack.tracking.write import sync
from tests.report.test_escape import HOSTILE
from tests.run.scenarios import generating
from tests.run.study.test_study import artifacts, lengths, study, suite

pytestmark = pytest.mark.usefixtures("_known_ceilings")

REPORT = {
    "plots/latency.png",
    "plots/tokens_per_sec.png",
    "reading.md",
    "report.html",
    "table.csv",
    "table.md",
    "table.png",
}
FULL = REPORT | {"environment.json"}


def breaks(*_: object, **__: object) -> None:
    raise ValueError("no [v2] of $_$ here: http://me:secret@host/")


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.slow(2)
@pytest.mark.parametrize(
    ("target", "lost"),
    [
        ("llmtrack.report.page.reports.summary_table", {"table.csv", "table.md", "table.png", "reading.md"}),
        ("llmtrack.report.page.reports.print_table", {"table.csv", "table.md", "table.png", "reading.md"}),
        ("llmtrack.report.page.output.to_figure", {"table.png"}),
        ("llmtrack.report.page.output.to_csv", {"table.csv"}),
        ("llmtrack.report.page.reports.plot_of", {"plots/latency.png", "plots/tokens_per_sec.png"}),
        ("llmtrack.report.page.reports.study_report", {"report.html"}),
        ("llmtrack.run.study.study.tracked_runs", REPORT),
        ("tempfile.TemporaryDirectory", REPORT),
    ],
)
def test_a_failing_part_of_the_report_is_named(tracker, uri, console, monkeypatch, target, lost):
    fault = full_disk if "write" in target or "tempfile" in target else breaks
    real = tempfile.TemporaryDirectory
    calls = []

    def first_fails(*arguments, **named):
        calls.append(1)
        return fault() if len(calls) == 1 else real(*arguments, **named)

    monkeypatch.setattr(target, first_fails if target.startswith("tempfile") else fault)
    if target.startswith("tempfile"):
        calls.append(1)  # Until the report begins.
        monkeypatch.setattr("llmtrack.run.study.study.Parts", lambda: (calls.clear(), Parts())[1])
    result = study(tracker, console, lengths(4, 8))
    monkeypatch.undo()
    assert (result.measured, result.failed, result.exit_code) == (2, 0, 1)
    assert list(runs(tracking_uri=uri)["status"]) == ["FINISHED", "FINISHED"]
    (own,) = studies(tracking_uri=uri).to_dict("records")
    assert (own["status"], own["outcome"]) == ("FINISHED", "finished")
    assert own["warnings"] == "\n".join(result.problems)
    assert set(artifacts(uri, own["run_id"])) == FULL - lost
    printed = console.file.getvalue()
    for problem in result.problems:
        assert f"warning: the report is not complete: {problem}" in printed
    assert f"llmtrack report {result.study.study_id}" in printed
    assert "secret" not in printed + own["warnings"]


def report(*arguments):
    return CliRunner().invoke(main, ["report", *arguments])


@pytest.mark.slow(2)
def test_a_report_is_recreated_from_tracked_runs(tracker, uri, console, monkeypatch, tmp_path):
    monkeypatch.setattr("llmtrack.run.study.study.write_study", breaks)
    result = study(tracker, console, lengths(4, 8))
    monkeypatch.undo()
    assert artifacts(uri, result.study.run_id) == ["environment.json"]
    output = report(result.study.study_id, "--tracking-uri", uri, "--output", str(tmp_path / "out"))
    assert output.exit_code == 0, output.output
    assert "prompt_4" in output.output
    assert set(artifacts(uri, result.study.run_id)) == FULL
    assert (tmp_path / "out" / "report.html").is_file()
    assert list(studies(tracking_uri=uri)["status"]) == ["FINISHED"]
    tags = MlflowClient(tracking_uri=uri).get_run(result.study.run_id).data.tags
    assert "llmtrack.warnings" not in tags
    note = tags["mlflow.note.content"]
    assert "*What does a longer prompt cost?*" in note
    assert studies(tracking_uri=uri)["scenarios_measured"].notna().all(), "its figures are made again, too"
    assert "(#/experiments/" in note


@pytest.mark.slow(2)
def test_the_report_of_an_offline_study_is_created_after_sync(tracker, uri, console, monkeypatch, spooled):
    def away(*_: object, **__: object) -> None:
        raise store_errors.UnreachableError("no answer")

    monkeypatch.setattr("llmtrack.run.study.study.tracked_runs", away)
    monkeypatch.setattr("llmtrack.tracking.write.sync.push_entry", away)
    result = study(tracker, console, lengths(4, 8))
    assert result.measured == 2
    monkeypatch.undo()
    assert spooled()
    missing = report(result.study.study_id, "--tracking-uri", uri)
    assert missing.exit_code == 2
    assert missing.output.count("\n") == 1
    tracker.sync()
    output = report("latest", "--tracking-uri", uri)
    assert output.exit_code == 0, output.output
    (own,) = studies(tracking_uri=uri).to_dict("records")
    assert set(artifacts(uri, own["run_id"])) == FULL
    assert own["status"] == "FINISHED"


@pytest.mark.slow(2)
@pytest.mark.parametrize("comes_back", [False, True])
def test_waiting_records_are_mentioned_even_if_some_were_sent(tracker, uri, console, monkeypatch, messages, comes_back):
    # As a disk that is full: what is large fails, and what is small does not.
    push, refused = sync.push_entry, []

    def pushed(spool, name, *more):
        if spool.peek(name).record.tags["llmtrack.kind"] == "scenario" and not (comes_back and refused):
            refused.append(name)
            raise MlflowException("database or disk is full [SQL: COMMIT]", TEMPORARILY_UNAVAILABLE)
        return push(spool, name, *more)

    monkeypatch.setattr(sync, "push_entry", pushed)
    result = study(tracker, console, lengths(4))
    assert "[SQL" not in "".join(messages)
    assert any("answers again" in line for line in messages)
    if not comes_back:
        assert result.exit_code == 1
        assert "1 record of it could not be sent, and what is kept waits in" in result.problems[-1]
        assert f"llmtrack sync, then llmtrack report {result.study.study_id}" in console.file.getvalue()
        monkeypatch.undo()
        tracker.sync()
        output = report(result.study.study_id, "--tracking-uri", uri)
        assert output.exit_code == 0, output.output
    assert result.exit_code == (0 if comes_back else 1)
    assert set(artifacts(uri, result.study.run_id)) == FULL
    assert list(runs(tracking_uri=uri)["status"]) == ["FINISHED"]


@pytest.mark.slow(3)
def test_the_report_of_a_suite_is_recreated(tracker, uri, console, monkeypatch):
    monkeypatch.setattr("llmtrack.run.suite.write_suite", breaks)
    result = suite(tracker, console, lengths(4, 8), quick=True)
    assert result.exit_code == 1
    monkeypatch.undo()
    output = report(result.study.study_id, "--tracking-uri", uri)
    assert output.exit_code == 0, output.output
    assert "report.html" in artifacts(uri, result.study.run_id)
    assert "plots/prompt_length/latency.png" in artifacts(uri, result.study.run_id)
    note = MlflowClient(tracking_uri=uri).get_run(result.study.run_id).data.tags["mlflow.note.content"]
    assert f"- {in_markdown(quick_remark(['prompt_length']))}" in note


@pytest.mark.slow(1)
def test_an_unknown_experiment_is_reported_without_plots(tracker, uri, console):
    result = study(tracker, console, replace(lengths(4, 8), name="elsewhere"))
    output = report(result.study.study_id, "--tracking-uri", uri)
    assert output.exit_code == 1
    assert "experiments/elsewhere.py is not here" in output.output


@pytest.mark.slow(9)
def test_hostile_names_are_escaped_on_every_page(tracker, uri, console):
    names = HOSTILE
    # Each asks for something of its own: of what is the same only one is measured.
    scenarios = tuple(generating(name, max_new_tokens=2 + number) for number, name in enumerate(names))
    experiment = replace(lengths(4), question="[/] $_$ <script>", scenarios=scenarios)
    result = study(tracker, console, experiment)
    assert (result.measured, result.problems) == (len(names), ())
    assert set(artifacts(uri, result.study.run_id)) == FULL
    for name in ("[v2]", "x$_$", "[red]x[/red]"):
        assert f"  {name}: 0." in console.file.getvalue()
    note = MlflowClient(tracking_uri=uri).get_run(result.study.run_id).data.tags["mlflow.note.content"]
    assert "<script" not in note
    assert Path(MlflowClient(tracking_uri=uri).download_artifacts(result.study.run_id, "table.md")).is_file()


class Backwards(InlineExecutor):
    """Measures the last scenario first, as concurrent workers may."""

    def run(self, scenarios, emit):
        """Measure one by one."""
        for scenario in reversed(scenarios):
            super().run([scenario], emit)
            time.sleep(0.002)  # MLflow's times are milliseconds


@pytest.mark.slow(2)
@pytest.mark.parametrize("values", [(4, 8, 16), (16, 4, 8)])
def test_rows_have_the_same_order_everywhere(tracker, uri, console, tmp_path, undrawn, values):
    clock = FakeClock()
    executor = Backwards(lambda variant: ScriptedEngine(clock, Script(0.030, 0.005)), clock)
    own = study(tracker, console, lengths(*values), executor).study
    expected = [f"prompt_{value}" for value in values]

    def rows(text):
        return re.findall(r"^\| (prompt_\d+) ", text.replace("\\", ""), re.MULTILINE)

    first = Path(MlflowClient(tracking_uri=uri).download_artifacts(own.run_id, "table.md", str(tmp_path)))
    assert rows(first.read_text()) == expected
    output = report(own.study_id, "--tracking-uri", uri, "--output", str(tmp_path / "again"))
    assert output.exit_code == 0, output.output
    assert rows((tmp_path / "again" / "table.md").read_text()) == expected
    listed = CliRunner().invoke(
        main, ["compare", "--study", own.study_id, "--format", "markdown", "--tracking-uri", uri]
    )
    assert rows(listed.output) == expected
