"""Keep libraries from reporting their use: a measured process sends nothing, and has no thread that would."""

from __future__ import annotations

import os

OFF = {
    "HF_HUB_DISABLE_TELEMETRY": "1",
    # Where its server cannot be reached, MLflow's thread also removes a variable of the environment while requests in other
    # threads iterate over all of them for proxy settings, which can fail.
    "MLFLOW_DISABLE_TELEMETRY": "true",
    # On by default on Linux since 1.29; it reports names and hashes of the models that a session loads.
    "ORT_DISABLE_TELEMETRY": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
"""Variables that each library reads when it is imported or started."""


def opt_out() -> None:
    """Turn the telemetry of libraries off where the user has not decided; processes that are started inherit it."""
    for name, value in OFF.items():
        os.environ.setdefault(name, value)
