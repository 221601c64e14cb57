"""Fit a table to the width of a terminal; used by every command.

Shared values move above the table and empty columns are dropped. Then the least important columns leave, by the order
of their entries in `llmtrack/metrics/` (`Shown.keep`), until the table fits. Numbers are never truncated.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.cells import cell_len

from llmtrack import metrics as schema
from llmtrack.host.console import on_one_line
from llmtrack.report.tables.table import DASH, GAP, Table

NARROWEST = 60
"""Narrower terminals show a block per row."""

# Importance of columns that are not metrics or params; columns without an entry here or in `metrics/` leave first.
_KEEP = {"experiment": 90, "status": 55, "start_time": 40, "baseline": 30, "candidate": 31, "differs_in": 20}
# Identity and result of a row, which always stay.
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
# Minimum text width before columns are dropped, and after no more can be.
_TEXT, _NARROW_TEXT = 28, 14


@dataclass(frozen=True)
class FittedTable:
    """A table that fits.

    Attributes:
        table: the remaining columns.
        widths: of the columns.
        left_out: keys of dropped columns.
    """

    table: Table
    widths: tuple[int, ...]
    left_out: tuple[str, ...] = ()


def fit_to_width(table: Table, width: int) -> FittedTable | None:
    """Fit a table to a width, or return None if a block per row is more readable.

    Args:
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
    """Move values shared by all rows above the table, and drop empty columns."""
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
    """Return a table with the given columns, in this order."""

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
    """Return a block of lines per row: its name, then its values."""
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
    """Return the next column to drop: the least important, of several the last."""
    candidates = [(_keep(key), -index) for index, key in enumerate(table.keys) if key not in STAY]
    return -min(candidates)[1] if candidates else None


def _keep(key: str) -> int:
    entry = schema.METRIC_BY_NAME.get(key) or schema.PARAM_BY_NAME.get(key)
    return entry.shown.keep if entry and entry.shown else _KEEP.get(key, 0)


def _widths(table: Table, width: int, text: int) -> tuple[int, ...] | None:
    """Return column widths that fit, wrapping texts down to a minimum; None if impossible."""
    columns = [[on_one_line(row[index]) for row in table.rows] for index in range(len(table.titles))]
    natural = [max(map(cell_len, (title, *cells))) for title, cells in zip(table.titles, columns, strict=True)]
    room = width - GAP * (len(natural) - 1)
    if sum(natural) <= room:
        return tuple(natural)
    # Headings may wrap between words; numbers may not wrap.
    least = [
        max(map(cell_len, (*title.split(), *cells))) if numeric else min(whole, text)
        for title, cells, numeric, whole in zip(table.titles, columns, table.numeric, natural, strict=True)
    ]
    left = room - sum(least)
    if left < 0:
        return None
    # Give names their full width first; long texts share the rest.
    for index in sorted(range(len(least)), key=lambda index: natural[index] - least[index]):
        more = min(natural[index] - least[index], left)
        least[index], left = least[index] + more, left - more
    return tuple(least)
