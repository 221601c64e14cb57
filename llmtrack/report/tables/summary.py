"""The summary table: tracked runs side by side, each compared with the baseline of its study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from llmtrack import metrics as schema
from llmtrack.decide.comparability import relative_perplexity, why_not_comparable
from llmtrack.decide.differences import Difference, difference_text, ratio_text
from llmtrack.decide.noise_floor import noise_floor_lines, with_context
from llmtrack.decide.verdicts import difference_between, is_disturbed
from llmtrack.experiment import OwnTable
from llmtrack.report.tables.table import DASH, Column, Table, condition_columns, metric_columns, shared_conditions
from llmtrack.tracked.frames import frame_of
from llmtrack.tracked.run import FAILED, KILLED, Run
from llmtrack.tracked.runs import Baselines, Runs

OTHER_WORK = "other work"
"""Cell of a run that did different work from its baseline."""
TASKS = {"generate": "timing", "perplexity": "quality", "train": "training"}
"""Title of a task's table."""
OTHER_RUNS = "other runs"


def compared_by_default() -> list[str]:
    """Return the metrics compared with the baseline by default."""
    return [metric.name for metric in schema.in_column_order(schema.METRICS) if metric.shown and metric.shown.compared]


def summary_table(runs: Runs, among: Runs | None = None, own: OwnTable | None = None) -> Table:
    """Lay out tracked runs as one table.

    Shared conditions go above the table and empty columns are left out. The last column compares each run with the
    baseline of its study; failure reasons are notes below.

    Args:
        among: where to look for the baselines, if not among these.
        own: columns of the table; None for all that the runs have.
    """
    runs = with_context(runs, among)
    shared, differing = shared_conditions(runs, within_experiments=True)
    keys = ("experiment", "scenario") if len({run.experiment for run in runs}) > 1 else ("scenario",)
    names = [Column(key, key, str, False) for key in keys]
    metrics = [column for column in metric_columns() if (column.key in own.columns if own else not column.quiet)]
    metrics = [column for column in metrics if any(run.get(column.key) for run in runs)]
    conditions = [column for column in differing if not own or column.key in own.columns]
    columns = [*names, *conditions, *metrics]
    compared = own.compared if own else None
    baselines = Baselines(runs if among is None else with_context(among))
    rows = [
        (
            *(column.cell_of(run) + _spread(column, run) for column in columns),
            change_from_baseline(run, baselines, compared),
        )
        for run in runs
    ]
    return Table(
        conditions=shared,
        titles=(*(column.title for column in columns), "against baseline"),
        numeric=(*(column.is_number for column in columns), False),
        rows=tuple(rows),
        run_ids=tuple(run.run_id for run in runs),
        notes=notes(runs, baselines),
        keys=(*(column.key for column in columns), "against_baseline"),
    )


def with_noise_floor(table: Table, runs: Runs) -> Table:
    """Add the noise floor to a standalone table; a suite reports it once for all of its tables."""
    return replace(table, notes=(*table.notes, *noise_floor_lines(runs, *compared_by_default())))


def notes(runs: Sequence[Run], baselines: Baselines | None = None) -> tuple[str, ...]:
    """Explain runs without usable values; a reason shared by many is given once."""
    names_by_note: dict[tuple[str, str], list[str]] = {}
    for run in runs:
        if note := _note(run, baselines.of(run) if baselines else None):
            may_be_shared = run.status == FAILED and run.reason
            names_by_note.setdefault((note, "" if may_be_shared else run.run_id), []).append(run.name)
    return tuple(f"{', '.join(names)} {note}" for (note, _), names in names_by_note.items())


def _note(run: Run, base: Run | None) -> str:
    """Describe why a run's values are unusable or poor; empty if they are not."""
    if run.is_same_as:
        return f"was not measured again: {run.text('reason')}"
    if not run.is_finished:
        return run.state
    ratio, other = relative_perplexity(base, run)
    if ratio is not None and ratio > schema.SPIKE:
        return f"loses quality: its perplexity is {ratio_text(ratio)} the {other}'s"
    return ""


def change_from_baseline(run: Run, baselines: Baselines, compared: Sequence[str] | None = None) -> str:
    """Describe how a run differs from its study's baseline in the common metrics, and whether it is in doubt."""
    change = _change_from_baseline(run, baselines, compared)
    return f"{change} (in doubt: disturbed)" if run.is_finished and is_disturbed(run) else change


def _change_from_baseline(run: Run, baselines: Baselines, compared: Sequence[str] | None) -> str:
    if run.is_same_as:
        return f"= {run.text('same_as')}"
    if not run.is_finished:
        status, failure = run.status or DASH, run.text("failure")
        unexplained = status in (FAILED, KILLED) and not run.reason
        reason = failure or ("no reason was tracked" if unexplained else "")
        return f"{status} ({reason})" if reason else status
    if run.baseline:
        return "baseline"
    base = baselines.of(run)
    if base is None:
        return DASH
    # Different work takes different time: the change says nothing about how the model is run.
    same_work = run.workload_id == base.workload_id
    parts = []
    for key in compared_by_default() if compared is None else compared:
        entry = schema.metric(key)
        shown = entry.shown or schema.Shown(key)
        # Quality depends on text and tokens, which may differ within a study.
        if entry.of_text and why_not_comparable(base, run, key):
            continue
        if "work" in entry.needs and not same_work:
            continue
        # Equal work was checked above.
        difference = difference_between(base, run, key, across_work=True)
        if difference.ratio is not None:
            parts.append(f"{difference_text(difference)} {shown.change or shown.title}{_noise(difference)}")
    return ", ".join(parts) or (DASH if same_work else OTHER_WORK)


def _spread(column: Column, run: Run) -> str:
    """Format half of the 95 % interval relative to the median, such as ` ±2%`; empty without one."""
    if not column.spread:
        return ""
    spread, value = run.spread(column.key), run.number(column.key)
    if spread is None or spread.n < 2 or not value:
        return ""
    return f" ±{(spread.high - spread.low) / 2 / value:.0%}"


def _noise(difference: Difference) -> str:
    """Describe why a ratio is not a significant difference; empty if it is."""
    if difference.verdict == "same" and difference.repeated:
        return " (no significant difference)"
    if difference.verdict == "unknown":
        return f" (inconclusive: {'too few repeats' if difference.repeated else 'one value each'})"
    return ""


def to_csv(runs: Runs) -> str:
    """Render the numbers behind the table as CSV: unrounded, with spreads, one row per run."""
    names = ["study_id", "experiment", "scenario", "run_id", "status", "outcome", "reason", "baseline"]
    names += [column.key for column in (*condition_columns(), *metric_columns())]
    names += sorted({name for run in runs for name in run.metrics if name.startswith(schema.SPREAD_PREFIX)})
    table = frame_of(runs)
    known = table[[name for name in dict.fromkeys(names) if name in table.columns]]
    return str(known.dropna(axis="columns", how="all").to_csv(index=False))


def split_by_task(runs: Runs) -> dict[str, Runs]:
    """Group runs by task title, in the order of `TASKS`; unknown tasks come last."""
    groups: dict[str, list[Run]] = {title: [] for title in (*TASKS.values(), OTHER_RUNS)}
    for run in runs:
        groups[TASKS.get(run.text("task"), OTHER_RUNS)].append(run)
    return {title: Runs(group) for title, group in groups.items() if group}


def tables_by_task(runs: Runs) -> Mapping[str, Table]:
    """Lay out a table per task, by title; baselines are looked up among all runs."""
    return {title: summary_table(group, among=runs) for title, group in split_by_task(runs).items()}
