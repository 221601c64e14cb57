"""Render a table in the requested format."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmtrack.host.console import as_json, console_of, on_one_line
from llmtrack.report.escape import in_html, in_latex, in_markdown, plain
from llmtrack.report.tables.table import Table

if TYPE_CHECKING:
    from rich.table import Table as RichTable


def render(table: Table, style: str, title: str = "") -> str:
    """Render a table as text.

    Args:
        style: `table`, `csv`, `json`, `markdown`, `html` or `latex`. `csv` and `json` contain the cells as shown; the
            others also have the conditions above and the notes below.
        title: of the table.
    """
    writers = {"csv": _csv, "json": _json, "markdown": to_markdown}
    if style in writers:
        return writers[style](table)
    return {"table": _text, "html": _html, "latex": _latex}[style](table, title)


def to_rich(table: Table, widths: Sequence[int] | None = None) -> RichTable:
    """Return the table for a terminal.

    Args:
        widths: column widths (`llmtrack.report.tables.fit`); None for natural widths.
    """
    from rich import box
    from rich.table import Table as RichTable

    drawn = RichTable(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        show_edge=False,
        collapse_padding=True,
    )
    for index, (heading, numeric) in enumerate(zip(table.titles, table.numeric, strict=True)):
        # Only wrap texts: a truncated number reads as another number.
        wraps = widths is not None or index == len(table.titles) - 1
        drawn.add_column(
            plain(heading),
            justify="right" if numeric else "left",
            no_wrap=not wraps,
            overflow="fold",
            width=widths[index] if widths else None,
        )
    for row in table.rows:
        drawn.add_row(*(plain(on_one_line(cell)) for cell in row))
    return drawn


def to_markdown(table: Table, links: tuple[str, ...] = ()) -> str:
    """Return the table as Markdown after its conditions; scenarios link to their runs if links are given."""
    lines = [" · ".join(map(in_markdown, table.conditions)), ""] if table.conditions else []
    lines.append("| " + " | ".join(map(in_markdown, table.titles)) + " |")
    lines.append("|" + "|".join("---:" if numeric else ":---" for numeric in table.numeric) + "|")
    linked = table.titles.index("scenario")
    for index, row in enumerate(table.rows):
        cells = list(map(in_markdown, row))
        if links:
            cells[linked] = f"[{cells[linked]}]({links[index]})"
        lines.append("| " + " | ".join(cells) + " |")
    if table.notes:
        lines += ["", *(f"- {in_markdown(note)}" for note in table.notes)]
    return "\n".join(lines) + "\n"


def _text(table: Table, title: str) -> str:
    buffer = io.StringIO()
    # Use the table's natural width: a terminal wraps it without losing anything.
    console = console_of(file=buffer, width=10_000, highlight=False, force_terminal=False)
    console.print(to_rich(table))
    head = filter(None, (on_one_line(title), on_one_line(" · ".join(table.conditions))))
    body = filter(None, (line.rstrip() for line in buffer.getvalue().split("\n")))
    return "\n".join([*head, *body, *(f"- {on_one_line(note)}" for note in table.notes)]) + "\n"


def _csv(table: Table) -> str:
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow([*table.titles, "run_id"])
    writer.writerows([*row, run_id] for row, run_id in zip(table.rows, table.run_ids, strict=True))
    return buffer.getvalue()


def _json(table: Table) -> str:
    rows = [
        dict(zip(table.titles, row, strict=True)) | {"run_id": run_id}
        for row, run_id in zip(table.rows, table.run_ids, strict=True)
    ]
    return as_json(rows, indent=1) + "\n"


def _html(table: Table, title: str) -> str:
    def row(cells: tuple[str, ...], tag: str) -> str:
        aligned = (
            f'<{tag} style="text-align:{"right" if numeric else "left"}">{in_html(cell)}</{tag}>'
            for cell, numeric in zip(cells, table.numeric, strict=True)
        )
        return f"<tr>{''.join(aligned)}</tr>"

    caption = " · ".join(filter(None, [title, *table.conditions]))
    lines = ["<table>", f"<caption>{in_html(caption)}</caption>" if caption else ""]
    lines += [f"<thead>{row(table.titles, 'th')}</thead>", "<tbody>"]
    lines += [row(cells, "td") for cells in table.rows] + ["</tbody>", "</table>"]
    if table.notes:
        lines += ["<ul>", *(f"<li>{in_html(note)}</li>" for note in table.notes), "</ul>"]
    return "\n".join(filter(None, lines)) + "\n"


def _latex(table: Table, title: str) -> str:
    r"""Return a `table` environment; requires `\usepackage{booktabs}`."""

    def row(cells: tuple[str, ...]) -> str:
        return " & ".join(map(in_latex, cells)) + r" \\"

    caption = " · ".join(filter(None, [title, *table.conditions]))
    lines = [r"\begin{table}", r"\centering"]
    lines += [rf"\caption{{{in_latex(caption)}}}"] if caption else []
    lines += [rf"\begin{{tabular}}{{{''.join('r' if numeric else 'l' for numeric in table.numeric)}}}"]
    lines += [r"\toprule", row(table.titles), r"\midrule", *map(row, table.rows), r"\bottomrule"]
    lines += [r"\end{tabular}", *(rf"\par\footnotesize {in_latex(note)}" for note in table.notes)]
    return "\n".join([*lines, r"\end{table}"]) + "\n"
