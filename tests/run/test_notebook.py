"""Experiments as functions, and their display in a notebook."""

from __future__ import annotations

import inspect
import io
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import llmtrack
import llmtrack.host.console
import llmtrack.report.page.output
import llmtrack.report.tables.rendering
import llmtrack.report.tables.table
import llmtrack.run.study.study
from llmtrack.errors import UsageError
from llmtrack.run.notebook import progress_console

pytestmark = pytest.mark.usefixtures("_known_ceilings")

TINY = {
    "model": "synthetic:tiny",
    "max_new_tokens": 4,
    "min_repeats": 2,
    "min_seconds": 0.0,
    "max_seconds": 0.2,
    "executor": "inline",
}


@pytest.mark.slow(4)
def test_an_experiment_shows_progress_and_returns_its_runs(uri, tmp_path, capfd):
    study = llmtrack.run("precision", dtypes=["float32", "bfloat16"], tracking_uri=uri, **TINY)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("precision: Which precision is fastest here")
    assert "\n  float32: " in captured.err
    assert "Fastest:" not in captured.err, "the report is returned"
    assert list(study.runs["scenario"]) == ["float32", "bfloat16"]
    # Where the machine is busy, both are disturbed.
    first = study.reading[0]
    assert first.startswith(("Fastest:", "Which precision is fastest is inconclusive"))
    assert not study.problems
    shown = study._repr_html_()
    assert shown.count("<tr>") == 3
    assert f"<li>{first.partition(':')[0]}:" in shown
    for shown in (str(study), repr(study)):
        assert "bfloat16" in shown
        assert f"- {study.reading[0]}" in shown
    tracked = llmtrack.runs(study=study.study_id, tracking_uri=uri)
    assert sorted(tracked["scenario"]) == ["bfloat16", "float32"]
    page = llmtrack.report(study, tmp_path / "written")
    assert "<html" in page.read_text(encoding="utf-8")
    assert llmtrack.report("latest:precision", tmp_path / "again", tracking_uri=uri).is_file()
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.slow(4)
def test_a_suite_returns_a_table_per_task(uri, capfd):
    suite = llmtrack.run(
        "suite", experiments=["baseline", "perplexity"], quick=True, tracking_uri=uri, quiet=True, **TINY
    )
    assert capfd.readouterr() == ("", "")
    assert list(suite.tables) == ["timing", "quality"]
    assert set(suite.runs["experiment"]) == {"baseline", "perplexity"}
    assert suite.reading
    assert suite._repr_html_().count("<table>") == 2
    assert repr(suite).index("timing") < repr(suite).index("quality")


def test_tune_returns_its_runs(monkeypatch):
    """`tune` has no list of scenarios, so its own command is called."""
    from experiments import tune
    from llmtrack.errors import TrackingError
    from llmtrack.run.main import Performed

    requests = []

    def perform(config, console):
        requests.append(config)
        study = SimpleNamespace(study_id="tune-1")
        return Performed(None, SimpleNamespace(study=study, tracked=None, problems=("the server was away",)))

    monkeypatch.setattr(tune, "perform", perform)
    with pytest.raises(TrackingError, match="tune-1 is measured, but could not be read back: the server was"):
        llmtrack.run("tune", budget="20s")
    assert requests == [tune.Config(budget="20s")]


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("precison", {}, "there is no experiment 'precison': did you mean precision"),
        ("precision", {"lengths": [1]}, "precision has no parameter lengths: it takes dtypes"),
        ("precision", {"dtype": "bfloat16"}, r"precision has no parameter dtype: did you mean dtypes=bfloat16\?"),
        ("precision", {"dtype": ["float32", "bfloat16"]}, r"did you mean dtypes=float32,bfloat16\?"),
        ("batching", {"batch_sizes": 4}, r"batching has no parameter batch_sizes: did you mean sizes=4\?"),
        ("perplexity", {"warmup": 3}, "perplexity takes no warmup, which would change nothing here: leave it out"),
        ("precision", {"max_new_tokens": 0}, "max_new_tokens"),
        ("precision", {"dtypes": "float32,float3"}, "unknown dtype 'float3'"),
    ],
)
def test_invalid_arguments_are_one_line_before_measuring(name, options, message):
    with pytest.raises(UsageError, match=message):
        llmtrack.run(name, **options)


def test_a_console_in_a_notebook_writes_to_its_file(monkeypatch):
    """Rich detects notebooks itself and then ignores `file`: tables were empty, and displayed unasked."""
    monkeypatch.setattr("rich.console._is_jupyter", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as a kernel does
    table = llmtrack.report.tables.table.Table((), ("scenario",), (False,), (("bfloat16",),), ("1",))
    text = llmtrack.report.tables.rendering.render(table, "table")
    assert "bfloat16" in text
    assert "\x1b" not in text
    written = io.StringIO()
    console = llmtrack.host.console.neutral_console(file=written, width=200)
    llmtrack.report.tables.rendering.print_table(console, "precision", table, ["a line"])
    assert all(text in written.getvalue() for text in ("precision", "bfloat16", "a line"))
    assert "\x1b" not in written.getvalue()


def test_every_console_is_created_by_one_function():
    folder = Path(llmtrack.__file__).parent
    modules = [
        path.name for path in folder.rglob("*.py") if re.search(r"\bConsole\(|\(Console\)", path.read_text("utf-8"))
    ]
    assert modules == ["console.py"]


def test_callable_packages_import_lazily():
    code = "import llmtrack, sys; llmtrack.run; llmtrack.report; print('mlflow' in sys.modules, 'torch' in sys.modules)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["False", "False"]
    assert llmtrack.run.study.study.run_study
    assert llmtrack.report.tables.summary.summary_table
    assert callable(llmtrack.run)
    assert callable(llmtrack.report)


def test_callable_packages_have_signatures():
    for function, names in (
        (llmtrack.run, ["experiment", "console", "quiet", "options"]),
        (llmtrack.report, ["study", "folder", "tracking_uri"]),
    ):
        assert list(inspect.signature(function).parameters) == names
        for word in ("Args:", "Returns:", "llmtrack.", *(f"    {name}: " for name in names)):
            assert word in function.__doc__, word


class Display:
    """A substitute for IPython.display that records its pages."""

    def __init__(self):
        self.pages = []

    def HTML(self, page):  # noqa: N802
        return page

    def display(self, page, display_id):
        assert display_id
        self.update(page)
        return self

    def update(self, page):
        self.pages.append(page)


def test_a_notebook_display_shows_the_last_lines(monkeypatch):
    display = Display()
    kernel = SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: kernel))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    for name in ("FORCE_COLOR", "CLICOLOR_FORCE"):  # as a kernel does
        monkeypatch.setenv(name, "1")
    console = progress_console()
    assert not console.is_terminal, "it shows lines, and no bar that is drawn over and over"
    for number in range(40):
        console.print(f"line {number} <b>", style="bold")
    shown = display.pages[-1]
    assert "line 39 &lt;b&gt;" in shown
    assert "line 20" not in shown
    assert "[1m" not in shown
    assert console.stderr, "a report is not printed there"


def test_progress_of_a_script_goes_to_stderr(capsys):
    progress_console().print("half way")
    progress_console(quiet=True).print("never")
    assert capsys.readouterr() == ("", "half way\n")
