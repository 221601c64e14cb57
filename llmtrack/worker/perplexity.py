"""Score a corpus on a loaded engine: as a scenario, beside the timing of another, or one shard of several."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from llmtrack.devices import on_gpu
from llmtrack.engine import Engine
from llmtrack.errors import in_words
from llmtrack.host.formatting import plural
from llmtrack.measure.best_effort import BestEffort
from llmtrack.measure.system_metrics import system_steps
from llmtrack.measure.timing import Clock
from llmtrack.metrics import REFERENCE_TAG_PREFIX
from llmtrack.models import durations
from llmtrack.quality.attach import Scores, drift_line, with_drift, with_scores, without_drift, without_scores
from llmtrack.quality.corpora import Corpus, load_corpus
from llmtrack.quality.drift import compare_distributions, compare_row, rows_to_compare
from llmtrack.quality.encoding import tokens_digest
from llmtrack.quality.metrics import cut_warnings, quality_warnings
from llmtrack.quality.perplexity import Batch, prepare, score_shard, score_texts
from llmtrack.quality.shards import share_out
from llmtrack.spec.events import LOADING, Emit, Log, Progress, SoFar
from llmtrack.spec.outcome import Failure, Measurement, StepValues
from llmtrack.spec.scenario import QualityCheck, Scalar, Scenario, Variant
from llmtrack.spec.scores import Compared, Part
from llmtrack.spec.task import PerplexityTask, ShardTask, workload_id
from llmtrack.worker.device_metrics import Watch, energy_figures, gauge_for, roof_of, scoring_roofline
from llmtrack.worker.outcomes import engine_facts, engine_metrics, failure_kind, failure_of

Ready = dict[ShardTask, tuple[Corpus, Any]]
"""Texts and what the engine prepared of them, by the common part of their shards."""


@dataclass(frozen=True, kw_only=True)
class CorpusScores(Scores):
    """Results of scoring a corpus."""

    corpus: Corpus
    peak_memory_bytes: int | None
    steps: tuple[StepValues, ...]


def measure_perplexity(scenario: Scenario, task: PerplexityTask, engine: Engine, emit: Emit, clock: Clock) -> None:
    """Score the corpus of a perplexity task and emit the outcome."""
    started_at = time.time()
    try:
        scored = _scored(scenario.name, task, engine, emit, clock)
    except Exception as error:
        emit(failure_of(scenario, error, started_at, engine))
        return
    emit(
        Measurement(
            scenario=scenario,
            workload_id=workload_id(task, scored.corpus.digest),
            facts=engine_facts(engine) | scored.facts | {"batch_size": scored.batch_size},
            metrics=engine_metrics(engine, scored.peak_memory_bytes) | scored.metrics,
            warnings=scored.warnings + engine.info.warnings,
            tags=dict(engine.info.tags),
            series={"batch_loss": scored.batch_losses, **engine.info.series},
            steps=scored.steps,
            items=scored.items,
            started_at=started_at,
            ended_at=time.time(),
            texts=dict(engine.info.texts),
        )
    )


def measure_quality(
    scenario: Scenario,
    check: QualityCheck,
    engine: Engine,
    load: Callable[[Variant], Engine],
    emit: Emit,
    clock: Clock,
) -> None:
    """Score and compare the quality check of a scenario that was timed before; emit the outcome of that alone."""
    untimed = Measurement(scenario, workload_id(scenario.task), {}, {}, started_at=time.time())
    emit(with_quality(untimed, check, engine, load, emit, clock))


def with_quality(
    timed: Measurement,
    check: QualityCheck,
    engine: Engine,
    load: Callable[[Variant], Engine],
    emit: Emit,
    clock: Clock,
) -> Measurement | Failure:
    """Add the quality of the same engine to a timed measurement.

    A failure to score leaves a warning, as the speed is known; but a model with a non-finite loss fails, because its
    speed is meaningless.

    Args:
        load: load the reference, kept only during the comparison.
    """
    name = timed.scenario.name
    try:
        scored = _scored(name, check.perplexity, engine, emit, clock)
    except Exception as error:
        if failure_kind(error) == "non_finite":
            return failure_of(timed.scenario, error, timed.started_at, engine)
        return without_scores(timed, in_words(error))
    timed = with_scores(timed, scored)
    if check.reference is None or check.reference == timed.scenario.variant:
        return timed
    # Loading a second model takes the most memory, so it comes last.
    emit(SoFar(timed))
    try:
        emit(Progress(name, f"{LOADING} the reference"))
        reference = load(check.reference)
        tags = reference_tags(reference)
        try:
            drift = compare_distributions(
                engine,
                reference,
                scored.corpus.texts,
                max_length=check.perplexity.max_length,
                bos_rule=check.perplexity.bos_rule,
                max_tokens=check.reference_tokens,
                on_row=lambda tokens: emit(Progress(name, f"compared with the reference on {tokens} tokens")),
            )
        finally:
            reference.close()
    except Exception as error:
        return without_drift(timed, in_words(error))
    emit(Log(drift_line(drift)))
    return with_drift(timed, check, drift, tags)


def _scored(name: str, task: PerplexityTask, engine: Engine, emit: Emit, clock: Clock) -> CorpusScores:
    emit(Progress(name, "reading the corpus"))

    def on_batch(batch: Batch) -> None:
        if batch.number == 1:
            estimate = durations.last_duration_text(work, model)
            batches = plural(batch.of, "batch", "batches") + (f" ({estimate})" if estimate else "")
            emit(Log(f"  {name}: scoring the perplexity of {task.corpus} in {batches} ..."))
        emit(Progress(name, f"batch {batch.number}/{batch.of}", batch.number / batch.of))
        if task.verbose:
            emit(Log(str(batch)))

    corpus = load_corpus(task.corpus)
    work = f"scoring {workload_id(task, corpus.digest)}"
    model = f"{engine.info.model_id} in {engine.info.dtype_label}"
    beside = BestEffort()
    beside.get("the first pass", partial(warm_up, engine), None)
    beside.get("the peak memory", engine.reset_peak_memory, None)
    device = engine.info.device
    watch = Watch(device, gauge_for(engine.info, beside), beside)
    start = clock()
    quality = score_texts(engine, corpus.texts, task, on_batch)
    seconds = clock() - start
    durations.record_duration(work, seconds, model)
    readings, disturbing = watch.end()
    peak = beside.get("the peak memory", engine.peak_memory_bytes, None)
    metrics = quality.figures
    if seconds > 0:
        metrics["score_tokens_per_sec"] = quality.tokens_scored / seconds
    facts: dict[str, Scalar] = {}
    if (roof := roof_of(engine.info, beside)) is not None:
        roofline = partial(scoring_roofline, engine.info, quality.tokens_read, seconds, roof)
        shares, facts = beside.get("the roofline", roofline, ({}, {}))
        metrics |= shares
    joules, source = beside.get(
        "the energy", partial(energy_figures, device, readings, quality.tokens_scored, "score_"), ({}, {})
    )
    metrics, facts = metrics | joules, facts | source
    emit(
        Log(
            f"average loss {quality.loss:.4f} nats, perplexity {quality.perplexity:.3f} ({quality.tokens_scored} tokens)"
        )
    )
    return CorpusScores(
        metrics=metrics,
        facts={**facts, **corpus_facts(corpus, task), **quality.facts},
        warnings=(
            corpus.warnings + quality_warnings(quality) + cut_warnings(quality, task) + disturbing + beside.warnings
        ),
        batch_losses=quality.batch_losses,
        batch_size=quality.batch_size,
        items=quality.items,
        corpus=corpus,
        peak_memory_bytes=peak,
        steps=system_steps(watch.around),
    )


def measure_shard(
    scenario: Scenario,
    task: ShardTask,
    engine: Engine,
    ready: Ready,
    load: Callable[[Variant], Engine],
    emit: Emit,
    clock: Clock,
) -> None:
    """Score a shard, or compare it with the reference if there is one; emit a measurement whose `part` is to be merged.

    Its time includes tokenizing the text, once for all shards of this worker.

    Args:
        ready: texts prepared by this engine.
        load: return the reference, which stays loaded for further shards.
    """
    started_at = time.time()
    try:
        emit(Progress(scenario.name, "reading the corpus"))
        key = replace(task, number=0)
        corpus, text = ready.get(key) or (load_corpus(task.corpus), None)
        ready.clear()
        beside = BestEffort()
        tags = dict(engine.info.tags)
        beside.get("the peak memory", engine.reset_peak_memory, None)
        part: Part | Compared
        if scenario.quality is None:
            beside.get("the first pass", partial(warm_up, engine), None)
            part, text = _score_shard(scenario.name, task, engine, corpus, text, emit, clock)
        else:
            assert scenario.quality.reference is not None  # otherwise there is nothing to compare with
            emit(Progress(scenario.name, f"{LOADING} the reference"))
            reference = load(scenario.quality.reference)
            tags |= reference_tags(reference)
            check, name = scenario.quality, scenario.name
            part, text = _compare_shard(name, task, check, engine, reference, corpus, text, emit, clock)
        ready[key] = corpus, text
        peak = beside.get("the peak memory", engine.peak_memory_bytes, None)
    except Exception as error:
        emit(failure_of(scenario, error, started_at, engine))
        return
    emit(
        Measurement(
            scenario=scenario,
            workload_id=workload_id(task, corpus.digest),
            facts=engine_facts(engine) | corpus_facts(corpus, task),
            metrics=engine_metrics(engine, peak),
            warnings=corpus.warnings + beside.warnings + engine.info.warnings,
            tags=tags,
            series=dict(engine.info.series),
            started_at=started_at,
            ended_at=time.time(),
            texts=dict(engine.info.texts),
            part=part,
        )
    )


def _score_shard(
    name: str, task: ShardTask, engine: Engine, corpus: Corpus, text: Any, emit: Emit, clock: Clock
) -> tuple[Part, Any]:
    def on_batch(batch: Batch) -> None:
        emit(Progress(name, f"batch {batch.number}/{batch.of}", batch.number / batch.of))
        if task.verbose:
            emit(Log(f"{name} {batch}"))

    start = clock()
    text = text or prepare(engine, corpus.texts, task)
    batches, of = score_shard(engine, text, task, on_batch)
    return Part(text.text, of, batches, clock() - start), text


def _compare_shard(
    name: str,
    task: ShardTask,
    check: QualityCheck,
    engine: Engine,
    reference: Engine,
    corpus: Corpus,
    rows: Any,
    emit: Emit,
    clock: Clock,
) -> tuple[Compared, Any]:
    start = clock()
    rows = rows or rows_to_compare(
        engine, reference, corpus.texts, task.max_length, task.bos_rule, check.reference_tokens
    )
    numbers = share_out([len(row.ids) for row in rows], task.of)[task.number]
    sums = {}
    for position, number in enumerate(numbers, start=1):
        sums[number] = compare_row(engine, reference, rows[number])
        emit(Progress(name, f"row {position}/{len(numbers)}", position / len(numbers)))
    return Compared(len(rows), tokens_digest(rows), sums, clock() - start), rows


def reference_tags(reference: Engine) -> dict[str, str]:
    """Return the tags with the digests of the reference."""
    tags = reference.info.tags.items()
    return {REFERENCE_TAG_PREFIX + key: value for key, value in tags if key.endswith("_digest")}


def corpus_facts(corpus: Corpus, task: PerplexityTask) -> dict[str, Scalar]:
    """Return the params that identify the scored text."""
    return {
        "corpus": corpus.name,
        "corpus_digest": corpus.digest,
        "corpus_blank_rows": corpus.blank,
        "stride": task.window_stride,
    }


def warm_up(engine: Engine) -> None:
    """Score a few tokens before timing: the first pass on a GPU creates kernels and handles.

    Compiled code differs for rows with pads and for a single row.
    """
    if on_gpu(engine.info.device):
        ids = torch.zeros((2, 8), dtype=torch.int64)
        padded = torch.ones_like(ids)
        padded[1, 5:] = 0
        for rows, mask in ((2, torch.ones_like(ids)), (2, padded), (1, padded[:1])):
            engine.score(ids[:rows], mask)
