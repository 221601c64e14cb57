"""Draw with Matplotlib in one style, regardless of notebook, style file or MPLBACKEND, and label points."""

from __future__ import annotations

import itertools
import math
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from llmtrack.report.escape import as_label

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import RendererAgg
    from matplotlib.figure import Figure
    from matplotlib.text import Annotation
    from matplotlib.transforms import Bbox


_Box = tuple[float, float, float, float]
"""Left, bottom, right and top in pixels: a Bbox takes ten times as long to read."""

_BACKEND = "MPLBACKEND"

COLOR = "#2563a8"
"""Measured runs."""
BASELINE = "#d99a2b"
"""The baseline."""
BEATEN = "#9aa5b1"
"""Dominated runs."""
LINE_COLORS = (COLOR, "#c2571a", "#3a7d44", "#7b4ea3")

STYLE: dict[str, Any] = {
    "figure.dpi": 130,
    "savefig.dpi": "figure",
    "font.size": 9.5,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.labelsize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.8,
    "lines.linewidth": 1.5,
    "errorbar.capsize": 4,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
}
"""Style sheet of all plots."""

# Labels: distances from the point in 1/72 inch, and directions to try, right first.
_DISTANCES = (8, 16, 28, 44, 64, 90, 120, 160)
_ANGLES = (15, -15, 165, -165, 60, -60, 120, -120, 90, -90)
_POINT_SIZE = 8.0
_LEADER_FROM = 15
_LINE_STEP = 5.0


@contextmanager
def drawing() -> Iterator[None]:
    """Apply the plot style, and silence Matplotlib's warnings about missing glyphs."""
    matplotlib = _matplotlib()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def preload() -> None:
    """Import the plotting modules ahead of use, which takes a second."""
    _matplotlib()
    import_module("matplotlib.backends.backend_agg")
    import_module("matplotlib.figure")


def new_figure(**settings: Any) -> Figure:
    """Create an empty figure without a window."""
    _matplotlib()
    from matplotlib.figure import Figure

    return Figure(**settings)


def save(figure: Figure, target: Path | IO[bytes]) -> None:
    """Write a figure as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with drawing():
        FigureCanvasAgg(figure)
        figure.savefig(target, format="png")


def label_points(
    figure: Figure, axes: Axes, xs: Sequence[float], ys: Sequence[float], texts: Sequence[str]
) -> list[Annotation]:
    """Label each point, with a thin leader line if the label is far from it.

    Call this last: the limits and the size of the figure must be final.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figure.draw_without_rendering()
    # Otherwise, each extent makes one, as large as the picture.
    renderer = FigureCanvasAgg(figure).get_renderer()
    scale = figure.dpi / 72
    centres = axes.transData.transform(list(zip(xs, ys, strict=True))).tolist()
    half = _POINT_SIZE / 2 * scale
    occupied: list[_Box] = [(x - half, y - half, x + half, y + half) for x, y in centres]
    occupied += [(x - 1, y - 1, x + 1, y + 1) for x, y in _along_lines(axes)]
    bounds = _box(axes.get_window_extent())
    labels = []
    for index, (x, y, text) in enumerate(zip(xs, ys, texts, strict=True)):
        label = axes.annotate(as_label(text), (x, y), xytext=(0, 0), textcoords="offset points", fontsize=8)
        others = [centre for number, centre in enumerate(centres) if number != index]
        occupied.append(_place(axes, label, occupied, bounds, centres[index], others, renderer))
        labels.append(label)
    return labels


def _place(
    axes: Axes,
    label: Annotation,
    occupied: Sequence[_Box],
    bounds: _Box,
    point: Sequence[float],
    others: Sequence[Sequence[float]],
    renderer: RendererAgg,
) -> _Box:
    """Move a label to the nearest free place, or to the one with the least overlap.

    Without a leader line, a label must be nearer to its own point than to any other.
    """
    scale = renderer.points_to_pixels(1.0)
    # Laying a text out takes most of the time, and does not depend on the offset.
    at_point = {}
    for side in ("left", "right", "center"):
        _move(label, (0.0, 0.0), side)
        at_point[side] = _box(label.get_window_extent(renderer).padded(1.0))
    best: tuple[float, tuple[float, float], str, _Box] | None = None
    for distance in _DISTANCES:
        for angle in _ANGLES:
            offset = distance * math.cos(math.radians(angle)), distance * math.sin(math.radians(angle))
            side = "left" if offset[0] > 1 else "right" if offset[0] < -1 else "center"
            box = _shifted(at_point[side], offset[0] * scale, offset[1] * scale)
            inside = bounds[0] <= box[0] and box[2] <= bounds[2] and bounds[1] <= box[1] and box[3] <= bounds[3]
            covered = sum(_overlap(box, other) for other in occupied) + (0 if inside else 1e6)
            if distance < _LEADER_FROM and _distance(box, point) >= min(
                (_distance(box, other) for other in others), default=math.inf
            ):
                covered += 1
            if best is None or covered < best[0]:
                best = (covered, offset, side, box)
            if covered == 0:
                break
        if best is not None and best[0] == 0:
            break
    assert best is not None
    _, offset, side, box = best
    _move(label, offset, side)
    if math.hypot(*offset) > _LEADER_FROM:
        axes.annotate(
            "",
            label.xy,
            xytext=offset,
            textcoords="offset points",
            arrowprops={"arrowstyle": "-", "color": BEATEN, "linewidth": 0.6, "shrinkB": 4},
        )
    return box


def _along_lines(axes: Axes) -> list[tuple[float, float]]:
    """Return points along the lines of a plot, spaced so that no label fits between them."""
    import numpy as np

    points: list[tuple[float, float]] = []
    for line in axes.lines:
        corners = axes.transData.transform(np.column_stack([line.get_xdata(), line.get_ydata()]))
        for start, end in itertools.pairwise(corners):
            steps = max(2, int(np.hypot(*(end - start)) / _LINE_STEP))
            points += [tuple(start + (end - start) * share) for share in np.linspace(0, 1, steps)]
    return points


def _move(label: Annotation, offset: tuple[float, float], side: str) -> None:
    label.set_position(offset)
    label.set(ha=side, va="center")


def _box(box: Bbox) -> _Box:
    x0, y0, x1, y1 = map(float, box.extents)
    return x0, y0, x1, y1


def _shifted(box: _Box, x: float, y: float) -> _Box:
    return box[0] + x, box[1] + y, box[2] + x, box[3] + y


def _distance(box: _Box, point: Sequence[float]) -> float:
    dx = max(box[0] - point[0], 0.0, point[0] - box[2])
    dy = max(box[1] - point[1], 0.0, point[1] - box[3])
    return math.hypot(dx, dy)


def _overlap(a: _Box, b: _Box) -> float:
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    return width * height if width > 0 and height > 0 else 0.0


def _matplotlib() -> Any:
    """Import Matplotlib, working around an MPLBACKEND that is not installed."""
    if "matplotlib" in sys.modules:
        return sys.modules["matplotlib"]
    backend = os.environ.pop(_BACKEND, None)
    try:
        import matplotlib
    finally:
        if backend is not None:
            os.environ[_BACKEND] = backend
    if backend is not None:
        with suppress(ValueError):  # Restore it for the user's own plots.
            matplotlib.rcParams["backend"] = backend
    return matplotlib
