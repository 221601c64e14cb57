"""Measure how to run a causal language model on your machine, and track every measurement in MLflow.

The names in `__all__` are the public interface. They are imported on first use, so that `import llmtrack` loads neither
torch nor mlflow.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from llmtrack.host import libraries
from llmtrack.version import __version__ as __version__

if TYPE_CHECKING:
    from llmtrack.decide.compare import compare
    from llmtrack.devices import resolve_dtype
    from llmtrack.engines.registry import load_engine
    from llmtrack.engines.text import generate_text, generate_texts
    from llmtrack.errors import LlmtrackError
    from llmtrack.measure.timing import time_generate
    from llmtrack.quality.corpora import load_corpus
    from llmtrack.quality.metrics import compute_perplexity
    from llmtrack.quality.perplexity import score_documents, score_rolling
    from llmtrack.run.notebook import report
    from llmtrack.run.typed import run
    from llmtrack.spec.task import RepeatPolicy
    from llmtrack.tracking.read.artifacts import measurements
    from llmtrack.tracking.read.query import runs, studies

libraries.opt_out_of_telemetry()

# Callable packages.
_CALLED = ("report", "run")

_HOME = {
    "LlmtrackError": "llmtrack.errors",
    "RepeatPolicy": "llmtrack.spec.task",
    "compare": "llmtrack.decide.compare",
    "compute_perplexity": "llmtrack.quality.metrics",
    "generate_text": "llmtrack.engines.text",
    "generate_texts": "llmtrack.engines.text",
    "load_corpus": "llmtrack.quality.corpora",
    "load_engine": "llmtrack.engines.registry",
    "measurements": "llmtrack.tracking.read.artifacts",
    "resolve_dtype": "llmtrack.devices",
    "runs": "llmtrack.tracking.read.query",
    "score_documents": "llmtrack.quality.perplexity",
    "score_rolling": "llmtrack.quality.perplexity",
    "studies": "llmtrack.tracking.read.query",
    "time_generate": "llmtrack.measure.timing",
}

__all__ = [
    "LlmtrackError",
    "RepeatPolicy",
    "compare",
    "compute_perplexity",
    "generate_text",
    "generate_texts",
    "load_corpus",
    "load_engine",
    "measurements",
    "report",
    "resolve_dtype",
    "run",
    "runs",
    "score_documents",
    "score_rolling",
    "studies",
    "time_generate",
]


def __getattr__(name: str) -> Any:
    if name in _CALLED:
        return import_module(f"{__name__}.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'llmtrack' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOME, *_CALLED])
