"""MLflow plugin: `mlflow run` of an llmtrack project uses the MLflow experiment that `llmtrack run` uses.

`mlflow run` creates its run before the project starts, by default in the experiment "Default". MLflow asks the plugins
of the group `mlflow.default_experiment_provider` first, if neither an option nor a variable names an experiment.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

_REPOSITORY = re.compile(r"(\w+://|git@)[^=]*[:/]llmtrack(\.git)?/?(#.*)?")


class DefaultExperiment:
    """See `mlflow.tracking.default_experiment.DefaultExperimentProvider`; importing it here would be circular."""

    def in_context(self) -> bool:
        """Whether this process is `mlflow run` of an llmtrack project."""
        return runs_project(sys.argv)

    def get_experiment_id(self) -> str:
        """Id of the experiment, created if missing."""
        from mlflow import MlflowClient, get_tracking_uri

        from llmtrack.tracking.mlflow_experiments import DEFAULT_EXPERIMENT, ensure_experiment
        from llmtrack.tracking.uri import resolve_tracking_uri

        client = MlflowClient(resolve_tracking_uri(get_tracking_uri()))
        return ensure_experiment(client, DEFAULT_EXPERIMENT)


def runs_project(command: Sequence[str]) -> bool:
    """Return whether a command line is `mlflow run` of an llmtrack project: a folder, or a repository of that name."""
    program, *arguments = command
    is_mlflow = Path(program).stem == "mlflow" or Path(program).parent.name == "mlflow"
    return is_mlflow and arguments[:1] == ["run"] and any(map(_is_project, arguments[1:]))


def _is_project(argument: str) -> bool:
    try:
        return "llmtrack" in Path(argument, "MLproject").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return _REPOSITORY.fullmatch(argument) is not None
