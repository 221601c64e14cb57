"""Measure perplexity tasks on a loaded engine."""

from __future__ import annotations

import time

from llmtrack.engines.base import Engine
from llmtrack.measure.interference import busy_warning, read_cpu
from llmtrack.measure.timing import Clock
from llmtrack.quality.corpora import load_corpus
from llmtrack.quality.perplexity import Batch, score_documents
from llmtrack.run.events import Log, Progress
from llmtrack.run.outcomes import MIB, Emit, engine_facts, engine_metrics, failure_of
from llmtrack.scenario import Measurement, PerplexityTask, Scenario, workload_id


def measure_perplexity(
    scenario: Scenario, task: PerplexityTask, engine: Engine, emit: Emit, clock: Clock
) -> None:
    """Score the corpus of a perplexity task and emit the outcome."""
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
        emit(failure_of(scenario, error, started, engine))
        return
    metrics = engine_metrics(engine) | {
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
            facts=engine_facts(engine) | {"corpus": corpus.name, "corpus_digest": corpus.digest},
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


def _quality_warnings(truncated: int, skipped: int, task: PerplexityTask) -> tuple[str, ...]:
    found = []
    if truncated:
        found.append(
            f"{truncated} tokens were cut from documents longer than {task.max_length}: raise max_length"
        )
    if skipped:
        found.append(f"{skipped} document(s) of one token were left out: one token predicts nothing")
    return tuple(found)
