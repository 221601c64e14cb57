"""Several workers score a text beside a timed scenario: the results are those of one, and the timing is never lost."""

from __future__ import annotations

import json
import os
import signal
from contextlib import contextmanager
from dataclasses import replace

import pytest

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import UsageError
from llmtrack.metrics import METRIC_BY_NAME, PARAM_BY_NAME
from llmtrack.run.executors.executor import ParallelWorkers
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.executors.process import ProcessExecutor
from llmtrack.run.study.scoring import run_scenarios
from llmtrack.spec.events import Progress
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import QualityCheck, Variant
from llmtrack.spec.task import PerplexityTask
from tests.forking import ForkedWorker
from tests.run.scenarios import generating, outcomes

pytestmark = pytest.mark.usefixtures("_known_ceilings")

REFERENCE = Variant("reference", device="cpu")
CHECK = QualityCheck(PerplexityTask(max_length=32, batch_size=2), REFERENCE, 100)
SCORED = ("loss", "perplexity", "bits_per_byte", "tokens_scored", "bytes_scored", "documents_scored", "loss_stderr")
DRIFT = ("kl_divergence", "top1_agreement", "reference_perplexity_ratio", "tokens_compared")


def load(variant):
    """Load a reference that gives each token half the probability."""
    if variant.model == "gone":
        raise UsageError("no such model")
    return ScriptedEngine(FakeClock(), Script(1.0, 1.0), nll=1.7 if variant == REFERENCE else 1.0)


def timed_engine(clock):
    return lambda variant: ScriptedEngine(clock, Script(1.0, 1.0)) if variant != REFERENCE else load(variant)


class Two(InlineExecutor):
    """Times in this process, and offers two parallel workers."""

    def __init__(self, run=None, **options):
        clock = FakeClock()
        super().__init__(timed_engine(clock), clock)
        self.run_shards, self.options = run, options

    @contextmanager
    def start_workers(self, workers):
        assert workers == 2
        runs = tuple(self.run_shards or InlineExecutor(load).run for _ in range(2))
        yield ParallelWorkers(runs, lambda: None, **self.options)


def scenario(workers=2, reference=REFERENCE):
    task = replace(CHECK.perplexity, workers=workers)
    return replace(generating("one"), quality=replace(CHECK, perplexity=task, reference=reference))


def run(executor, scenario):
    events = []
    run_scenarios(executor, (scenario,), events.append)
    (result,) = outcomes(events)
    assert result.scenario == scenario
    return result


@pytest.mark.slow(1)
def test_shared_scoring_has_the_results_of_one_worker():
    clock = FakeClock()
    alone = run(InlineExecutor(timed_engine(clock), clock), scenario(workers=1))
    result = run(Two(), scenario())
    same = [*SCORED, *DRIFT, "tokens_per_sec", "total_latency_s"]
    assert {name: result.metrics[name] for name in same} == {name: alone.metrics[name] for name in same}
    assert result.metrics["kl_divergence"] > 0
    assert result.series["batch_loss"] == alone.series["batch_loss"]
    assert result.items == alone.items
    assert "top1_agreement" in result.items[0].values
    for name in ("corpus_digest", "scored_tokens_digest", "reference", "reference_tokens", "batch_size", "stride"):
        assert result.facts[name] == alone.facts[name]
    assert result.facts["score_workers"] == 2
    assert "workers" not in result.facts, "what is timed is of the same configuration"
    assert set(result.warnings) == set(alone.warnings)
    assert set(result.metrics) <= set(METRIC_BY_NAME)
    assert set(result.facts) <= set(PARAM_BY_NAME)


@pytest.mark.parametrize("kind", ["killed", "out_of_memory"])
def test_a_scoring_failure_keeps_the_speed(kind):
    def lose(shards, emit):
        for shard in shards:
            emit(Failure(shard, kind, "no memory is left"))

    result = run(Two(lose, retries=1), scenario())
    assert result.metrics["total_latency_s"] > 0
    assert "loss" not in result.metrics
    assert result.warnings[-1].startswith("its quality could not be scored: shard ")
    assert result.warnings[-1].endswith("no memory is left")


def test_a_non_finite_loss_fails_the_scenario():
    def spoil(shards, emit):
        for shard in shards:
            emit(Failure(shard, "non_finite", "the loss is not finite"))

    assert run(Two(spoil), scenario()).kind == "non_finite"


def test_without_the_reference_the_scores_are_kept():
    result = run(Two(), scenario(reference=Variant("gone")))
    assert result.metrics["loss"] == pytest.approx(1.0)
    assert "kl_divergence" not in result.metrics
    assert any("it could not be compared with the reference: " in warning for warning in result.warnings)


def test_an_interruption_while_scoring_keeps_the_timing():
    events = []

    def take(event):
        events.append(event)
        if isinstance(event, Progress) and "shards" in event.step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_scenarios(Two(), (scenario(),), take)
    (result,) = (event for event in events if isinstance(event, Measurement))
    assert result.metrics["total_latency_s"] > 0
    assert "it was interrupted" in result.warnings[-1]


@pytest.mark.slow(2)
def test_real_workers_score_as_one_although_one_dies(noisy_backend):
    """The first times it; two others score, one of which is killed while comparing."""
    deaths = ["row 1/"]

    class Deadly(ForkedWorker):
        def receive(self, seconds):
            message = super().receive(seconds)
            if deaths and deaths[0] in json.dumps(message):
                deaths.clear()
                os.kill(self.pid, signal.SIGKILL)
            return message

    requested = replace(scenario(), variant=Variant("fine", backend="noisy", device="cpu"))
    check = replace(requested.quality, reference=replace(requested.variant, model="reference"))
    executor = ProcessExecutor(start=Deadly)
    try:
        result = run(executor, replace(requested, quality=check))
    finally:
        executor.close()
    assert not deaths
    alone = run(Two(), scenario())
    same = [*SCORED, *DRIFT]
    assert {name: result.metrics[name] for name in same} == {name: alone.metrics[name] for name in same}
    assert result.metrics["total_latency_s"] > 0
    assert result.facts["score_workers"] == 2
