"""Conformance tests for engines, executors and experiments of other packages.

    class TestMine(EngineConformance):
        def load(self, model):
            return my_engine.load(Variant(model, backend="mine"))

Requires pytest, which the rest of this package does not.
"""

from __future__ import annotations

from llmtrack.testing.engines import EngineConformance
from llmtrack.testing.executors import ExecutorConformance
from llmtrack.testing.experiments import ExperimentConformance
from llmtrack.testing.models import ending_model, spoiled_model

__all__ = ["EngineConformance", "ExecutorConformance", "ExperimentConformance", "ending_model", "spoiled_model"]
