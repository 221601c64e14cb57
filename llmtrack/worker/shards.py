"""Score one shard of a text, or compare it with a reference, as one of several workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from llmtrack.engine import Engine
from llmtrack.measure.best_effort import BestEffort
from llmtrack.measure.timing import Clock
from llmtrack.quality.corpora import Corpus, load_corpus
from llmtrack.quality.drift import compare_row, rows_to_compare
from llmtrack.quality.encoding import tokens_digest
from llmtrack.quality.perplexity import Batch, prepare, score_shard
from llmtrack.quality.shards import share_out
from llmtrack.spec.events import Emit, Log, Progress
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import QualityCheck, Scenario, Variant
from llmtrack.spec.scores import Compared, Part
from llmtrack.spec.task import ShardTask, workload_id
from llmtrack.worker.outcomes import engine_facts, engine_metrics, failure_of
from llmtrack.worker.perplexity import corpus_facts, reference_tags, warm_up

# Texts and what the engine prepared of them, by the common part of their shards.
Ready = dict[ShardTask, tuple[Corpus, Any]]


def measure_shard(
    scenario: Scenario,
    task: ShardTask,
    engine: Engine,
    ready: Ready,
    load: Callable[[Variant], Engine],
    emit: Emit,
    clock: Clock,
) -> None:
    """Measure a shard and emit a measurement whose `part` is merged with the others'.

    It is scored, or compared with the reference if the scenario has one. Its time includes tokenizing the text, once
    for all shards of this worker.

    Args:
        task: the shard.
        ready: texts prepared by this engine.
        load: return the reference, which stays loaded for further shards.
        emit: receives progress and the outcome.
        clock: times the work.
    """
    started = time.time()
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
            part, text = _scored(scenario.name, task, engine, corpus, text, emit, clock)
        else:
            assert scenario.quality.reference is not None  # otherwise there is nothing to compare with
            reference = load(scenario.quality.reference)
            tags |= reference_tags(reference)
            check, name = scenario.quality, scenario.name
            part, text = _compared(name, task, check, engine, reference, corpus, text, emit, clock)
        ready[key] = corpus, text
        peak = beside.get("the peak memory", engine.peak_memory_bytes, None)
    except Exception as error:
        emit(failure_of(scenario, error, started, engine))
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
            started_at=started,
            ended_at=time.time(),
            texts=dict(engine.info.texts),
            part=part,
        )
    )


def _scored(
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


def _compared(
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
    mine = share_out([len(row.ids) for row in rows], task.of)[task.number]
    sums = {}
    for done, number in enumerate(mine, start=1):
        sums[number] = compare_row(engine, reference, rows[number])
        emit(Progress(name, f"row {done}/{len(mine)}", done / len(mine)))
    return Compared(len(rows), tokens_digest(rows), sums, clock() - start), rows
