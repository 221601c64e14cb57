"""Python's search for garbage, paused where what is made is there to stay."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Do not search for garbage meanwhile.

    Of what an import of PyTorch and transformers or of MLflow makes, or a reading of thousands of runs, hardly anything is
    garbage, and to look through it again and again takes a fifth of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
