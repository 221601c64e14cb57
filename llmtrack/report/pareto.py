"""Show the Pareto front as a table and a plot."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmtrack import metrics as schema
from llmtrack.decide.candidates import MEMORY, Points, gather_points
from llmtrack.decide.compare import known_metric
from llmtrack.decide.noise_floor import in_context
from llmtrack.decide.pareto import Position, Standing, pareto_front
from llmtrack.decide.verdicts import each_once, grouped
from llmtrack.errors import UsageError
from llmtrack.report.plots.charts import add_note, axis_label, canvas, separate_thousands, widen
from llmtrack.report.plots.drawing import BEATEN, COLOR, LINE_COLORS, drawing, label_points, save
from llmtrack.report.show import AS_TABLE, Layout, show
from llmtrack.report.tables.table import Table, column_of_runs, shared_conditions, values_of_runs
from llmtrack.report.terminal import make_console, say
from llmtrack.tracked.run import Run
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Area of the ring around the answer; the largest point has 160.
_RING = 230
# Fill and edge of a point by its position.
COLORS: dict[Position, tuple[str, str]] = {
    "on": (COLOR, "white"),
    "open": ("white", COLOR),
    "off": (BEATEN, "white"),
    "missing": (BEATEN, "white"),
}


def show_pareto(
    runs: Runs,
    speed: str,
    quality: str,
    *,
    memory: bool = False,
    layout: Layout = AS_TABLE,
    output: Path | None = None,
) -> None:
    """Print the front of tracked runs, and draw it.

    Args:
        runs: with raw samples added by `with_samples` if they are to count.
        speed: metric of speed.
        quality: metric of quality.
        memory: whether to include peak memory.
        output: PNG file to draw to.

    Raises:
        UsageError: a metric is unknown or has no better direction, or no scenario has both.
    """
    respects = (speed, quality, *((MEMORY,) if memory else ()))
    for name in respects:
        if schema.metric(known_metric(name)).better == "-":
            raise UsageError(f"{name} has no better direction: it cannot form a front")
    points = gather_points(runs, speed, quality)
    if not any(run.has(quality) for run in points.runs):
        raise UsageError(
            f"no timed scenario has {quality}: score it too (mlflow run . -e perplexity) with the same model, backend, "
            "dtype and quantization, or choose more runs"
        )
    console = make_console()
    table = pareto_table(points, respects)
    by_id = {run.run_id: run for run in points.runs}
    show(console, "Pareto front", table, layout, values_of_runs(Runs(by_id[each] for each in table.run_ids)))
    if output is not None:
        with drawing():
            save(pareto_plot(points, speed, quality), output)
        if layout.style == "table":
            say(console, f"Written: {output}")


def pareto_table(points: Points, respects: Sequence[str]) -> Table:
    """Return the scenarios sorted by the first metric, with their position.

    Args:
        respects: metrics of the front, such as speed, quality and memory.
    """
    standings = pareto_front(points.runs, respects)
    stands = dict(zip((run.run_id for run in points.runs), standings, strict=True))
    runs = points.runs.by(respects[0], highest_first=schema.metric(respects[0]).better == "higher")
    shared, differing = shared_conditions(runs)
    columns = [*differing, *(column_of_runs(name, runs) for name in respects)]
    return Table(
        conditions=shared,
        titles=("scenario", *(column.title for column in columns), f"front of {', '.join(respects)}"),
        numeric=(False, *(column.is_number for column in columns), False),
        rows=tuple(
            (run.scenario, *(column.cell_of(run) for column in columns), stands[run.run_id].why) for run in runs
        ),
        run_ids=tuple(run.run_id for run in runs),
        notes=(
            *points.notes,
            *_doubts([run for run in runs if stands[run.run_id].place in ("on", "open")]),
            *_measure_more(standings),
        ),
        keys=("scenario", *(column.key for column in columns), "front"),
    )


def _doubts(shown: Sequence[Run]) -> list[str]:
    """Return the warnings of the runs possibly on the front, grouped by kind."""
    warned = [(run.name, line) for run in shown for line in run.warnings]
    return [f"read with care: {line}" for line in grouped(warned, len(shown))]


def _measure_more(standings: Sequence[Standing]) -> tuple[str, ...]:
    commands = each_once(each.measure for each in standings if each.measure)
    return tuple(f"inconclusive; to settle it run: {command}" for command in commands)


def pareto_plot(points: Points, speed: str, quality: str, answer: str = "") -> Figure:
    """Plot quality against speed, with the front as a line and peak memory as the point size.

    Args:
        points: scenarios without quality are left out.
        speed: metric of the x axis.
        quality: metric of the y axis.
        answer: run to mark by a ring.
    """
    known = in_context(points.runs).where(lambda run: run.has(quality))
    standings = pareto_front(known, (speed, quality))
    places = {run.run_id: each.place for run, each in zip(known, standings, strict=True)}
    runs = known.by(speed)
    figure, axes = canvas(f"{_named(quality).capitalize()} against {_named(speed)}", _axis(speed), _axis(quality))
    axes.grid(visible=True, axis="x")
    chosen = [run.run_id for run in runs].index(answer) if answer in places else None
    ring = ["Ring: the answer."] if chosen is not None else []
    add_note(figure, *ring, *_key(places.values()), *_memory_range(runs))
    front = runs.where(lambda run: places[run.run_id] == "on")
    axes.plot(front.values(speed), front.values(quality), color=COLOR, linewidth=1.2, zorder=2)
    inside, edges = zip(*(COLORS[places[run.run_id]] for run in runs), strict=True)
    xs, ys = runs.values(speed), runs.values(quality)
    axes.scatter(xs, ys, s=_sizes(runs), c=inside, zorder=3, edgecolors=edges, linewidths=0.8)
    if chosen is not None:
        axes.scatter(
            xs[chosen], ys[chosen], s=_RING, facecolors="none", edgecolors=LINE_COLORS[1], linewidths=1.8, zorder=4
        )
    axes.margins(x=0.22, y=0.18)
    widen(axes, ys)
    separate_thousands(axes)
    label_points(figure, axes, xs, ys, _short(runs.scenarios))
    return figure


def _short(names: Sequence[str]) -> Sequence[str]:
    """Remove common trailing words from names, which would hide the points."""
    ends = [name.split("-")[::-1] for name in names]
    alike = 0
    while len(names) > 1 and all(len(end) > alike + 1 and end[alike] == ends[0][alike] for end in ends):
        alike += 1
    return ["-".join(end[alike:][::-1]) for end in ends]


def _axis(metric: str) -> str:
    entry = schema.metric(metric)
    arrow = {"higher": ", more is better", "lower": ", less is better"}.get(entry.better, "")
    return f"{axis_label(metric)}{arrow}"


def _named(metric: str) -> str:
    return axis_label(metric).partition(" (")[0]


def _sizes(runs: Runs) -> list[float]:
    """Return areas of 30 to 160 by peak memory; equal if unknown."""
    memory = [run.metrics[MEMORY] for run in runs if run.has(MEMORY)]
    if len(memory) < len(runs) or max(memory) == min(memory):
        return [60.0] * len(runs)
    return [30 + 130 * value / max(memory) for value in memory]


def _key(places: Collection[Position]) -> list[str]:
    """Explain the line and the kinds of points that are present."""
    line = ["The line joins the front."] if "on" in places else []
    hollow = ["Hollow: inconclusive."] if "open" in places else []
    better = "Grey: another is better in one and not significantly worse in the other."
    grey = [better] if "off" in places else []
    return [*line, *hollow, *grey]


def _memory_range(runs: Runs) -> list[str]:
    if len(set(_sizes(runs))) <= 1:
        return []
    memory = runs.values(MEMORY)
    return [f"The area of a point is its peak memory: {min(memory):,.0f} to {max(memory):,.0f} MiB."]
