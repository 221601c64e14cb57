"""Common parts of outcomes: facts of the engine, and failures from exceptions."""

from __future__ import annotations

import time
import traceback

from llmtrack.engine import Engine
from llmtrack.errors import ScenarioError, in_words, is_out_of_memory
from llmtrack.host.formatting import MIB
from llmtrack.spec.outcome import Failure
from llmtrack.spec.scenario import Scalar, Scenario


def engine_facts(engine: Engine) -> dict[str, Scalar]:
    """Return the params that a loaded engine gives to each run."""
    info = engine.info
    facts: dict[str, Scalar] = {
        "model_id": info.model_id,
        "device": info.device,
        "dtype": info.dtype_label,
        "vocab_size": info.vocab_size,
    }
    if info.context_length is not None:
        facts["context_length"] = info.context_length
    return facts | info.facts


def engine_metrics(engine: Engine, peak_bytes: int | None) -> dict[str, float]:
    """Return the metrics that a loaded engine gives to each run; None for an unknown peak memory."""
    metrics = {"model_size_mib": engine.info.model_size_bytes / MIB}
    if engine.info.load_time_s is not None:
        metrics["load_time_s"] = engine.info.load_time_s
    if engine.info.file_size_bytes is not None:
        metrics["file_size_mib"] = engine.info.file_size_bytes / MIB
    if peak_bytes is not None:
        metrics["peak_memory_mib"] = peak_bytes / MIB
    return metrics


def failure_of(
    scenario: Scenario,
    error: Exception,
    started: float,
    engine: Engine | None = None,
    kind: str | None = None,
) -> Failure:
    """Convert an exception to a failure; `kind` overrides its classification."""
    return Failure(
        scenario=scenario,
        kind=kind or failure_kind(error),
        reason=in_words(error),
        details="".join(traceback.format_exception(error)),
        facts=engine_facts(engine) if engine else {},
        tags=dict(engine.info.tags) if engine else {},
        started_at=started,
        ended_at=time.time(),
    )


def failure_kind(error: Exception) -> str:
    """Return the value of the tag `llmtrack.failure` for an exception."""
    if isinstance(error, ScenarioError):
        return error.kind
    if is_out_of_memory(error):
        return "out_of_memory"
    if isinstance(error, NotImplementedError):
        return "unsupported"
    return "error"
