"""Imports of the fork server of `tests.forking.processes`: measuring, tracking and reporting."""

import importlib

from llmtrack.host.transformers_compat import import_transformers
from llmtrack.report.plots import drawing

import_transformers()
for name in (
    "experiments.suite",
    "llmtrack.run.suite",
    "llmtrack.worker.measuring",
    "mlflow.store.tracking.sqlalchemy_store",
    "transformers.models.llama.modeling_llama",
):
    importlib.import_module(name)
drawing.preload()
