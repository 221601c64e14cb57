"""Plot tracked runs: medians with 95 % intervals as error bars."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from llmtrack import metrics as schema
from llmtrack.host.formatting import significant
from llmtrack.report.escape import as_label, in_plot
from llmtrack.report.plots.drawing import BASELINE, COLOR, LINE_COLORS, drawing, label_points, new_figure
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Maximum characters per line of a title, and of a note below the plot.
_TITLE, _NOTE = 78, 118
_INTERVALS = "Points and bars are medians over repeats; whiskers are 95 % intervals of the median."
_SINGLE = "A mark without whiskers is a single repeat."
_BASELINE = "Amber: the baseline."
# Minimum relative range of an axis, so that noise does not look like a difference.
LEAST_SPAN = 0.05
# Figures from which on ticks have separators.
_LARGE = 10_000


def line_plot(
    runs: Runs,
    x: str,
    y: str,
    *,
    title: str,
    x_label: str,
    y_label: str = "",
    log_x: bool = False,
    group: str | None = None,
) -> Figure:
    """Plot a metric against a param with 95 % intervals; one line per value of `group`.

    `y_label` defaults to the metric's name and unit.
    """
    figure, axes = canvas(title, x_label, y_label or axis_label(y))
    points = runs.measured(y).by(x)
    lines: dict[str, list[Run]] = {}
    for run in points:
        lines.setdefault(run.text(group) if group else "", []).append(run)
    for (name, line), color in zip(lines.items(), cycle(LINE_COLORS)):
        axes.errorbar(
            [float(run.get(x)) for run in line],
            [run.metrics[y] for run in line],
            yerr=_error_bars(line, y),
            marker="o",
            color=color,
            label=as_label(name),
        )
    if group and len(points):
        axes.legend(title=as_label(group))
    add_note(figure, *_whisker_notes(points, y))
    xs = sorted({float(run.get(x)) for run in points})
    if log_x:
        axes.set_xscale("log", base=2)
    axes.set_xticks(xs, [f"{value:g}" for value in xs])
    axes.minorticks_off()
    _from_zero(axes)
    separate_thousands(axes)
    return figure


def bar_plot(runs: Runs, label: str, y: str, *, title: str, y_label: str = "") -> Figure:
    """Draw a bar per run with its 95 % interval and value; the baseline has its own color.

    `y_label` defaults to the metric's name and unit.
    """
    figure, axes = canvas(title, label, y_label or axis_label(y))
    bars = runs.measured(y)
    names = [as_label(run.text(label)) for run in bars]
    values = [float(run.get(y)) for run in bars]
    colors = [BASELINE if run.baseline else COLOR for run in bars]
    # By position, because bars of the same name would overlap.
    drawn = axes.bar(range(len(bars)), values, yerr=_error_bars(bars, y), color=colors, width=0.6)
    axes.set_xticks(range(len(bars)), names)
    axes.bar_label(drawn, labels=[significant(value, 3) for value in values], padding=3, fontsize=9)
    axes.margins(y=0.15)
    separate_thousands(axes)
    if max((len(name) for name in names), default=0) > 12:
        axes.tick_params(axis="x", labelrotation=20)
    add_note(figure, *_whisker_notes(bars, y), *_baseline_note(bars))
    return figure


def scatter_plot(runs: Runs, x: str, y: str, *, title: str, x_label: str, y_label: str) -> Figure:
    """Plot a metric against another with a labelled point per run; the baseline has its own color."""
    figure, axes = canvas(title, x_label, y_label)
    points = runs.measured(y).where(lambda run: run.has(x)).by(y)
    colors = [BASELINE if run.baseline else COLOR for run in points]
    xs, ys = points.values(x), points.values(y)
    axes.scatter(xs, ys, color=colors, zorder=3)
    axes.margins(x=0.12, y=0.12)
    widen(axes, ys)
    separate_thousands(axes)
    add_note(figure, *_baseline_note(points))
    label_points(figure, axes, xs, ys, points.scenarios)
    return figure


def step_plot(values: Sequence[float], *, title: str, x_label: str, y_label: str, from_zero: bool = False) -> Figure:
    """Plot a value per step, such as the loss of each batch."""
    figure, axes = canvas(title, x_label, y_label)
    marker = "o" if len(values) <= 100 else ""
    axes.plot(range(1, len(values) + 1), values, marker=marker, color=COLOR)
    if from_zero:
        _from_zero(axes)
    return figure


def curves_plot(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, title: str, x_label: str, y_label: str
) -> Figure:
    """Plot named curves over their steps; short ones get markers."""
    figure, axes = canvas(title, x_label, y_label)
    for (name, (xs, ys)), color in zip(curves.items(), cycle(LINE_COLORS)):
        few = len(xs) <= 40
        axes.plot(xs, ys, marker="o" if few else "", color=color, linewidth=2 if few else 1, label=as_label(name))
    axes.legend()
    return figure


def canvas(title: str, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """Create an empty plot in the common style."""
    with drawing():
        figure = new_figure(figsize=(7, 4.2), layout="constrained")
        axes = figure.subplots()
        axes.set_title(in_plot(textwrap.fill(title, _TITLE)), loc="left")
        axes.set_xlabel(in_plot(x_label))
        axes.set_ylabel(in_plot(y_label))
    return figure, axes


def add_note(figure: Figure, *sentences: str) -> None:
    """Append an explanation of marks below a plot."""
    text = " ".join(filter(None, (figure.get_supxlabel().replace("\n", " "), *map(in_plot, sentences))))
    if text:
        figure.supxlabel(textwrap.fill(text, _NOTE), x=0.01, ha="left", fontsize=7.5, color="#5a6475")


def axis_label(metric: str) -> str:
    """Format a metric's name and unit: `total latency (s)`, `decode throughput (tokens/s)`."""
    entry = schema.metric(metric)
    name = metric.replace("tokens_per_sec", "throughput")
    for suffix in ("_s", "_ms", "_mib"):
        name = name.removesuffix(suffix)
    return name.replace("_", " ") + ("" if entry.unit == "-" else f" ({entry.unit})")


