"""Score one shard of a text, as one of several workers that score it together."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial

from llmtrack.engine import Engine
from llmtrack.events import Log, Progress
from llmtrack.measure.beside import Beside
from llmtrack.measure.timing import Clock
from llmtrack.outcome import Measurement
from llmtrack.quality.asked import prepare, score_shard
from llmtrack.quality.corpora import Corpus, load_corpus
from llmtrack.quality.perplexity import Batch, Prepared
from llmtrack.scenario import Scenario
from llmtrack.scored import Part
from llmtrack.task import ShardTask, workload_id
from llmtrack.worker.outcomes import MIB, Emit, engine_facts, engine_metrics, failure_of
from llmtrack.worker.perplexity import corpus_facts, warm_up

# A text, and the same ready to be scored, by what all of its shards have in common.
Ready = dict[ShardTask, tuple[Corpus, Prepared]]


def measure_shard(
    scenario: Scenario, task: ShardTask, engine: Engine, ready: Ready, emit: Emit, clock: Clock
) -> None:
    """Score a shard and emit the outcome: a measurement whose `part` is put together with the others'.

    Its time holds that the text is turned into tokens, once for all shards of this worker.

    Args:
        scenario: what is measured.
        task: which shard.
        engine: the loaded engine.
        ready: what was made of texts by this engine.
        emit: is told how it goes, and the outcome.
        clock: times the scoring.
    """
    started = time.time()
    try:
        emit(Progress(scenario.name, "reading the corpus"))
        key = replace(task, number=0)
        corpus, text = ready.get(key) or (load_corpus(task.corpus), None)
        beside = Beside()
        beside.get("the first pass", partial(warm_up, engine), None)
        beside.get("the peak memory", engine.reset_peak_memory, None)

        def on_batch(batch: Batch) -> None:
            emit(Progress(scenario.name, f"batch {batch.number}/{batch.of}", batch.number / batch.of))
            if task.verbose:
                emit(Log(f"{scenario.name} {batch}"))

        start = clock()
        text = text or prepare(engine, corpus.texts, task)
        batches, of = score_shard(engine, text, task, on_batch)
        part = Part(text.text, of, batches, clock() - start)
        ready.clear()
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
            metrics=engine_metrics(engine) | ({} if peak is None else {"peak_memory_mib": peak / MIB}),
            warnings=corpus.warnings + beside.warnings + engine.info.warnings,
            tags=dict(engine.info.tags),
            series=dict(engine.info.series),
            started_at=started,
            ended_at=time.time(),
            texts=dict(engine.info.texts),
            part=part,
        )
    )
