"""Draw with Matplotlib in one style, regardless of notebook, style file or MPLBACKEND."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    """Import the plotting modules early, which takes a second."""
    _matplotlib()
    import_module("matplotlib.backends.backend_agg")
    import_module("matplotlib.figure")


def new_figure(**settings: Any) -> Figure:
    """Return an empty figure without a window."""
    _matplotlib()
    from matplotlib.figure import Figure

    return Figure(**settings)


def save(figure: Figure, target: Path | IO[bytes]) -> None:
    """Write a figure as PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    with drawing():
        FigureCanvasAgg(figure)
        figure.savefig(target, format="png")


def _matplotlib() -> Any:
    """Import Matplotlib, working around an MPLBACKEND that is not installed."""
    if "matplotlib" in sys.modules:
        return sys.modules["matplotlib"]
    chosen = os.environ.pop(_BACKEND, None)
    try:
        import matplotlib
    finally:
        if chosen is not None:
            os.environ[_BACKEND] = chosen
    if chosen is not None:
        with suppress(ValueError):  # Restore it for the user's own plots.
            matplotlib.rcParams["backend"] = chosen
    return matplotlib
