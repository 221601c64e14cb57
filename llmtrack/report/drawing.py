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


@contextmanager
def drawing() -> Iterator[None]:
    """Draw with Matplotlib's own defaults, and without its remarks: a character that no font has is drawn as a box."""
    matplotlib = _matplotlib()
    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        matplotlib.rcdefaults()
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
