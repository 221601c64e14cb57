"""A table drawn as a picture."""

from __future__ import annotations

from llmtrack.report.tables.picture import to_figure
from llmtrack.report.tables.table import DASH, Table
from tests.report.artificial_runs import BASE, run, table_of


def test_conditions_in_a_picture_wrap_between_conditions_only():
    conditions = tuple(f"condition number {number}: value-{number} of it" for number in range(9))
    table = Table(conditions, ("a",), (False,), (("x",),), ("r",))
    lines = to_figure(table, "a title").axes[0].get_title(loc="left").splitlines()
    assert len(lines) > 2
    assert [condition for line in lines[1:] for condition in line.removesuffix(" ·").split(" · ")] == list(conditions)


def test_the_picture_shows_every_cell():
    table = table_of(BASE, run("other", tokens_per_sec=12.0))
    (axes,) = to_figure(table, "a title").axes
    (drawn,) = axes.tables
    cells = {position: cell.get_text().get_text() for position, cell in drawn.get_celld().items()}
    assert cells[0, 0] == "scenario"
    assert cells[2, len(table.titles) - 1] == "1.20x tokens/s (inconclusive: one value each)"
    assert "a title" in axes.get_title(loc="left")
    assert "device: cpu" in axes.get_title(loc="left")


def test_a_table_without_rows_has_a_picture():
    empty = Table((), ("scenario", "tokens/s"), (False, True), (), ())
    (axes,) = to_figure(empty, "a study that measured nothing").axes
    cells = axes.tables[0].get_celld()
    assert [cells[1, column].get_text().get_text() for column in (0, 1)] == [DASH, DASH]
    assert len(to_figure({"one": empty, "two": empty}, "a suite").axes) == 2
