"""The roofline plot: the rate of each run's prefill, decode steps and scoring under the ceiling of its device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING

from llmtrack.host.formatting import MIB
from llmtrack.report.escape import as_label
from llmtrack.report.plots.charts import canvas
from llmtrack.report.plots.drawing import LINE_COLORS, label_points
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STAGES = {"prefill": "^", "decode": "o", "score": "s"}
"""Markers of a run's stages."""

_ROOF_METRICS = ("copy_bandwidth_gb_per_s", "matrix_tflop_per_s")
_STAGE_METRICS = ("gflop", "mib", "floor_ms", "floor_share")

_MANY_DECADES = 10**6
FEW, MOST_LABELS = 12, 48
"""Maximum number of markers in a plot of the usual size, and with labels."""


@dataclass(frozen=True)
class Roofline:
    """Limits of a device for one arithmetic: bytes and operations per second."""

    name: str
    bandwidth: float
    rate: float

    @property
    def ridge(self) -> float:
        """Operations per byte above which arithmetic is the limit."""
        return self.rate / self.bandwidth


@dataclass(frozen=True)
class Point:
    """A stage of a run.

    Attributes:
        run: name of its scenario.
        stage: one of `STAGES`.
        roof: name of its `Roofline`.
        intensity: operations per byte that must be moved.
        rate: operations per second.
        share: of the floor that was reached.
    """

    run: str
    stage: str
    roof: str
    intensity: float
    rate: float
    share: float


def roofs(runs: Runs) -> tuple[Roofline, ...]:
    """Return the rooflines of finished runs; of one device and arithmetic, the highest that was measured."""
    by_name: dict[str, Roofline] = {}
    for run in _with_roof(runs):
        name = _roof(run)
        bandwidth, rate = run.metrics["copy_bandwidth_gb_per_s"] * 1e9, run.metrics["matrix_tflop_per_s"] * 1e12
        if known := by_name.get(name):
            bandwidth, rate = max(bandwidth, known.bandwidth), max(rate, known.rate)
        by_name[name] = Roofline(name, bandwidth, rate)
    return tuple(by_name.values())


def points(runs: Runs) -> tuple[Point, ...]:
    """Return the stages of finished runs as points under their rooflines."""
    stages = []
    for run in _with_roof(runs):
        for stage in STAGES:
            if not all(run.has(f"{stage}_{key}") for key in _STAGE_METRICS):
                continue
            operations, share = run.metrics[f"{stage}_gflop"] * 1e9, run.metrics[f"{stage}_floor_share"]
            seconds = run.metrics[f"{stage}_floor_ms"] / 1000 / share
            intensity = operations / (run.metrics[f"{stage}_mib"] * MIB)
            stages.append(Point(run.name, stage, _roof(run), intensity, operations / seconds, share))
    return tuple(stages)


def roofline_plots(runs: Runs) -> Mapping[str, Figure]:
    """Draw the roofline of runs, by file name; empty if no run has the figures for it."""
    from matplotlib.ticker import LogLocator, NullFormatter

    lines, marks = roofs(runs), points(runs)
    if not lines or not marks:
        return {}
    unit, size = ("TFLOP/s", 1e12) if max(line.rate for line in lines) >= 1e12 else ("GFLOP/s", 1e9)
    figure, axes = canvas(
        "Roofline: rate of each stage, and its share of the ceiling",
        "arithmetic intensity (FLOP per byte that must be moved)",
        f"rate of computing ({unit})",
    )
    if len(marks) > FEW:
        figure.set_size_inches(10, 6.5)
    axes.set_xscale("log")
    axes.set_yscale("log")
    left = min(mark.intensity for mark in marks) / 3
    right = max([mark.intensity for mark in marks] + [line.ridge for line in lines]) * 4
    colors = dict(zip((line.name for line in lines), cycle(LINE_COLORS)))
    for line in lines:
        corners = [left, line.ridge, right] if left < line.ridge else [left, right]
        heights = [min(intensity * line.bandwidth, line.rate) / size for intensity in corners]
        # The numbers first: a long name is truncated.
        label = f"{_si(line.rate)}FLOP/s, {_si(line.bandwidth)}B/s: {line.name}"
        axes.plot(corners, heights, color=colors[line.name], linewidth=1.5, label=as_label(label))
    for stage, marker in STAGES.items():
        of_stage = [mark for mark in marks if mark.stage == stage]
        if of_stage:
            axes.scatter(
                [mark.intensity for mark in of_stage],
                [mark.rate / size for mark in of_stage],
                marker=marker,
                color=[colors[mark.roof] for mark in of_stage],
                zorder=3,
            )
            axes.scatter([], [], marker=marker, color="#444444", label=stage)
    # Plain numbers: labels such as 2 x 10^3 overlap within a decade, and 2 and 5 do over many decades.
    for axis in (axes.xaxis, axes.yaxis):
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high / low < _MANY_DECADES else (1,)))
        axis.set_major_formatter(lambda value, place: f"{value:g}" if value < 1000 else _si(value).replace(" ", ""))
        axis.set_minor_formatter(NullFormatter())
    # Below the plot: inside, it would cover points and labels.
    axes.legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, -0.16))
    if len(marks) <= MOST_LABELS:
        label_points(
            figure,
            axes,
            [mark.intensity for mark in marks],
            [mark.rate / size for mark in marks],
            [f"{mark.run} {_percent(mark.share)}" for mark in marks],
        )
    return {"roofline": figure}


def _with_roof(runs: Runs) -> Runs:
    """Select the finished runs whose device's rate and bandwidth are known."""
    return runs.finished.where(lambda run: all(map(run.has, _ROOF_METRICS)))


def _roof(run: Run) -> str:
    kind = run.text("device").partition(":")[0]
    name = run.text("env.cpu" if kind == "cpu" else "env.gpu") or kind
    return f"{run.text('arithmetic') or 'arithmetic'} on {name}"


def _percent(share: float) -> str:
    """Format a share in percent, with a decimal below 10: 0.4%, 3.1%, 62%."""
    return f"{share:.1%}" if share < 0.0995 else f"{share:.0%}"


def _si(value: float) -> str:
    """Format a number with the prefix of its unit: `3.0 T`, `772 G`."""
    prefixes: Iterable[tuple[float, str]] = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    size, prefix = next(((size, prefix) for size, prefix in prefixes if value >= size), (1.0, ""))
    return f"{value / size:.3g} {prefix}"
