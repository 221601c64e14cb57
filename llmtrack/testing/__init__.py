"""A conformance kit: the tests that every engine, executor and experiment must pass, to be run by the package that brings one.

    class TestMine(EngineConformance):
        def load(self, model):
            return my_engine.load(Variant(model, backend="mine"))

It needs pytest, and nothing else of this package needs it.
"""

from __future__ import annotations

from llmtrack.testing.conformance import EngineConformance
from llmtrack.testing.executors import ExecutorConformance
from llmtrack.testing.experiments import ExperimentConformance
from llmtrack.testing.models import ending_model, spoiled_model

__all__ = [
    "EngineConformance",
    "ExecutorConformance",
    "ExperimentConformance",
    "ending_model",
    "spoiled_model",
]