def widen(axes: Axes, values: Sequence[float]) -> None:
    """Extend an axis to a minimum relative range, so that tiny differences look tiny."""
    if not values or min(values) <= 0:
        return
    low, high = min(values), max(values)
    if high / low - 1 < LEAST_SPAN:
        middle = (low + high) / 2
        axes.set_ylim(middle * (1 - LEAST_SPAN / 2), middle * (1 + LEAST_SPAN / 2))


def separate_thousands(axes: Axes) -> None:
    """Write the ticks of an axis of large figures as `40,000`."""
    for axis, most in ((axes.xaxis, axes.dataLim.x1), (axes.yaxis, axes.dataLim.y1)):
        if _LARGE <= most < math.inf:
            axis.set_major_formatter(lambda value, place: f"{value:,.0f}")


def _from_zero(axes: Axes) -> None:
    """Start the y axis at 0, with room above the highest mark."""
    axes.set_ylim(0, 1.06 * axes.dataLim.y1 if axes.dataLim.y1 > 0 else None)


def _whisker_notes(points: Sequence[Run], y: str) -> tuple[str, ...]:
    """Explain the whiskers and their absence; empty if there are none."""
    if not any(length > 0 for lengths in _error_bars(points, y) or () for length in lengths):
        return ()
    spreads = [run.spread(y) for run in points]
    return (_INTERVALS, *([_SINGLE] if any(spread and spread.n < 2 for spread in spreads) else []))


def _baseline_note(points: Sequence[Run]) -> tuple[str, ...]:
    return (_BASELINE,) if any(run.baseline for run in points) else ()


def _error_bars(points: Sequence[Run], y: str) -> list[list[float]] | None:
    """Return the lengths of the whiskers below and above, or None if there are none.

    For a single repeat they are NaN, which draws none.
    """
    values = [(run.number(y) or 0.0, run.spread(y)) for run in points]
    if not any(spread and spread.n > 1 for _, spread in values):
        return None
    whiskers = [
        (max(0.0, middle - spread.low), max(0.0, spread.high - middle))
        if spread and spread.n > 1
        else (math.nan, math.nan)
        for middle, spread in values
    ]
    return [list(lengths) for lengths in zip(*whiskers, strict=True)]
