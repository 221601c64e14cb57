"""Measure the scenarios of one variant on one loaded engine: what a worker does."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Sequence

from llmtrack.engines.base import Engine, GenerateRequest
from llmtrack.errors import LlmtrackError, ScenarioError
from llmtrack.measure.interference import busy_warning, gpu_warning, read_cpu
from llmtrack.measure.metrics import decode_step_bytes, memory_bandwidth_utilization
from llmtrack.measure.timing import Arm, Clock, Timing, request_for, time_arms
from llmtrack.quality.corpora import load_corpus
from llmtrack.run.events import Event, Log, Progress, Warn
from llmtrack.scenario import (
    Failure,
    GenerateTask,
    Measurement,
    PerplexityTask,
    Scalar,
    Scenario,
    Variant,
    digest,
    workload_id,
)

MIB = 2**20
SAMPLE_ROWS = 4

Emit = Callable[[Event], None]


class EngineCache:
    """Keeps the engine of the last variant, so that scenarios of one variant share it."""

    def __init__(self, load: Callable[[Variant], Engine]) -> None:
        self._load = load
        self._variant: Variant | None = None
        self._engine: Engine | None = None

    def get(self, variant: Variant) -> tuple[Engine, bool]:
        """Return the engine of a variant, and whether it was loaded just now."""
        if self._engine is not None and variant == self._variant:
            return self._engine, False
        self.close()
        self._engine = self._load(variant)
        self._variant = variant
        return self._engine, True

    def close(self) -> None:
        """Free the engine."""
        if self._engine is not None:
            self._engine.close()
        self._variant = self._engine = None


def measure_group(
    scenarios: Sequence[Scenario], engines: EngineCache, emit: Emit, clock: Clock = time.perf_counter
) -> None:
    """Measure scenarios of one variant; each ends in a Measurement or a Failure that is emitted at once.

    Timed scenarios come first, interleaved with one another; scoring follows.
    """
    started = time.time()
    try:
        engine, fresh = engines.get(scenarios[0].variant)
    except Exception as error:
        for scenario in scenarios:
            emit(
                _failure(scenario, error, started, kind="load" if isinstance(error, LlmtrackError) else None)
            )
        return
    info = engine.info
    if fresh:
        emit(Log(f"Loaded: {info.model_id} | device={info.device.split(':')[0]} | dtype={info.dtype_label}"))
        for warning in info.warnings:
            emit(Warn(warning))
    _measure_generation(scenarios, engine, emit, clock)
    for scenario in scenarios:
        if isinstance(scenario.task, PerplexityTask):
            _measure_perplexity(scenario, scenario.task, engine, emit, clock)


def _measure_generation(scenarios: Sequence[Scenario], engine: Engine, emit: Emit, clock: Clock) -> None:
    # Arms are interleaved, so each one's start is that of its first call.
    started: dict[str, float] = {}
    asked: dict[str, Scenario] = {}
    arms: dict[str, Arm] = {}
    for scenario in scenarios:
        if not isinstance(scenario.task, GenerateTask):
            continue
        try:
            arms[scenario.name] = Arm(request_for(engine, scenario.task), scenario.repeat)
            asked[scenario.name] = scenario
        except Exception as error:
            emit(_failure(scenario, error, time.time(), engine))

    def on_call(name: str, repeat: int) -> None:
        started.setdefault(name, time.time())
        emit(Progress(name, f"repeat {repeat}" if repeat else "warm-up"))

    before = read_cpu()
    for name, result in time_arms(engine, arms, clock, on_call):
        if isinstance(result, Exception):
            emit(_failure(asked[name], result, started[name], engine))
        else:
            busy = busy_warning(before, read_cpu()) + gpu_warning(engine.info.device)
            emit(_generation_measurement(asked[name], arms[name], result, engine, busy, started[name]))


def _generation_measurement(
    scenario: Scenario, arm: Arm, timing: Timing, engine: Engine, busy: tuple[str, ...], started: float
) -> Measurement:
    task = scenario.task
    lengths = tuple(len(row) for row in arm.request.prompt_ids)
    metrics = dict(timing.metrics) | _engine_metrics(engine)
    if timing.peak_memory_bytes is not None:
        metrics["peak_memory_mib"] = timing.peak_memory_bytes / MIB
    if arm.request.use_cache and "inter_token_latency_ms" in metrics:
        metrics |= _bandwidth_metrics(
            engine, lengths, arm.request.max_new_tokens, metrics["inter_token_latency_ms"]
        )
    return Measurement(
        scenario=scenario,
        workload_id=workload_id(task),
        facts=_engine_facts(engine)
        | {
            "batch_size": len(lengths),
            "prompt_tokens": max(lengths),
            "prompt_tokens_per_row": ",".join(map(str, lengths)),
            "prompt_tokens_total": sum(lengths),
            "decoding": "greedy",
            "output_digest": digest(timing.new_ids),
        },
        metrics=metrics,
        summaries=timing.summaries,
        samples=timing.samples,
        warnings=timing.warnings + _padding_warning(arm.request) + busy + engine.info.warnings,
        sample_text="\n---\n".join(engine.decode(row) for row in timing.new_ids[:SAMPLE_ROWS]),
        tags=dict(engine.info.tags),
        series={"token_latency_ms": timing.gaps_ms},
        started_at=started,
        ended_at=time.time(),
    )


def _measure_perplexity(
    scenario: Scenario, task: PerplexityTask, engine: Engine, emit: Emit, clock: Clock
) -> None:
    from llmtrack.quality.perplexity import Batch, score_documents

    started = time.time()
    emit(Progress(scenario.name, "reading the corpus"))

    def on_batch(batch: Batch) -> None:
        emit(Progress(scenario.name, f"batch {batch.number}/{batch.of}", batch.number / batch.of))
        if task.verbose:
            emit(Log(str(batch)))

    try:
        corpus = load_corpus(task.corpus)
        before, start = read_cpu(), clock()
        engine.reset_peak_memory()
        quality = score_documents(
            engine,
            corpus.texts,
            max_length=task.max_length,
            batch_size=task.batch_size,
            padding_side=task.padding_side,
            on_batch=on_batch,
        )
        seconds, peak = clock() - start, engine.peak_memory_bytes()
    except Exception as error:
        emit(_failure(scenario, error, started, engine))
        return
    metrics = _engine_metrics(engine) | {
        "loss": quality.loss,
        "perplexity": quality.perplexity,
        "bits_per_byte": quality.bits_per_byte,
        "tokens_scored": float(quality.tokens_scored),
        "bytes_scored": float(quality.bytes_scored),
        "tokens_truncated": float(quality.tokens_truncated),
        "documents_scored": float(quality.documents_scored),
        "documents_skipped": float(quality.documents_skipped),
    }
    if seconds > 0:
        metrics["score_tokens_per_sec"] = quality.tokens_scored / seconds
    if peak is not None:
        metrics["peak_memory_mib"] = peak / MIB
    emit(
        Log(
            f"average loss {quality.loss:.4f} nats, perplexity {quality.perplexity:.3f} ({quality.tokens_scored} tokens)"
        )
    )
    emit(
        Measurement(
            scenario=scenario,
            workload_id=workload_id(task, corpus.digest),
            facts=_engine_facts(engine) | {"corpus": corpus.name, "corpus_digest": corpus.digest},
            metrics=metrics,
            warnings=_quality_warnings(quality.tokens_truncated, quality.documents_skipped, task)
            + busy_warning(before, read_cpu())
            + engine.info.warnings,
            tags=dict(engine.info.tags),
            series={"batch_loss": quality.batch_losses},
            started_at=started,
            ended_at=time.time(),
        )
    )


def _padding_warning(request: GenerateRequest) -> tuple[str, ...]:
    lengths = {len(row) for row in request.prompt_ids}
    if request.padding_side != "right" or len(lengths) == 1:
        return ()
    return (
        "right padding: rows shorter than the longest go on from their pads, so their text is not what the model "
        "would say: use padding_side=left for output that counts",
    )


def _quality_warnings(truncated: int, skipped: int, task: PerplexityTask) -> tuple[str, ...]:
    found = []
    if truncated:
        found.append(
            f"{truncated} tokens were cut from documents longer than {task.max_length}: raise max_length"
        )
    if skipped:
        found.append(f"{skipped} document(s) of one token were left out: one token predicts nothing")
    return tuple(found)


def _engine_facts(engine: Engine) -> dict[str, Scalar]:
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


def _engine_metrics(engine: Engine) -> dict[str, float]:
    metrics = {"model_size_mib": engine.info.model_size_bytes / MIB}
    if engine.info.load_time_s is not None:
        metrics["load_time_s"] = engine.info.load_time_s
    return metrics


def _bandwidth_metrics(
    engine: Engine, prompt_tokens: tuple[int, ...], new_tokens: int, step_ms: float
) -> dict[str, float]:
    from llmtrack.measure.bandwidth import copy_bandwidth

    info = engine.info
    bandwidth = copy_bandwidth(info.device)
    step_bytes = decode_step_bytes(info.step_weight_bytes, info.kv_bytes_per_token, prompt_tokens, new_tokens)
    return {
        "copy_bandwidth_gb_per_s": bandwidth / 1e9,
        "memory_bandwidth_utilization": memory_bandwidth_utilization(step_bytes, step_ms / 1000, bandwidth),
    }


def _failure(
    scenario: Scenario,
    error: Exception,
    started: float,
    engine: Engine | None = None,
    kind: str | None = None,
) -> Failure:
    return Failure(
        scenario=scenario,
        kind=kind or failure_kind(error),
        reason=" ".join(str(error).split()) or type(error).__name__,
        details="".join(traceback.format_exception(error)),
        facts=_engine_facts(engine) if engine else {},
        tags=dict(engine.info.tags) if engine else {},
        started_at=started,
        ended_at=time.time(),
    )


def failure_kind(error: Exception) -> str:
    """Return the one word that classes an exception for the tag `llmtrack.failure`."""
    if isinstance(error, ScenarioError):
        return error.kind
    # torch's OutOfMemoryError is a RuntimeError; on CPU only the message tells.
    text = f"{type(error).__name__} {error}".lower()
    if (
        isinstance(error, MemoryError)
        or "outofmemory" in text
        or "out of memory" in text
        or "can't allocate" in text
    ):
        return "out_of_memory"
    if isinstance(error, NotImplementedError):
        return "unsupported"
    return "error"
