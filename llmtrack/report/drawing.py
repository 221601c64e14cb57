"""Draw with Matplotlib alike everywhere, whatever a notebook, a style file or MPLBACKEND has set."""

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
"""What is measured."""
BASELINE = "#d99a2b"
"""What the others are compared with."""
BEATEN = "#9aa5b1"
"""What another beats in all that is drawn."""
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
"""The style sheet of every plot."""


@contextmanager
def drawing() -> Iterator[None]:
    """Draw in one style, and without Matplotlib's remarks: a character that no font has is drawn as a box."""
    matplotlib = _matplotlib()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(STYLE)
        yield


def preload() -> None:
    """Import what draws, while there is time: a second that a report need not wait for."""
    _matplotlib()
    import_module("matplotlib.backends.backend_agg")
    import_module("matplotlib.figure")


def new_figure(**settings: Any) -> Figure:
    """Return an empty figure that belongs to no window."""
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
    """Import Matplotlib, which fails where MPLBACKEND names a backend that is not installed here."""
    if "matplotlib" in sys.modules:
        return sys.modules["matplotlib"]
    chosen = os.environ.pop(_BACKEND, None)
    try:
        import matplotlib
    finally:
        if chosen is not None:
            os.environ[_BACKEND] = chosen
    if chosen is not None:
        with suppress(ValueError):  # For the user's own plots, as Matplotlib would have done.
            matplotlib.rcParams["backend"] = chosen
    return matplotlib
