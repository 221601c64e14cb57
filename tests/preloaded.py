"""Imported by the fork server of `tests.forking.processes`: what measures, tracks and reports."""

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
