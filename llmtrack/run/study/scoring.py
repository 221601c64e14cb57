"""Measure scenarios, sharing the scoring of a text among several workers if requested."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from llmtrack.errors import ScenarioError, in_words
from llmtrack.host.formatting import plural
from llmtrack.measure.finite import NON_FINITE
from llmtrack.quality.attach import drift_line, with_drift, with_scores, without_drift, without_scores
from llmtrack.run.executors.executor import INTERRUPTED, Executor, ParallelWorkers, PartialResults, SideBySide
from llmtrack.run.study.shards import (
    SHARDS_EACH,
    merge_drifts,
    merge_figures,
    merge_shards,
    shards_of,
    work_off,
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
    """Measure scenarios of one variant; texts to be scored by several workers are shared among them.

    Timing comes first, alone on its machine. Emits a Measurement or a Failure for each scenario, like `Executor.run`,
    in this thread only.
    """
    many = [each for each in scenarios if _workers(each) != 1]
    if many and not isinstance(executor, SideBySide):
        emit(Warn(_ONE_WORKER))
        many = []
    beside = {each.name: each for each in many if each.quality is not None}
    alone = [replace(each, quality=None) if each.name in beside else each for each in scenarios]
    alone = [each for each in alone if each not in many]
    timed: list[Measurement] = []
    kept = PartialResults(emit)

    def take(event: Event) -> None:
        if isinstance(event, (Measurement, Failure)) and event.scenario.name in beside:
            event = replace(event, scenario=beside[event.scenario.name])
            if isinstance(event, Measurement):
                timed.append(event)
                event = SoFar(event)
        kept(event)

    try:
        if alone:
            executor.run(tuple(alone), take)
        if not isinstance(executor, SideBySide):
            return
        for each in timed:
            check = each.scenario.quality
            assert check is not None  # otherwise it would not have been deferred
            with executor.start_workers(check.perplexity.workers) as parallel:
                kept(_with_quality(each, check, parallel, kept))
        for scenario in many:
            task = scenario.task
            if isinstance(task, PerplexityTask):
                with executor.start_workers(task.workers) as parallel:
                    _score(scenario, task, parallel, emit)
    except BaseException:
        kept.emit_all_without(INTERRUPTED)
        raise


def score_beside(executor: Executor, timed: Measurement, emit: Emit) -> Measurement | Failure:
    """Add the requested quality to a timed measurement.

    A failure to score only leaves a warning, even if it ends the worker: the measured speed is kept.
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
            emit(_beside(timed, scored))
        raise
    return _beside(timed, collected.outcomes[0])


def _beside(timed: Measurement, scored: Measurement | Failure) -> Measurement | Failure:
    """Combine a timed measurement with separately scored quality."""
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
    """Return the requested number of scoring workers."""
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
    done = work_off(scenario, shards, parallel, emit)
    if isinstance(done, Failure):
        emit(done)
        return
    try:
        emit(merge_shards(scenario, task, done))
    except ScenarioError as error:
        emit(failure_of(scenario, error, min(each.started_at for _, each in done)))


def _with_quality(
    timed: Measurement, check: QualityCheck, parallel: ParallelWorkers, emit: Emit
) -> Measurement | Failure:
    """Add quality scored and compared by parallel workers to a timed measurement, by the rules of a single worker."""
    task, workers = check.perplexity, len(parallel.runs)
    scoring = replace(timed.scenario, task=task, quality=None)
    done = work_off(scoring, shards_of(scoring, task, SHARDS_EACH * workers), parallel, emit)
    if isinstance(done, Failure):
        if done.kind == NON_FINITE:
            return replace(done, scenario=timed.scenario, started_at=timed.started_at)
        return without_scores(timed, done.reason)
    try:
        found = merge_figures(task, done)
    except ScenarioError as error:
        return without_scores(timed, in_words(error))
    facts = {**found.facts, "score_workers": workers}
    timed = with_scores(timed, found.metrics, facts, found.warnings, found.batch_losses, found.items)
    timed = replace(timed, texts={**timed.texts, "shards.txt": found.listed})
    if check.reference is None or check.reference == timed.scenario.variant:
        return timed
    emit(SoFar(timed))
    comparing = replace(scoring, quality=check)
    done = work_off(comparing, shards_of(comparing, task, COMPARED_EACH * workers), parallel, emit)
    if isinstance(done, Failure):
        return without_drift(timed, done.reason)
    try:
        drift, told = merge_drifts(done)
    except ScenarioError as error:
        return without_drift(timed, in_words(error))
    emit(Log(drift_line(drift)))
    return with_drift(timed, check, drift, told)
