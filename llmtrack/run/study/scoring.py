"""Measure scenarios, sharing the scoring of a text among several workers if requested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmtrack.errors import ScenarioError, in_words
from llmtrack.host.formatting import plural
from llmtrack.measure.finite import NON_FINITE
from llmtrack.quality.attach import drift_line, with_drift, with_scores, without_drift, without_scores
from llmtrack.run.executors.executor import Executor, ParallelWorkers, PartialResults, SideBySide
from llmtrack.run.study.shards import (
    SHARDS_EACH,
    merge_comparisons,
    merge_scores,
    merge_shards,
    score_shards,
    shards_of,
)
from llmtrack.spec.events import Collected, Emit, Event, Log, SoFar, Warn
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import QualityCheck, Scenario
from llmtrack.spec.task import PerplexityTask
from llmtrack.worker.outcomes import failure_of

COMPARED_EACH = 4
"""Shards per worker when comparing with a reference: few rows, each computed by two models."""

_ONE_WORKER = "this executor has one worker, which scores the whole text"


def run_scenarios(executor: Executor, scenarios: Sequence[Scenario], emit: Emit) -> None:
    """Measure scenarios of one variant; texts to be scored by several workers are shared among them, after all timing.

    Emits a Measurement or a Failure for each scenario, like `Executor.run`, in this thread only.
    """
    shared = [scenario for scenario in scenarios if _workers(scenario) != 1]
    if shared and not isinstance(executor, SideBySide):
        emit(Warn(_ONE_WORKER))
        shared = []
    beside = {scenario.name: scenario for scenario in shared if scenario.quality is not None}
    alone = [
        replace(scenario, quality=None) if scenario.name in beside else scenario
        for scenario in scenarios
        if scenario.name in beside or scenario not in shared
    ]
    with PartialResults(emit) as results:

        def on_event(event: Event) -> None:
            if isinstance(event, (Measurement, Failure)) and event.scenario.name in beside:
                event = replace(event, scenario=beside[event.scenario.name])
                event = SoFar(event) if isinstance(event, Measurement) else event
            results(event)

        if alone:
            executor.run(tuple(alone), on_event)
        if not isinstance(executor, SideBySide):
            return
        for timed in results.held:
            check = timed.scenario.quality
            assert check is not None  # otherwise its outcome would have arrived
            with executor.start_workers(check.perplexity.workers) as parallel:
                results(_with_quality(timed, check, parallel, results))
        for scenario in shared:
            if isinstance(scenario.task, PerplexityTask):
                with executor.start_workers(scenario.task.workers) as parallel:
                    _score(scenario, scenario.task, parallel, emit)


def score_beside(executor: Executor, timed: Measurement, emit: Emit) -> Measurement | Failure:
    """Add the requested quality to a timed measurement.

    A failure to score leaves a warning, even if it ends the worker: the measured speed is kept.
    """
    scenario, check = timed.scenario, timed.scenario.quality
    assert check is not None  # otherwise there is nothing to score
    if _workers(scenario) != 1 and isinstance(executor, SideBySide):
        with executor.start_workers(check.perplexity.workers) as parallel:
            return _with_quality(timed, check, parallel, emit)
    if _workers(scenario) != 1:
        emit(Warn(_ONE_WORKER))
    collected = Collected(emit)
    try:
        executor.run((replace(scenario, task=check.perplexity),), collected)
    except BaseException:
        for scored in collected.outcomes:
            emit(_combined(timed, scored))
        raise
    return _combined(timed, collected.outcomes[0])


def _combined(timed: Measurement, scored: Measurement | Failure) -> Measurement | Failure:
    if isinstance(scored, Measurement):
        return replace(
            timed,
            metrics={**timed.metrics, **scored.metrics},
            facts={**timed.facts, **scored.facts},
            tags={**timed.tags, **scored.tags},
            series={**timed.series, **scored.series},
            items=scored.items,
            warnings=tuple(dict.fromkeys((*timed.warnings, *scored.warnings))),
            ended_at=scored.ended_at,
        )
    if scored.kind == NON_FINITE:
        return replace(scored, scenario=timed.scenario, started_at=timed.started_at)
    return without_scores(timed, scored.reason)


def _workers(scenario: Scenario) -> int | None:
    task = scenario.task if scenario.quality is None else scenario.quality.perplexity
    return task.workers if isinstance(task, PerplexityTask) else 1


def _score(scenario: Scenario, task: PerplexityTask, parallel: ParallelWorkers, emit: Emit) -> None:
    workers = len(parallel.runs)
    if task.workers is not None and workers < task.workers:
        emit(Warn(f"{plural(workers, 'worker')}, since there is room for no more at once"))
    if workers == 1:
        parallel.runs[0]((scenario,), emit)
        return
    shards = shards_of(scenario, task, SHARDS_EACH * workers)
    emit(Log(f"  {scenario.name}: scoring {task.corpus} in {len(shards)} shards by {workers} workers ..."))
    outcomes = score_shards(scenario, shards, parallel, emit)
    if isinstance(outcomes, Failure):
        emit(outcomes)
        return
    try:
        emit(merge_shards(scenario, task, outcomes))
    except ScenarioError as error:
        emit(failure_of(scenario, error, min(shard.started_at for _, shard in outcomes)))


def _with_quality(
    timed: Measurement, check: QualityCheck, parallel: ParallelWorkers, emit: Emit
) -> Measurement | Failure:
    """Add quality scored and compared by parallel workers to a timed measurement, by the rules of a single worker."""
    task, workers = check.perplexity, len(parallel.runs)
    scoring = replace(timed.scenario, task=task, quality=None)
    outcomes = score_shards(scoring, shards_of(scoring, task, SHARDS_EACH * workers), parallel, emit)
    if isinstance(outcomes, Failure):
        if outcomes.kind == NON_FINITE:
            return replace(outcomes, scenario=timed.scenario, started_at=timed.started_at)
        return without_scores(timed, outcomes.reason)
    try:
        scores = merge_scores(task, outcomes)
    except ScenarioError as error:
        return without_scores(timed, in_words(error))
    timed = with_scores(timed, replace(scores, facts={**scores.facts, "score_workers": workers}))
    timed = replace(timed, texts={**timed.texts, "shards.txt": scores.table})
    if check.reference is None or check.reference == timed.scenario.variant:
        return timed
    emit(SoFar(timed))
    comparing = replace(scoring, quality=check)
    outcomes = score_shards(comparing, shards_of(comparing, task, COMPARED_EACH * workers), parallel, emit)
    if isinstance(outcomes, Failure):
        return without_drift(timed, outcomes.reason)
    try:
        drift, tags = merge_comparisons(outcomes)
    except ScenarioError as error:
        return without_drift(timed, in_words(error))
    emit(Log(drift_line(drift)))
    return with_drift(timed, check, drift, tags)
