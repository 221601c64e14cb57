"""Decide which columns of a table a terminal has room for, and how wide each may be: the one place for every command.

What all rows share goes above the table and what no row has goes away. Then the columns that say least leave, by the
order that stands in their entries in `llmtrack/metrics/` (`Shown.keep`), until the table fits. A figure is never cut.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len

from llmtrack import metrics as schema
from llmtrack.host.console import on_one_line
from llmtrack.report.table import DASH, GAP, Table

NARROWEST = 60
"""A terminal that is narrower shows a block for each row."""

# Of columns that only tables have; what has no entry here or in `metrics/` is asked for by nobody and leaves first.
_KEEP = {"experiment": 90, "status": 55, "start_time": 40, "baseline": 30, "candidate": 31, "differs_in": 20}
# What a row is of and what is found of it: without these it says nothing.
STAY = frozenset(
    (
        "scenario",
        "run_id",
        "metric",
        "difference",
        "against_baseline",
        "rule",
        "verdict",
        "change",
        "why",
        "front",
    )
)
# A text is wrapped, as narrow as the first before columns leave for it, and as the second when none can leave.
_TEXT, _NARROW_TEXT = 28, 14


@dataclass(frozen=True)
class FittedTable:
    """A table that fits.

    Attributes:
        table: what is shown of it.
        widths: of its columns.
        left_out: keys of the columns that there is no room for.
    """

    table: Table
    widths: tuple[int, ...]
    left_out: tuple[str, ...] = ()


def fit_to_width(table: Table, width: int) -> FittedTable | None:
    """Return what of a table fits, or None where a block for each row is better to read.

    Args:
        table: all there is.
        width: columns of the terminal.
    """
    if width < NARROWEST:
        return None
    shown, left_out = without_constants(table), list[str]()
    while (widths := _widths(shown, width, _TEXT)) is None:
        leaving = _least(shown)
        if leaving is None:
            widths = _widths(shown, width, _NARROW_TEXT)
            return None if widths is None else FittedTable(shown, widths, tuple(left_out))
        left_out.append(shown.keys[leaving])
        shown = keeping(shown, [index for index in range(len(shown.titles)) if index != leaving])
    order = {key: place for place, key in enumerate(table.keys)}
    return FittedTable(shown, widths, tuple(sorted(left_out, key=order.__getitem__)))


def without_constants(table: Table) -> Table:
    """Return a table of several rows with what they share above it, and without columns that are empty."""
    if len(table.rows) < 2:
        return table
    kept, shared = [], []
    for index, title in enumerate(table.titles):
        values = {row[index] for row in table.rows}
        if len(values) > 1 or not table.keys or (table.keys[index] in STAY and values != {DASH}):
            kept.append(index)
        elif values != {DASH}:
            shared.append(f"{title}: {values.pop()}")
    return replace(keeping(table, kept), conditions=(*table.conditions, *shared))


def keeping(table: Table, indices: Sequence[int]) -> Table:
    """Return a table with some of its columns, in this order."""

    def chosen(cells: Sequence[str]) -> tuple[str, ...]:
        return tuple(cells[index] for index in indices)

    return replace(
        table,
        titles=chosen(table.titles),
        numeric=tuple(table.numeric[index] for index in indices),
        rows=tuple(map(chosen, table.rows)),
        keys=chosen(table.keys) if table.keys else (),
    )


def blocks(table: Table, width: int) -> list[str]:
    """Return a block of lines for each row: its name, and below it what there is of it."""
    head = next((index for index, key in enumerate(table.keys) if key in ("scenario", "run_id")), 0)
    lines = []
    for row in table.rows:
        cells = list(map(on_one_line, row))
        lines += ["", *_wrapped(cells[head], width, "  ")]
        named = [(title, cell) for title, cell in zip(table.titles, cells, strict=True) if cell not in ("", DASH)]
        room = min(max((cell_len(title) for title, _ in named), default=0), width // 3)
        for title, cell in named:
            if cell is cells[head]:
                continue
            line = f"  {title:<{room}}  {cell}"
            lines += (
                [line]
                if cell_len(line) <= width
                else [*_wrapped(f"  {title}", width, "  "), *_wrapped(f"    {cell}", width, "    ")]
            )
    return lines


def _wrapped(text: str, width: int, indent: str) -> list[str]:
    return textwrap.wrap(text, max(width, 12), subsequent_indent=indent, break_on_hyphens=False) or [text]


def _least(table: Table) -> int | None:
    """Return the column that leaves next: the one that says least, of several the last."""
    candidates = [(_keep(key), -index) for index, key in enumerate(table.keys) if key not in STAY]
    return -min(candidates)[1] if candidates else None


def _keep(key: str) -> int:
    entry = schema.METRIC_BY_NAME.get(key) or schema.PARAM_BY_NAME.get(key)
    return entry.shown.keep if entry and entry.shown else _KEEP.get(key, 0)


def _widths(table: Table, width: int, text: int) -> tuple[int, ...] | None:
    """Return how wide each column is so that all fit, texts being wrapped down to a width; None if they do not."""
    columns = [[on_one_line(row[index]) for row in table.rows] for index in range(len(table.titles))]
    natural = [max(map(cell_len, (title, *cells))) for title, cells in zip(table.titles, columns, strict=True)]
    room = width - GAP * (len(natural) - 1)
    if sum(natural) <= room:
        return tuple(natural)
    # A heading may be wrapped between its words, a figure nowhere.
    least = [
        max(map(cell_len, (*title.split(), *cells))) if numeric else min(whole, text)
        for title, cells, numeric, whole in zip(table.titles, columns, table.numeric, natural, strict=True)
    ]
    left = room - sum(least)
    if left < 0:
        return None
    # Names are whole before long texts get what remains.
    for index in sorted(range(len(least)), key=lambda index: natural[index] - least[index]):
        more = min(natural[index] - least[index], left)
        least[index], left = least[index] + more, left - more
    return tuple(least)
