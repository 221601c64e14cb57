"""Measure perplexity tasks on a loaded engine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields

from llmtrack.engines.base import Engine
from llmtrack.measure.interference import busy_warning, read_cpu
from llmtrack.measure.timing import Clock
from llmtrack.quality.corpora import Corpus, load_corpus
from llmtrack.quality.perplexity import Batch, Quality, score_documents, score_rolling
from llmtrack.run.events import Log, Progress
from llmtrack.run.outcomes import MIB, Emit, engine_facts, engine_metrics, failure_of
from llmtrack.scenario import Measurement, PerplexityTask, Scenario, workload_id

_FIGURES = tuple(field.name for field in fields(Quality) if field.name != "batch_losses")


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
        quality = _score(task, engine, corpus, on_batch)
        seconds, peak = clock() - start, engine.peak_memory_bytes()
    except Exception as error:
        emit(failure_of(scenario, error, started, engine))
        return
    figures = {name: getattr(quality, name) for name in _FIGURES}
    metrics = engine_metrics(engine) | {
        name: float(value) for name, value in figures.items() if value is not None
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
            facts=engine_facts(engine)
            | {"corpus": corpus.name, "corpus_digest": corpus.digest, "stride": task.window_stride},
            metrics=metrics,
            warnings=_quality_warnings(quality, task)
            + busy_warning(before, read_cpu())
            + engine.info.warnings,
            tags=dict(engine.info.tags),
            series={"batch_loss": quality.batch_losses},
            started_at=started,
            ended_at=time.time(),
        )
    )


def _score(
    task: PerplexityTask, engine: Engine, corpus: Corpus, on_batch: Callable[[Batch], None]
) -> Quality:
    if task.protocol == "rolling":
        return score_rolling(
            engine,
            corpus.texts,
            max_length=task.max_length,
            stride=task.stride,
            bos_rule=task.bos_rule,
            max_tokens=task.max_tokens,
            batch_size=task.batch_size,
            padding_side=task.padding_side,
            on_batch=on_batch,
        )
    return score_documents(
        engine,
        corpus.texts,
        max_length=task.max_length,
        bos_rule=task.bos_rule,
        batch_size=task.batch_size,
        padding_side=task.padding_side,
        on_batch=on_batch,
    )


def _quality_warnings(quality: Quality, task: PerplexityTask) -> tuple[str, ...]:
    found = []
    # What max_tokens leaves out of a stream was asked for.
    if quality.tokens_truncated and task.protocol == "documents":
        found.append(
            f"{quality.tokens_truncated} tokens were cut from documents longer than {task.max_length}: raise max_length"
        )
    if quality.documents_skipped:
        found.append(
            f"{quality.documents_skipped} document(s) of one token were left out: one token predicts nothing"
        )
    return tuple(found)
