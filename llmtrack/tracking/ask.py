"""Ask tracked runs (rows of `llmtrack.runs`) for values of which any may be missing, or the whole column.

A run in progress has no outcome, a killed one no metrics, a foreign one no tags of ours: their values are `<NA>`, whose
truth is an error. So nothing compares such a value by itself; it asks here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from llmtrack.outcome import CUT_SHORT, REPLACED
from llmtrack.words import plural

if TYPE_CHECKING:
    import pandas as pd

STATUSES = FINISHED, FAILED, KILLED, RUNNING, SCHEDULED = (
    "FINISHED",
    "FAILED",
    "KILLED",
    "RUNNING",
    "SCHEDULED",
)

# Status of a run that is not finished to what is said of it: one, several.
_STATES = {
    FAILED: ("failed", "failed"),
    KILLED: ("was killed", "were killed"),
    RUNNING: ("is still running", "are still running"),
    SCHEDULED: ("has not begun", "have not begun"),
}


NAMES = ("scenario", "run_name", "run_id")
"""What a run is called by: the first that it has."""


def missing(value: Any) -> bool:
    """Return whether a value is None, NaN or `<NA>`."""
    if value is None or isinstance(value, (str, bool, int)):
        return value is None
    if isinstance(value, float):
        return value != value
    import pandas as pd

    return bool(pd.isna(value))


def has(run: pd.Series, key: str) -> bool:
    """Return whether a run has a value."""
    return not missing(run.get(key))


def text(run: pd.Series, key: str) -> str:
    """Return a value as text on one line; empty if it is missing."""
    value = run.get(key)
    return "" if missing(value) else " ".join(str(value).split())


def lines(run: pd.Series, key: str) -> tuple[str, ...]:
    """Return a value's lines that are not blank; none if it is missing."""
    value = run.get(key)
    return () if missing(value) else tuple(filter(None, map(str.strip, str(value).splitlines())))


def is_replaced(run: pd.Series) -> bool:
    """Return whether a run was disturbed so that its scenario is measured once more: it counts for nothing beside that."""
    return any(REPLACED in line for line in lines(run, "warnings"))


def is_cut_short(run: pd.Series) -> bool:
    """Return whether a run was interrupted before all of its rounds were made."""
    return any(line.endswith(CUT_SHORT) for line in lines(run, "warnings"))


def name(run: pd.Series) -> str:
    """Return what a run is called: its scenario or, of a run that has none, its own name or id."""
    return next(filter(None, (text(run, key) for key in NAMES)), "")


def number(run: pd.Series, key: str) -> float | None:
    """Return a value as a number, or None if it is missing or not finite: no figure can be set against infinity."""
    value: Any = run.get(key)
    found = None if missing(value) else float(value)
    return found if found is not None and math.isfinite(found) else None


def is_true(run: pd.Series, key: str) -> bool:
    """Return whether a value is there and true."""
    value = run.get(key)
    return not missing(value) and bool(value)


def equal(one: pd.Series | Mapping[Any, Any], other: pd.Series | Mapping[Any, Any], key: str) -> bool:
    """Return whether two runs agree in a value; to have none on both sides is to agree."""
    left, right = one.get(key), other.get(key)
    if missing(left) or missing(right):
        return missing(left) and missing(right)
    return bool(left == right)


def where(runs: pd.DataFrame, key: str, value: Any) -> pd.Series:
    """Return which runs have this value in a column: plain booleans, False where it is missing."""
    import pandas as pd

    if key not in runs.columns or missing(value):
        return pd.Series(False, index=runs.index)
    return (runs[key] == value).fillna(False).astype(bool)


def marked(runs: pd.DataFrame, key: str) -> pd.Series:
    """Return where a column of booleans is true: plain booleans, False where it is missing."""
    return where(runs, key, True)


def has_value(runs: pd.DataFrame, key: str) -> pd.Series:
    """Return which runs have a value in a column."""
    import pandas as pd

    return runs[key].notna() if key in runs.columns else pd.Series(False, index=runs.index)


def present(runs: pd.DataFrame, key: str) -> pd.Series:
    """Return which runs have a value in a column; infinity is none."""
    found = has_value(runs, key)
    return found & ~runs[key].isin([math.inf, -math.inf]) if key in runs.columns else found


def finished(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the runs that came to their end."""
    return runs[where(runs, "status", FINISHED)]


def is_finished(run: pd.Series) -> bool:
    """Return whether a run came to its end."""
    return text(run, "status") == FINISHED


def state(run: pd.Series) -> str:
    """Say how a run that is not finished stands: `failed: out of memory`, `is still running`."""
    status = text(run, "status")
    words = _STATES.get(status, (f"is {status or 'of no known status'}",))[0]
    reason = text(run, "reason")
    if not reason and status == FAILED:
        reason = "no reason was tracked"
    return f"{words}: {reason}" if reason else words


def rows(runs: pd.DataFrame, *names: str) -> list[pd.Series]:
    """Return each run with some of its columns, those that there are: pandas converts every column of a table for its rows."""
    return [run for _, run in runs[[name for name in names if name in runs.columns]].iterrows()]


def unfinished(runs: pd.DataFrame, experiments: bool = False) -> list[str]:
    """Name the runs that have no figures since they are not finished, a line for each state.

    Args:
        runs: tracked runs.
        experiments: name the experiment of each, too.
    """
    named: dict[str, list[str]] = {}
    for run in rows(runs, "status", "experiment", *NAMES):
        if not is_finished(run):
            called = f"{name(run)} ({text(run, 'experiment')})" if experiments else name(run)
            named.setdefault(text(run, "status"), []).append(called)
    lines = []
    for status, names in named.items():
        one, several = _STATES.get(status, (f"is {status}", f"are {status}"))
        words = one if len(names) == 1 else several
        lines.append(f"{len(names)} of {plural(len(runs), 'scenario')} {words}: {', '.join(names)}.")
    return lines
