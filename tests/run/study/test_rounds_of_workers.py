"""Rounds in real workers on tiny models: each is loaded once, a killed one is replaced, quality is unchanged."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.executors.pool import Pool
from llmtrack.run.executors.process import ProcessExecutor
from llmtrack.spec.events import Log, Progress
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import QualityCheck
from llmtrack.spec.task import PerplexityTask, RepeatPolicy
from tests.forking import ForkedWorker
from tests.run.scenarios import MODEL, by_name, generating, in_groups, outcomes

FEW = RepeatPolicy(warmup=1, min_repeats=4, min_seconds=0, max_repeats=4)
CHECK = QualityCheck(PerplexityTask(max_length=32), reference=MODEL, reference_tokens=64)
QUALITY = ("loss", "perplexity", "tokens_scored")
BOUNDS = ("prefill_bound", "decode_bound", "score_bound")
DRIFT = ("kl_divergence", "top1_agreement", "tokens_compared")


class Workers:
    """A pool of workers that records which process served which job."""

    def __init__(self):
        self.pids: list[int] = []
        self.pool = Pool(self._make, is_full=lambda: False, fits=lambda *variants: True)

    def _make(self):
        workers = self

        class Worker(ForkedWorker):
            def __init__(self, *threads):
                super().__init__(*threads)
                workers.pids.append(self.pid)

        return ProcessExecutor(start=Worker)


@pytest.fixture
def workers():
    workers = Workers()
    yield workers
    workers.pool.close()


def groups(**changes):
    variants = {dtype: replace(MODEL, dtype=dtype) for dtype in ("float32", "bfloat16")}
    return [[replace(generating(name, variant, FEW), **changes)] for name, variant in variants.items()]


@pytest.mark.slow(4)
def test_workers_keep_their_models_and_quality_is_unchanged(workers):
    events = []
    in_groups(workers.pool, groups(quality=CHECK), events.append)
    result = by_name(events)
    assert set(result) == {"float32", "bfloat16"}
    loaded = [event.text for event in events if isinstance(event, Log) and event.text.startswith("Loaded:")]
    assert len(loaded) == 2
    assert len(workers.pids) == 2
    for outcome in result.values():
        assert isinstance(outcome, Measurement)
        assert outcome.rounds == (1, 1, 2, 2)
        assert outcome.summaries["total_latency_s"].n == 4
        assert outcome.scenario.repeat == FEW
    alone = []
    executor = InlineExecutor()
    for group in groups(quality=CHECK):
        executor.run(group, alone.append)
    executor.close()
    for name, outcome in by_name(alone).items():
        compared = [*QUALITY, *(DRIFT if name == "bfloat16" else ())]
        assert {key: result[name].metrics[key] for key in compared} == {key: outcome.metrics[key] for key in compared}
        assert result[name].series["batch_loss"] == outcome.series["batch_loss"]
        assert result[name].items == outcome.items
        assert ("loss_change" in outcome.items[0].values) == (name == "bfloat16")
        # How near it came to the device's ceilings depends on how busy the machine is.
        of_ceilings = {*outcome.facts, *result[name].facts} & {"ceilings_in_doubt", *BOUNDS}
        assert {*outcome.facts} - of_ceilings == {*result[name].facts} - of_ceilings
        assert {key for key in outcome.tags if "digest" in key} == {key for key in result[name].tags if "digest" in key}


@pytest.mark.slow(4)
def test_a_worker_killed_in_a_round_is_replaced(workers):
    events, killed = [], []

    def kill_once(event):
        events.append(event)
        is_there = isinstance(event, Progress) and event.scenario == "bfloat16"
        if is_there and event.step == "round 2, repeat 1" and not killed:
            killed.append(workers.pids[1])
            os.kill(killed[0], signal.SIGKILL)

    in_groups(workers.pool, groups(), kill_once)
    assert killed
    result = by_name(events)
    assert len(outcomes(events)) == 2
    # Maybe it was killed for lack of memory: the other model was freed meanwhile, and then loaded again.
    assert len(workers.pids) == 4
    for outcome in result.values():
        assert isinstance(outcome, Measurement)
        assert outcome.rounds == (1, 1, 2, 2)


@pytest.mark.slow(4)
def test_an_interruption_ends_the_workers_and_keeps_completed_rounds(workers):
    events = []

    def interrupt(event):
        events.append(event)
        if isinstance(event, Progress) and event.step == "round 2, repeat 1" and event.scenario == "float32":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_groups(workers.pool, groups(), interrupt)
    result = by_name(events)
    assert {name: outcome.rounds for name, outcome in result.items()} == {"float32": (1, 1), "bfloat16": (1, 1, 2, 2)}
    assert result["float32"].warnings[-1] == "measured in 1 of 2 rounds: it was interrupted"
