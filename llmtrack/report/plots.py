"""Plots of tracked runs: medians with their 95 % intervals as error bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING

from llmtrack import metrics as schema
from llmtrack.report.drawing import new_figure
from llmtrack.report.escape import as_label, in_plot
from llmtrack.report.labels import label_points
from llmtrack.tracking import ask

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOR = "#2563a8"
OTHER = "#9aa5b1"
LINE_COLORS = (COLOR, "#c2571a", "#3a7d44", "#7b4ea3")


def measured(runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the runs that finished and have a metric."""
    return runs[ask.where(runs, "status", ask.FINISHED) & ask.present(runs, metric)]


def line_plot(
    runs: pd.DataFrame,
    x: str,
    y: str,
    *,
    title: str,
    x_label: str,
    y_label: str = "",
    log_x: bool = False,
    group: str | None = None,
) -> Figure:
    """Draw a metric against a param, each point with its 95 % interval; a line for each value of `group`.

    Where no `y_label` is given, it is the metric's unit.
    """
    figure, axes = canvas(title, x_label, y_label or schema.metric(y).unit)
    points = measured(runs, y).sort_values(x)
    lines = points.groupby(group, sort=False) if group else [(None, points)]
    for (name, line), color in zip(lines, cycle(LINE_COLORS)):
        axes.errorbar(
            line[x].astype(float).to_numpy(),
            line[y].to_numpy(),
            yerr=_error_bars(line, y),
            marker="o",
            capsize=4,
            color=color,
            linewidth=1.5,
            label=as_label(str(name)),
        )
    if group and len(points):
        axes.legend(frameon=False)
    xs = sorted(set(points[x].astype(float)))
    if log_x:
        axes.set_xscale("log", base=2)
    axes.set_xticks(xs, [f"{value:g}" for value in xs])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    return figure


def bar_plot(runs: pd.DataFrame, label: str, y: str, *, title: str, y_label: str = "") -> Figure:
    """Draw a bar per run, with its 95 % interval and its value; the baseline is grey.

    Where no `y_label` is given, it is the metric's unit.
    """
    figure, axes = canvas(title, "", y_label or schema.metric(y).unit)
    bars = measured(runs, y)
    names = [as_label(str(name)) for name in bars[label]]
    colors = [OTHER if base else COLOR for base in ask.marked(bars, "baseline")]
    # By position: bars of one name would stand on top of each other.
    drawn = axes.bar(
        range(len(bars)), bars[y].to_numpy(), yerr=_error_bars(bars, y), capsize=4, color=colors, width=0.6
    )
    axes.set_xticks(range(len(bars)), names)
    axes.bar_label(drawn, labels=[f"{value:.3g}" for value in bars[y]], padding=3, fontsize=9)
    axes.margins(y=0.15)
    if max((len(name) for name in names), default=0) > 12:
        axes.tick_params(axis="x", labelrotation=20)
    return figure


def scatter_plot(runs: pd.DataFrame, x: str, y: str, *, title: str, x_label: str, y_label: str) -> Figure:
    """Draw a metric against another, a named point per run; the baseline is grey."""
    figure, axes = canvas(title, x_label, y_label)
    points = measured(runs, y)
    points = points[points[x].notna()].sort_values(y)
    colors = [OTHER if base else COLOR for base in ask.marked(points, "baseline")]
    xs, ys = points[x].astype(float).tolist(), points[y].astype(float).tolist()
    axes.scatter(xs, ys, color=colors, zorder=3)
    axes.margins(x=0.12, y=0.12)
    label_points(figure, axes, xs, ys, [str(name) for name in points["scenario"]])
    return figure


def step_plot(values: Sequence[float], *, title: str, x_label: str, y_label: str) -> Figure:
    """Draw a value per step, such as the loss of each batch."""
    figure, axes = canvas(title, x_label, y_label)
    marker = "o" if len(values) <= 100 else ""
    axes.plot(range(1, len(values) + 1), values, marker=marker, color=COLOR, linewidth=1.5)
    return figure


def curves_plot(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float]]], *, title: str, x_label: str, y_label: str
) -> Figure:
    """Draw values against their steps, a line for each name; one with few points has them marked."""
    figure, axes = canvas(title, x_label, y_label)
    for (name, (xs, ys)), color in zip(curves.items(), cycle(LINE_COLORS)):
        few = len(xs) <= 40
        axes.plot(
            xs, ys, marker="o" if few else "", color=color, linewidth=2 if few else 1, label=as_label(name)
        )
    axes.legend(frameon=False)
    return figure


def canvas(title: str, x_label: str, y_label: str) -> tuple[Figure, Axes]:
    """Return an empty plot in the style of all others."""
    figure = new_figure(figsize=(7, 4.2), dpi=130, layout="constrained")
    axes = figure.subplots()
    axes.set_title(in_plot(title), fontsize=11, loc="left")
    axes.set_xlabel(in_plot(x_label))
    axes.set_ylabel(in_plot(y_label))
    axes.grid(axis="y", color="#e3e6ea", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    return figure, axes


def _error_bars(points: pd.DataFrame, y: str) -> list[list[float]] | None:
    low, high = schema.spread_key(y, "ci_low"), schema.spread_key(y, "ci_high")
    if low not in points.columns or high not in points.columns:
        return None
    middle = points[y]
    return [
        (middle - points[low]).clip(lower=0).fillna(0).tolist(),
        (points[high] - middle).clip(lower=0).fillna(0).tolist(),
    ]
