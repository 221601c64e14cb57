"""External texts are shown literally in every format."""

from __future__ import annotations

import io
import itertools
import os
import subprocess
import sys
from functools import cache

import pytest
from rich.console import Console

from llmtrack.host.console import neutralize, protect_stream
from llmtrack.report.escape import as_label, in_latex, in_markdown
from llmtrack.report.page.html import Report, Rows, Section, render_report
from llmtrack.report.plots.charts import bar_plot, curves_plot, line_plot, scatter_plot
from llmtrack.report.plots.drawing import drawing, save
from llmtrack.report.show import listing_table
from llmtrack.report.tables.picture import MOST_DRAWN, to_figure
from llmtrack.report.tables.rendering import print_table, render, to_markdown
from llmtrack.report.tables.summary import summary_table
from llmtrack.report.terminal import print_line
from tests.conftest import HANG_S
from tests.report.artificial_runs import make_runs, run

HOSTILE = (
    "x$_$",
    "$",
    r"$\frac$",
    r"\$x$",
    "a^b_c{d}",
    "\\",
    "tail\\",
    "[v2]",
    "[red]x[/red]",
    "[/]",
    "[link=http://x]y",
    ":warning:",
    "🦙👨‍👩‍👧",
    "a\u202eb\u2066c",
    "\x1b[31mred\x1b[0m",
    "bell\x07null\x00",
    "two\nlines\r\nthree",
    "<script>alert(1)</script>",
    "](javascript:alert(1))",
    "[x](javascript:alert(1))",
    "`code`",
    "a|b",
    "_hidden_",
    "**bold**",
    "{braces} {0}",
    "中文 שלום",
    "n" * 300,
)


@cache
def table_of(name: str):
    rows = make_runs(run(name, baseline=True, tokens_per_sec=10.0), run(f"{name}2", model_id=name, tokens_per_sec=2.0))
    return summary_table(rows), rows


@pytest.mark.parametrize("name", HOSTILE)
def test_a_console_prints_a_text_without_interpreting_it(name):
    out = io.StringIO()
    console = Console(file=out, width=2000, force_terminal=True)
    print_line(console, name)
    print_table(console, name, table_of(name)[0], [name])
    text = out.getvalue()
    assert all(line in text for line in neutralize(name).split("\n"))
    # What remains of escape sequences is rich's own bold.
    own = text.replace("\x1b[1m", "").replace("\x1b[0m", "")
    assert neutralize(own) == own


@pytest.mark.parametrize("name", HOSTILE)
def test_tables_and_lists_on_a_terminal_interpret_nothing(name):
    table, rows = table_of(name)
    for text in (
        render(table, "table", name),
        render(listing_table(rows), "table"),
        render(listing_table(rows, ["scenario"]), "table"),
    ):
        assert neutralize(text) == text
        assert neutralize(" ".join(name.split()))[:20] in text


@pytest.mark.parametrize("name", HOSTILE)
def test_markdown_contains_no_html_links_or_code_and_keeps_its_cells(name):
    table, _ = table_of(name)
    text = to_markdown(table, ("#/one", "#/two"))
    assert "<" not in text
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 4
    # Split at bars that are not escaped: every row has the same number of cells.
    cells = [len(line.replace("\\\\", "").replace("\\|", "").split("|")) for line in lines]
    assert len(set(cells)) == 1
    bare = text.replace("\\\\", "").replace("\\]", "").replace("\\[", "")
    assert "](javascript" not in bare
    assert bare.count("](#/") == 2


def test_a_lone_surrogate_is_replaced():
    # Runs that were read back have none: tracking replaces it, too.
    assert neutralize("\ud800lone") == in_markdown("\ud800lone") == as_label("\ud800lone") == "\ufffdlone"


def test_markdown_leaves_plain_names_unchanged():
    for name in ("prompt_16", "onnx/int8-weight-only", "x2.00 (0.05 s to 0.10 s)", "float16 (forced on CPU)"):
        assert in_markdown(name) == name
    assert in_markdown("_a_ *b* <c> [d](e) `f` ~g~ $h$ i|j") == (
        r"\_a\_ \*b\* &lt;c&gt; \[d\](e) \`f\` \~g\~ &#36;h&#36; i\|j"
    )


def test_latex_accepts_every_text():
    assert in_latex("[v2] a_b $x$ <s> |\n\\") == (
        r"{[}v2{]} a\_b \$x\$ \textless{}s\textgreater{} \textbar{} \textbackslash{}"
    )


