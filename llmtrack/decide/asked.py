"""Which params of a run say what was asked of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from llmtrack.decide.verdicts import SAMPLES
from llmtrack.metrics import METRIC_BY_NAME, PARAM_BY_NAME
from llmtrack.tracking.frame import ID_COLUMNS

if TYPE_CHECKING:
    import pandas as pd

# Params that follow from others or from what came out: nobody asks what they change.
NOT_ASKED = frozenset(
    {
        "scenario",
        "model",
        "device_requested",
        "dtype_requested",
        "output_digest",
        "prompt_tokens_per_row",
        "prompt_tokens_total",
        "repeats",
        "rows_differing",
        SAMPLES,
    }
)


def params_in(runs: pd.DataFrame) -> list[str]:
    """Return the params among the columns of runs that say what was asked, in their order."""

    def is_param(name: str) -> bool:
        if name in PARAM_BY_NAME:
            return True
        # An unknown column of numbers may be anybody's metric.
        known = name in ID_COLUMNS or name in METRIC_BY_NAME or name.startswith("env.")
        return not known and runs[name].dtype != "float64"

    return [name for name in map(str, runs.columns) if name not in NOT_ASKED and is_param(name)]
