"""Show the Pareto front as a table and a plot."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmtrack import metrics as schema
from llmtrack.decide.candidates import MEMORY, Candidates, gather_candidates
from llmtrack.decide.compare import require_metric
from llmtrack.decide.noise_floor import with_context
from llmtrack.decide.pareto import Position, Standing, pareto_front
from llmtrack.decide.verdicts import merge_commands, warning_notes
from llmtrack.errors import UsageError
from llmtrack.report.plots.charts import add_note, axis_label, canvas, separate_thousands, widen
from llmtrack.report.plots.drawing import BEATEN, COLOR, LINE_COLORS, drawing, label_points, save
from llmtrack.report.show import AS_TABLE, Layout, show
from llmtrack.report.tables.table import Table, column_of_runs, shared_conditions, values_of_runs
from llmtrack.report.terminal import make_console, print_line
from llmtrack.tracked.runs import Runs

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Area of the ring around the answer, and of the smallest and largest point; of all points, if memory is unknown.
_RING, _SMALLEST, _LARGEST, _USUAL = 230, 30, 160, 60
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
    """Print the front of tracked runs in speed and quality (both metrics), and draw it.

    Args:
        runs: with raw samples added by `with_samples` if they are to count.
        memory: whether to include peak memory.
        output: PNG file to draw to.

    Raises:
        UsageError: a metric is unknown or has no better direction, or no scenario has both.
    """
    metrics = (speed, quality, *((MEMORY,) if memory else ()))
    for name in metrics:
        if schema.metric(require_metric(name)).better == "-":
            raise UsageError(f"{name} has no better direction: it cannot form a front")
    candidates = gather_candidates(runs, speed, quality)
    if not any(run.has(quality) for run in candidates.runs):
        raise UsageError(
            f"no timed scenario has {quality}: score it too (llmtrack run perplexity) with the same model, backend, "
            "dtype and quantization, or choose more runs"
        )
    console = make_console()
    table = pareto_table(candidates, metrics)
    by_id = {run.run_id: run for run in candidates.runs}
    show(console, "Pareto front", table, layout, values_of_runs(Runs(by_id[run_id] for run_id in table.run_ids)))
    if output is not None:
        with drawing():
            save(pareto_plot(candidates, speed, quality), output)
        if layout.style == "table":
            print_line(console, f"Written: {output}")


def pareto_table(candidates: Candidates, metrics: Sequence[str]) -> Table:
    """Lay out the scenarios sorted by the first metric, with their position on the front of all metrics."""
    standings = pareto_front(candidates.runs, metrics)
    by_id = dict(zip((run.run_id for run in candidates.runs), standings, strict=True))
    runs = candidates.runs.by(metrics[0], highest_first=schema.metric(metrics[0]).better == "higher")
    possibly_best = [run for run in runs if by_id[run.run_id].position in ("on", "open")]
    shared, differing = shared_conditions(runs)
    columns = [*differing, *(column_of_runs(name, runs) for name in metrics)]
    return Table(
        conditions=shared,
        titles=("scenario", *(column.title for column in columns), f"front of {', '.join(metrics)}"),
        numeric=(False, *(column.is_number for column in columns), False),
        rows=tuple((run.scenario, *(column.cell_of(run) for column in columns), by_id[run.run_id].why) for run in runs),
        run_ids=tuple(run.run_id for run in runs),
        notes=(
            *candidates.notes,
            *warning_notes(possibly_best, len(possibly_best)),
            *_measure_more(standings),
        ),
        keys=("scenario", *(column.key for column in columns), "front"),
    )


def _measure_more(standings: Sequence[Standing]) -> tuple[str, ...]:
    commands = merge_commands(standing.command for standing in standings if standing.command)
    return tuple(f"inconclusive; to settle it run: {command}" for command in commands)


def pareto_plot(candidates: Candidates, speed: str, quality: str, answer: str = "") -> Figure:
    """Plot quality against speed, with the front as a line and peak memory as the point size.

    Args:
        candidates: scenarios without quality are left out.
        answer: id of a run to mark by a ring.
    """
    runs = with_context(candidates.runs).where(lambda run: run.has(quality))
    standings = pareto_front(runs, (speed, quality))
    places = {run.run_id: standing.position for run, standing in zip(runs, standings, strict=True)}
    runs = runs.by(speed)
    figure, axes = canvas(f"{_named(quality).capitalize()} against {_named(speed)}", _axis(speed), _axis(quality))
    axes.grid(visible=True, axis="x")
    chosen = [run.run_id for run in runs].index(answer) if answer in places else None
    ring = ["Ring: the answer."] if chosen is not None else []
    add_note(figure, *ring, *_legend(places.values()), *_memory_range(runs))
    front = runs.where(lambda run: places[run.run_id] == "on")
    axes.plot(front.values(speed), front.values(quality), color=COLOR, linewidth=1.2, zorder=2)
    fills, edges = zip(*(COLORS[places[run.run_id]] for run in runs), strict=True)
    xs, ys = runs.values(speed), runs.values(quality)
    axes.scatter(xs, ys, s=_sizes(runs), c=fills, zorder=3, edgecolors=edges, linewidths=0.8)
    if chosen is not None:
        axes.scatter(
            xs[chosen], ys[chosen], s=_RING, facecolors="none", edgecolors=LINE_COLORS[1], linewidths=1.8, zorder=4
        )
    axes.margins(x=0.22, y=0.18)
    widen(axes, ys)
    separate_thousands(axes)
    label_points(figure, axes, xs, ys, _without_common_ending(runs.scenarios))
    return figure


def _without_common_ending(names: Sequence[str]) -> Sequence[str]:
    """Remove common trailing words from names, which would hide the points."""
    reversed_words = [name.split("-")[::-1] for name in names]
    common = 0
    while len(names) > 1 and all(
        len(words) > common + 1 and words[common] == reversed_words[0][common] for words in reversed_words
    ):
        common += 1
    return ["-".join(words[common:][::-1]) for words in reversed_words]


def _axis(metric: str) -> str:
    entry = schema.metric(metric)
    arrow = {"higher": ", more is better", "lower": ", less is better"}.get(entry.better, "")
    return f"{axis_label(metric)}{arrow}"


def _named(metric: str) -> str:
    return axis_label(metric).partition(" (")[0]


def _sizes(runs: Runs) -> list[float]:
    """Return the areas of points by peak memory; equal if unknown."""
    memory = [run.metrics[MEMORY] for run in runs if run.has(MEMORY)]
    if len(memory) < len(runs) or max(memory) == min(memory):
        return [float(_USUAL)] * len(runs)
    return [_SMALLEST + (_LARGEST - _SMALLEST) * value / max(memory) for value in memory]


def _legend(places: Collection[Position]) -> list[str]:
    """Explain the line and the kinds of points that are present."""
    explanations: dict[Position, str] = {
        "on": "The line joins the front.",
        "open": "Hollow: inconclusive.",
        "off": "Grey: another is better in one and not significantly worse in the other.",
    }
    return [text for place, text in explanations.items() if place in places]


def _memory_range(runs: Runs) -> list[str]:
    if len(set(_sizes(runs))) <= 1:
        return []
    memory = runs.values(MEMORY)
    return [f"The area of a point is its peak memory: {min(memory):,.0f} to {max(memory):,.0f} MiB."]
