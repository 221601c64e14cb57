"""First steps of a new user: table width, split quotes, a study without runs, the MLproject of `llmtrack init`."""

from __future__ import annotations

import io

import pytest
from click.testing import CliRunner

from experiments import baseline
from llmtrack.cli import main, new_project
from llmtrack.decide.selection import select
from llmtrack.errors import UsageError
from llmtrack.host.console import neutral_console
from llmtrack.report.tables.rendering import print_table
from llmtrack.report.tables.table import Table
from llmtrack.report.terminal import width_of
from llmtrack.run.tune.tune import spent_text

WIDE = Table(
    (), ("scenario", *(f"title {n}" for n in range(30))), (False,) * 31, (("a", *map(str, range(30))), ("b", *map(str, range(100, 130)))), ("1", "2"),
    keys=("scenario", *(f"key_{n}" for n in range(30))),
)  # fmt: skip


@pytest.mark.parametrize(
    ("columns", "width"), [("80", 80), ("", None), ("0", None), ("-3", None), ("x", None), (None, None)]
)
def test_columns_sets_the_width_in_a_pipe(monkeypatch, columns, width):
    monkeypatch.delenv("COLUMNS", raising=False)
    if columns is not None:
        monkeypatch.setenv("COLUMNS", columns)
    assert width_of(neutral_console(file=io.StringIO())) == width


def test_some_left_out_columns_are_named(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    console = neutral_console(file=io.StringIO(), width=80)
    print_table(console, "wide", WIDE)
    lines = console.file.getvalue()
    assert max(map(len, lines.splitlines())) <= 80
    assert " more)" in lines
    assert lines.count("key_") == 6


def test_a_value_split_by_the_shell_is_explained(capsys):
    done = CliRunner().invoke(main, ["run", "quantization", "-P", "recipes=onnx/int4-hqq", "block_size=64"])
    assert done.exit_code == 2
    assert "unexpected 'block_size=64': quote a value that holds spaces, such as -P 'recipes=" in done.output
    with pytest.raises(SystemExit) as ended:
        baseline.main(["--backend", "llamacpp", "cache_type=f32"])
    assert ended.value.code == 2
    assert "unexpected 'cache_type=f32': quote a value that holds spaces" in capsys.readouterr().err


@pytest.mark.slow(1)
def test_a_study_without_runs_is_reported_as_running(tracker, uri):
    study = tracker.start_study("precision", "Why?", {}, {})
    for selector in ("latest:precision", "latest", f"study:{study.study_id}"):
        with pytest.raises(UsageError, match=r"precision is running since .* UTC, nothing measured yet"):
            select(selector, tracking_uri=uri)
    for command in (["compare"], ["recommend"], ["pareto"]):
        done = CliRunner().invoke(main, [*command, "--study", "latest:precision", "--tracking-uri", uri])
        assert (done.exit_code, "nothing measured yet" in done.output) == (2, True), done.output
    tracker.finish_study(study, "finished")
    with pytest.raises(UsageError, match="matches no tracked scenario run"):
        select("latest:precision", tracking_uri=uri)


@pytest.mark.slow(1)
@pytest.mark.parametrize(("outcome", "words"), [("killed", "was killed"), ("failed", "failed: no reason was tracked")])
def test_a_study_that_ended_without_runs_is_reported_as_ended(tracker, uri, outcome, words):
    tracker.finish_study(tracker.start_study("precision", "Why?", {}, {}), outcome)
    for command in (["compare"], ["recommend"], ["pareto"], ["compare", "--study", "latest:precision"]):
        done = CliRunner().invoke(main, [*command, "--tracking-uri", uri])
        assert done.exit_code == 2
        assert f", {words}; nothing was measured: run it again" in done.output, done.output


def test_the_project_written_by_init_addresses_its_user(tmp_path, monkeypatch):
    project = tmp_path / "project"
    project.mkdir()
    (project / "MLproject").write_text("# Made by `make docs`; a test keeps the two equal.\n# More.\nname: llmtrack\n")
    (project / "conda.yaml").write_text("name: llmtrack\n")
    monkeypatch.setattr(new_project, "PROJECT", project)
    new_project.write_project(tmp_path / "mine")
    text = (tmp_path / "mine" / "MLproject").read_text("utf-8")
    assert "test" not in text
    assert text.endswith("name: llmtrack\n")


@pytest.mark.parametrize(
    ("spent", "text"),
    [(361.9, "360 of 360 s, 2 s over it by the last call"), (100.2, "100 of 360 s"), (360.2, "360 of 360 s")],
)
def test_the_spent_time_is_capped_at_the_budget(spent, text):
    assert spent_text(spent, 360.0) == text
