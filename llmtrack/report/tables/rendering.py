"""Render a table: as text, CSV, JSON, Markdown, HTML or LaTeX, or printed to a terminal, fitted to its width.

To fit, values shared by all rows move above the table and empty columns are dropped. Then the least important columns
leave, by the order of their entries in `llmtrack/metrics/` (`Shown.priority`). Numbers are never truncated.
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Console
from rich.measure import Measurement

from llmtrack import metrics as schema
from llmtrack.host.console import neutral_console, neutral_json, on_one_line
from llmtrack.host.formatting import plural
from llmtrack.report.escape import in_html, in_latex, in_markdown, plain
from llmtrack.report.tables.table import DASH, GAP, Table
from llmtrack.report.terminal import print_lines, width_of

if TYPE_CHECKING:
    from rich.table import Table as RichTable

MORE = "--wide, or --columns NAME,NAME"
"""Options that show the columns dropped for lack of room."""
# Maximum number of dropped columns to name.
_MOST_NAMED = 6
NARROWEST = 60
"""Narrower terminals show a block per row."""
STAY = frozenset(
    ["scenario", "run_id", "metric", "difference", "against_baseline", "rule", "verdict", "change", "why", "front"]
)
"""Identity and result of a row, which are never dropped."""
# Importance of columns that are not metrics or params; columns without an entry here or in `metrics/` leave first.
_KEEP = {"experiment": 90, "status": 55, "start_time": 40, "baseline": 30, "candidate": 31, "differs_in": 20}
# Minimum text width before columns are dropped, and after no more can be.
_TEXT, _NARROW_TEXT = 28, 14


def render(table: Table, style: str, title: str = "") -> str:
    """Render a table as text.

    Args:
        style: `table`, `csv`, `json`, `markdown`, `html` or `latex`. `csv` and `json` contain the cells as shown; the
            others also have the conditions above and the notes below.
        title: shown by `table`, `html` and `latex`.
    """
    writers = {"csv": _csv, "json": _json, "markdown": to_markdown}
    if style in writers:
        return writers[style](table)
    return {"table": _text, "html": _html, "latex": _latex}[style](table, title)


def print_table(
    console: Console,
    title: str,
    table: Table,
    reading: Sequence[str] = (),
    wide: bool = False,
    more: str = MORE,
) -> None:
    """Print conditions, table and reading; on a terminal, as many columns as fit.

    Args:
        reading: lines below the table.
        wide: every column regardless of the width, as in a pipe or file.
        more: how to see the dropped columns.
    """
    complete = wide or width_of(console) is None
    fitted = None if complete else fit_to_width(table, console.width)
    shown = fitted.table if fitted else table if complete else without_constants(table)
    console.print()
    if title:
        console.print(plain(title, "bold"))
    if shown.conditions:
        console.print(plain(" · ".join(shown.conditions)))
    if complete:
        drawn = to_rich(table)
        # The terminal wraps a table that is too wide, without losing anything.
        natural = Measurement.get(console, console.options.update(max_width=10_000), drawn).maximum
        wider = neutral_console(
            file=console.file, width=max(console.width, natural), force_terminal=console.is_terminal
        )
        wider.print(drawn)
    elif fitted:
        console.print(to_rich(shown, widths=fitted.widths))
        if fitted.dropped:
            console.print(plain(f"+{plural(len(fitted.dropped), 'column')}: {more}", "dim"))
            named = fitted.dropped[:_MOST_NAMED]
            others = len(fitted.dropped) - len(named)
            console.print(plain(f"({', '.join(named)}{f' and {others} more' if others else ''})", "dim"))
    else:
        for line in to_blocks(shown, console.width):
            console.print(plain(line), no_wrap=True, overflow="ignore", crop=False)
    print_lines(console, (*table.notes, *reading))
    console.print()


def to_rich(table: Table, widths: Sequence[int] | None = None) -> RichTable:
    """Build the table for a terminal; without `widths`, columns have their natural width."""
    from rich import box
    from rich.table import Table as RichTable

    drawn = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)
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
    """Render a table as Markdown after its conditions; scenarios link to their runs if links are given."""
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


def to_blocks(table: Table, width: int) -> list[str]:
    """Render a block of lines per row: its name, then its values."""
    head = next((index for index, key in enumerate(table.keys) if key in ("scenario", "run_id")), 0)
    lines = []
    for row in table.rows:
        cells = list(map(on_one_line, row))
        lines += ["", *_wrap(cells[head], width, "  ")]
        filled = [(title, cell) for title, cell in zip(table.titles, cells, strict=True) if cell not in ("", DASH)]
        title_width = min(max((cell_len(title) for title, _ in filled), default=0), width // 3)
        for title, cell in filled:
            if cell is cells[head]:
                continue
            line = f"  {title:<{title_width}}  {cell}"
            lines += (
                [line]
                if cell_len(line) <= width
                else [*_wrap(f"  {title}", width, "  "), *_wrap(f"    {cell}", width, "    ")]
            )
    return lines


@dataclass(frozen=True)
class FittedTable:
    """The remaining columns of a table with their widths, and the keys of the dropped ones."""

    table: Table
    widths: tuple[int, ...]
    dropped: tuple[str, ...] = ()


def fit_to_width(table: Table, width: int) -> FittedTable | None:
    """Fit a table to the columns of a terminal; None if a block per row is more readable."""
    if width < NARROWEST:
        return None
    shown, dropped = without_constants(table), list[str]()
    # Measured once: up to a hundred columns are dropped one by one.
    columns = [_measured(shown, index) for index in range(len(shown.titles))]
    kept = list(range(len(columns)))
    while (widths := _widths([columns[index] for index in kept], width, _TEXT)) is None:
        least = _least_important(shown, kept)
        if least is None:
            widths = _widths([columns[index] for index in kept], width, _NARROW_TEXT)
            return None if widths is None else FittedTable(_select(shown, kept), widths, tuple(dropped))
        dropped.append(shown.keys[least])
        kept.remove(least)
    return FittedTable(_select(shown, kept), widths, tuple(sorted(dropped, key=table.keys.index)))


def without_constants(table: Table) -> Table:
    """Move values shared by all rows above the table, and drop empty columns."""
    if len(table.rows) < 2:
        return table
    remaining, shared = [], []
    for index, title in enumerate(table.titles):
        values = {row[index] for row in table.rows}
        if len(values) > 1 or not table.keys or (table.keys[index] in STAY and values != {DASH}):
            remaining.append(index)
        elif values != {DASH}:
            shared.append(f"{title}: {values.pop()}")
    return replace(_select(table, remaining), conditions=(*table.conditions, *shared))


def _text(table: Table, title: str) -> str:
    buffer = io.StringIO()
    # Use the table's natural width: a terminal wraps it without losing anything.
    console = neutral_console(file=buffer, width=10_000, highlight=False, force_terminal=False)
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
    return neutral_json(rows, indent=1) + "\n"


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
    r"""Render a `table` environment; requires `\usepackage{booktabs}`."""

    def row(cells: tuple[str, ...]) -> str:
        return " & ".join(map(in_latex, cells)) + r" \\"

    caption = " · ".join(filter(None, [title, *table.conditions]))
    lines = [r"\begin{table}", r"\centering"]
    lines += [rf"\caption{{{in_latex(caption)}}}"] if caption else []
    lines += [rf"\begin{{tabular}}{{{''.join('r' if numeric else 'l' for numeric in table.numeric)}}}"]
    lines += [r"\toprule", row(table.titles), r"\midrule", *map(row, table.rows), r"\bottomrule"]
    lines += [r"\end{tabular}", *(rf"\par\footnotesize {in_latex(note)}" for note in table.notes)]
    return "\n".join([*lines, r"\end{table}"]) + "\n"


def _select(table: Table, indices: Sequence[int]) -> Table:
    """Return a table with the given columns, in this order."""
    return replace(
        table,
        titles=tuple(table.titles[index] for index in indices),
        numeric=tuple(table.numeric[index] for index in indices),
        rows=tuple(tuple(row[index] for index in indices) for row in table.rows),
        keys=tuple(table.keys[index] for index in indices) if table.keys else (),
    )


def _least_important(table: Table, kept: Sequence[int]) -> int | None:
    """Return the next of the kept columns to drop: the least important, of several the last."""
    candidates = [
        (_importance(table.keys[index]), -index) for index in kept if table.keys and table.keys[index] not in STAY
    ]
    return -min(candidates)[1] if candidates else None


def _importance(key: str) -> int:
    entry = schema.METRIC_BY_NAME.get(key) or schema.PARAM_BY_NAME.get(key)
    return entry.shown.priority if entry and entry.shown else _KEEP.get(key, 0)


def _measured(table: Table, index: int) -> tuple[int, int | None]:
    """Return a column's natural width, and that of a number with its heading wrapped between words, None for a text."""
    title, cells = table.titles[index], max((cell_len(on_one_line(row[index])) for row in table.rows), default=0)
    heading = max(map(cell_len, title.split()), default=0)
    return max(cell_len(title), cells), max(heading, cells) if table.numeric[index] else None


def _widths(columns: Sequence[tuple[int, int | None]], width: int, text: int) -> tuple[int, ...] | None:
    """Return widths of measured columns that fit a width, wrapping texts down to a minimum; None if impossible."""
    natural = [full for full, _ in columns]
    room = width - GAP * (len(natural) - 1)
    if sum(natural) <= room:
        return tuple(natural)
    # Numbers may not wrap.
    least = [min(full, text) if wrapped is None else wrapped for full, wrapped in columns]
    spare = room - sum(least)
    if spare < 0:
        return None
    # Give names their full width first; long texts share the rest.
    for index in sorted(range(len(least)), key=lambda index: natural[index] - least[index]):
        added = min(natural[index] - least[index], spare)
        least[index], spare = least[index] + added, spare - added
    return tuple(least)


def _wrap(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, max(width, 12), subsequent_indent=indent, break_on_hyphens=False) or [text]
