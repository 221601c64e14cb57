"""Import libraries without telemetry, and faster: a measured process sends nothing, and has no thread that would."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager

TELEMETRY_OFF = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # If its server is unreachable, MLflow's thread removes an environment variable while requests in other threads iterate
    # over all of them for proxy settings, which can fail.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # On by default on Linux since 1.29; it reports names and hashes of the models that a session loads.
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Variables that each library reads when it is imported or started."""


def opt_out_of_telemetry() -> None:
    """Turn off the libraries' telemetry unless the user has decided; child processes inherit it."""
    for name, value in TELEMETRY_OFF.items():
        os.environ.setdefault(name, value)


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable garbage collection while long-lived objects are created.

    Importing PyTorch, transformers or MLflow, or reading thousands of runs, creates hardly any garbage, and collecting
    takes a fifth of the time.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