@pytest.mark.parametrize("name", HOSTILE)
def test_html_shows_code_instead_of_running_it(name):
    table, _ = table_of(name)
    rows = Rows(table, ("baseline", ""))
    section = Section(name, name, name, rows, (name,), settings={name: name})
    page = render_report(Report(name, name, name, ((name, name),), (name,), (section,)))
    assert "<script" not in page
    assert neutralize(page) == page


@pytest.mark.slow(4)
def test_plots_draw_every_text():
    words = {"title": "\n".join(HOSTILE), "x_label": HOSTILE[0], "y_label": HOSTILE[5]}
    names = dict(enumerate(HOSTILE))
    rows = make_runs(
        *(
            run(name, prompt_tokens=number, tokens_per_sec=1.0 + number, perplexity=2.0, dtype=name)
            for number, name in names.items()
        )
    )
    with drawing():
        figures = (
            line_plot(rows, "prompt_tokens", "tokens_per_sec", group="dtype", **words),
            bar_plot(rows, "scenario", "tokens_per_sec", title=HOSTILE[0], y_label=HOSTILE[0]),
            scatter_plot(rows[:4], "tokens_per_sec", "perplexity", **words),
            curves_plot({name: ([1, 2], [1.0, 2.0]) for name in HOSTILE}, **words),
            to_figure(summary_table(rows), HOSTILE[0]),
        )
    for figure in figures:
        figure.set_dpi(30)
        figure.set_layout_engine("none")  # it would draw each text several times
        picture = io.BytesIO()
        save(figure, picture)
        assert picture.getvalue().startswith(b"\x89PNG")
    (legend,) = (axes.get_legend() for axes in figures[0].axes)
    assert [text.get_text() for text in legend.get_texts()] == list(map(as_label, HOSTILE))


@pytest.mark.slow(7)
def test_a_picture_of_a_long_table_shows_and_announces_its_first_rows():
    rows = make_runs(*(run(f"s{number}", tokens_per_sec=1.0) for number in range(MOST_DRAWN + 900)))
    figure = to_figure(summary_table(rows), "many")
    assert f"the first {MOST_DRAWN} of {MOST_DRAWN + 900} rows" in figure.axes[0].get_title(loc="left")
    assert figure.get_size_inches()[1] < 40


PLOT = """
import warnings, io
from llmtrack.report.plots.drawing import drawing, new_figure, save
with drawing():
    figure = new_figure(); figure.subplots().set_title("\U0010ffff x")
out = io.BytesIO(); save(figure, out)
print(out.getvalue()[:4])
"""


@pytest.mark.slow(1)
@pytest.mark.parametrize("backend", ["module://matplotlib_inline.backend_inline", "nonsense"])
def test_pictures_do_not_depend_on_the_users_backend_and_style(backend, tmp_path):
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nsavefig.format: pdf\nfont.family: Nowhere\n")
    environment = os.environ | {
        "MPLBACKEND": backend,
        "MATPLOTLIBRC": str(tmp_path),
        "PYTHONWARNINGS": "error::UserWarning",
    }
    done = subprocess.run([sys.executable, "-c", PLOT], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "PNG" in done.stdout
    assert done.stderr == ""


PRINT = """
from llmtrack.report.terminal import make_console, print_line
from llmtrack.report.tables.rendering import print_table
from llmtrack.report.tables.table import Table
console = make_console(outlive=True)
print_line(console, "± – · … × 中 🦙")
print_table(console, "t", Table(("a: é", "b"), ("scenario", "tokens/s"), (False, True), (("中", "1"),), ("r",), ("n –",)))
for _ in range(2000):
    print_line(console, "a line that fills the pipe " * 5)
"""


@pytest.mark.slow(1)
def test_a_stream_replaces_unencodable_characters():
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", PRINT], env=environment, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.splitlines()[0] == b"+/- - | ... x ? ?"


@pytest.mark.slow(1)
def test_a_closed_pipe_ends_nothing():
    environment = os.environ | {"PYTHONIOENCODING": "cp1252", "PYTHONUTF8": "0"}
    worker = subprocess.Popen(
        [sys.executable, "-c", PRINT], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    # The first lines with characters that this encoding lacks, and the table's.
    assert b"a line that fills" in b"".join(itertools.islice(worker.stdout, 20))
    worker.stdout.close()
    assert worker.wait(HANG_S) == 0
    assert worker.stderr.read() == b""


@pytest.mark.slow(1)
def test_a_full_disk_under_the_output_ends_nothing():
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", PRINT], stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_closed_stream_ends_nothing():
    stream = io.StringIO()
    protected = protect_stream(stream)
    stream.close()
    assert protected.write("x") == 1
    protected.flush()
