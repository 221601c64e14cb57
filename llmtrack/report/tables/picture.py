"""Draw a table as a picture."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from llmtrack.host.console import on_one_line
from llmtrack.host.formatting import truncate
from llmtrack.report.escape import in_plot
from llmtrack.report.plots.drawing import new_figure
from llmtrack.report.tables.rendering import fit_to_width
from llmtrack.report.tables.table import DASH, Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# Maximum characters of a cell: the longest change from the baseline in three metrics.
WIDEST = 110
# Maximum characters of a row: some 1,600 pixels.
MOST_ACROSS = 100
# Between words that one line keeps; `textwrap` breaks at plain spaces only.
_JOINED = "\N{NO-BREAK SPACE}"
# Maximum rows: Matplotlib cannot draw a longer picture.
MOST_DRAWN = 100


def to_figure(table: Table | Mapping[str, Table], title: str) -> Figure:
    """Draw a table, or several below each other with their titles."""
    titled = {title: table} if isinstance(table, Table) else {f"{title}: {name}": part for name, part in table.items()}
    tables = {name: _fit_to_screen(part) for name, part in titled.items()}
    widths, heights = zip(*map(_picture_size, tables.values()), strict=True)
    figure = new_figure(figsize=(max(widths), sum(heights)), dpi=150)
    grid = figure.subplots(len(tables), squeeze=False, gridspec_kw={"height_ratios": heights})
    for axes, (name, part) in zip(grid[:, 0], tables.items(), strict=True):
        _draw_table(axes, part, name)
    figure.tight_layout()
    return figure


def _fit_to_screen(table: Table) -> Table:
    """Drop the columns that do not fit on a screen; table.csv has all of them."""
    fitted = fit_to_width(table, MOST_ACROSS)
    return table if fitted is None else fitted.table


def _column_widths(table: Table, rows: Sequence[Sequence[str]]) -> list[int]:
    widths = [max([len(title), *(len(row[i]) for row in rows)]) for i, title in enumerate(table.titles)]
    return [min(width, WIDEST) + 2 for width in widths]


def _picture_size(table: Table) -> tuple[float, float]:
    """Return width and height in inches."""
    rows = table.rows[:MOST_DRAWN]
    return max(6.0, 0.085 * sum(_column_widths(table, rows))), 1.0 + 0.3 * (len(rows) + 1)


def _draw_table(axes: Axes, table: Table, title: str) -> None:
    rows = table.rows[:MOST_DRAWN]
    widths = _column_widths(table, rows)
    axes.axis("off")
    cells = [[in_plot(truncate(on_one_line(cell), WIDEST)) for cell in row] for row in rows] or [
        [DASH] * len(table.titles)
    ]
    drawn = axes.table(
        cellText=cells,
        colLabels=list(map(in_plot, table.titles)),
        colWidths=[width / sum(widths) for width in widths],
        cellLoc="right",
        loc="center",
    )
    drawn.auto_set_font_size(False)
    drawn.set_fontsize(8)
    drawn.scale(1, 1.35)
    for (row, column), cell in drawn.get_celld().items():
        cell.set_edgecolor("#d0d0d0")
        cell.set_text_props(ha="right" if table.numeric[column] else "left")
        if row == 0:
            cell.set_text_props(weight="bold")
            cell.set_facecolor("#eef2f7")
    more = (
        f"the first {MOST_DRAWN} of {len(table.rows)} rows; table.csv has all" if len(table.rows) > MOST_DRAWN else ""
    )
    # A condition's name stays beside its value.
    conditions = " · ".join(on_one_line(condition).replace(" ", _JOINED) for condition in table.conditions)
    head = filter(None, (on_one_line(title), conditions, more))
    wrapped = [line for text in head for line in textwrap.wrap(text, MOST_ACROSS, break_on_hyphens=False)]
    lines = [line.replace(_JOINED, " ") for line in wrapped]
    axes.set_title("\n".join(map(in_plot, lines)), fontsize=9, loc="left")
