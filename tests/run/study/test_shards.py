"""Several workers score a text: lost shards are scored again, others are not, and the result is that of one worker."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.experiment import Experiment
from llmtrack.host.signals import end_on_signal
from llmtrack.metrics import METRIC_BY_NAME, PARAM_BY_NAME
from llmtrack.run.executors.executor import ParallelWorkers
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.executors.process import ProcessExecutor
from llmtrack.run.study import scoring as sharing
from llmtrack.run.study.scoring import run_scenarios
from llmtrack.run.study.shards import merge_shards, shards_of
from llmtrack.run.study.study import run_study
from llmtrack.spec.events import Log, Progress, Warn, event_from_json, event_to_json
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.scores import Compared, Part, RowSums, Scored, Text
from llmtrack.spec.task import workload_id
from llmtrack.tracking.read.query import runs, studies
from tests.conftest import HANG_S
from tests.forking import ForkedWorker
from tests.run.scenarios import generating, outcomes, scoring

EACH = 8


@pytest.fixture(autouse=True)
def _few_shards(monkeypatch):
    monkeypatch.setattr(sharing, "SHARDS_EACH", EACH)


WHOLE = Text("documents", 16, 16, 16, 0, 0, 0, 0, 0, "t", "u")


def measured(shard: Scenario, seconds: float = 1.0, **changes) -> Measurement:
    """Return the measurement of a shard: one document of 1 nat for each of 16 shards."""
    number = shard.task.number
    scored = Scored((number,), (1.0,), (1,), (1.0,), ((1,),))
    part = Part(WHOLE, shard.task.of, {number: scored}, seconds)
    return Measurement(shard, "w", {"model_id": "m"}, {"load_time_s": 1.0 + number}, part=part, **changes)


def lost(shard: Scenario, kind: str = "killed") -> Failure:
    return Failure(shard, kind, "the worker was killed")


class Fake:
    """Two workers; `behave` returns what happens to a shard, by the numbers of worker and shard."""

    def __init__(self, behave, **options):
        self.behave, self.options = behave, {"retries": 2, **options}
        self.asked: list[tuple[int, str]] = []
        self.alone: list[str] = []
        self.stopped = threading.Event()
        # Neither gets ahead before the other has begun.
        self.begun = threading.Barrier(2)

    def run(self, scenarios, emit):
        self.alone += [scenario.name for scenario in scenarios]

    @contextmanager
    def start_workers(self, workers):
        assert workers == 2
        yield ParallelWorkers((self._worker(0), self._worker(1)), self.stopped.set, **self.options)

    def _worker(self, worker):
        first = []

        def run(scenarios, emit):
            if not first:
                first.append(True)
                self.begun.wait(HANG_S)
            for scenario in scenarios:
                self.asked.append((worker, scenario.task.number))
                emit(Progress(scenario.name, "batch 1/2", 0.5))
                emit(self.behave(worker, scenario))

        return run


def run(executor, *scenarios):
    events = []
    run_scenarios(executor, scenarios or (scoring("text", workers=2),), events.append)
    return events


def outcome(events):
    (result,) = outcomes(events)
    return result


def test_shards_are_merged_into_one_measurement_and_progress():
    fake = Fake(lambda worker, shard: measured(shard))
    events = run(fake)
    done = outcome(events)
    assert done.scenario == scoring("text", workers=2)
    assert (done.metrics["loss"], done.metrics["tokens_scored"]) == (1.0, 16.0)
    assert (done.facts["workers"], done.facts["shards"]) == (2, 2 * EACH)
    assert done.metrics["load_time_s"] == 16.0, "of the worker that took longest"
    assert done.part is None
    assert sorted(number for _, number in fake.asked) == list(range(16))
    progress = [event for event in events if isinstance(event, Progress)]
    assert {event.scenario for event in progress} == {"text"}
    shares = [event.done for event in progress]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.5 / 16, 1.0)
    assert progress[-1].step == "16/16 shards, 2 workers"
    assert set(done.metrics) <= set(METRIC_BY_NAME)
    assert set(done.facts) <= set(PARAM_BY_NAME)


def test_the_speed_counts_the_slowest_worker():
    shards = shards_of(scoring("text"), scoring("text").task, 16)
    # Twelve shards of half a second by one worker, four of two by the other: 16 tokens in 8 s.
    done = [(0, measured(shard, 0.5)) for shard in shards[:12]] + [(1, measured(shard, 2.0)) for shard in shards[12:]]
    result = merge_shards(scoring("text"), scoring("text").task, done)
    assert result.metrics["score_tokens_per_sec"] == 2.0
    assert result.texts["shards.txt"].splitlines()[:2] == ["shard\tworker\tnode\ttokens\tseconds", "1\t1\t\t1\t0.500"]


def test_nodes_and_warnings_of_workers_are_listed_once():
    shards = shards_of(scoring("text"), scoring("text").task, 16)
    done = [
        (shard.task.number % 2, measured(shard, tags={"node": "ab"[shard.task.number % 2]}, warnings=("random",)))
        for shard in shards
    ]
    result = merge_shards(scoring("text"), scoring("text").task, done)
    assert result.tags["node"] == "a, b"
    assert result.warnings == ("random",)


def test_only_a_lost_shard_is_scored_again():
    losses = [3]

    def behave(worker, shard):
        return lost(shard) if shard.task.number in losses and losses.pop() else measured(shard)

    fake = Fake(behave)
    events = run(fake)
    assert isinstance(outcome(events), Measurement)
    numbers = [number for _, number in fake.asked]
    assert sorted(numbers) == sorted([*range(16), 3])
    assert "  text [shard 4/16]: the worker was killed; it is scored again" in [
        event.text for event in events if isinstance(event, Log)
    ]


def test_a_shard_lost_each_time_fails_the_scenario():
    fake = Fake(lambda worker, shard: lost(shard) if shard.task.number == 3 else measured(shard))
    result = outcome(run(fake))
    assert (result.kind, result.reason) == ("killed", "shard 4/16: lost 3 times: the worker was killed")
    assert result.scenario == scoring("text", workers=2)
    assert [number for _, number in fake.asked].count(3) == 3


def test_failures_of_the_work_are_not_retried():
    fake = Fake(lambda worker, shard: lost(shard, "non_finite"), all_at_once=False)
    result = outcome(run(fake))
    assert (result.kind, result.reason[-23:]) == ("non_finite", ": the worker was killed")
    assert len(fake.asked) <= 2, "no further shard is begun"


def test_workers_with_different_weights_fail():
    tags = [{"weights_digest": "a"}, {"weights_digest": "b"}]
    result = outcome(run(Fake(lambda worker, shard: measured(shard, tags=tags[shard.task.number % 2]))))
    assert isinstance(result, Failure)
    assert "workers loaded different models" in result.reason


def test_a_worker_that_reloads_gets_its_share_at_once():
    fake = Fake(lambda worker, shard: measured(shard), all_at_once=True)
    run(fake)
    mine = [number for worker, number in fake.asked if worker == 0]
    assert len(mine) == EACH
    assert mine == list(range(mine[0], mine[0] + EACH))


def test_a_signal_stops_all_workers_without_retries():
    fake = Fake(None)

    def behave(worker, shard):
        assert fake.stopped.wait(HANG_S)
        return lost(shard)

    fake.behave = behave

    def take(event):
        if isinstance(event, Progress):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_scenarios(fake, (scoring("text", workers=2),), take)
    assert len(fake.asked) == 2


def test_one_worker_scores_the_whole_text():
    fake = Fake(None)
    assert run(fake, generating("timed"), scoring("text")) == []
    assert fake.alone == ["timed", "text"]


def test_the_number_of_workers_changes_the_id_but_one_is_the_default():
    alone, two = scoring("text"), scoring("text", workers=2)
    assert alone.scenario_id != two.scenario_id
    assert alone.scenario_id == "3b35f60a00ab56fe"
    works = [workload_id(scenario.task, "d") for scenario in (alone, two, *shards_of(two, two.task, 2))]
    assert len(set(works)) == 1, "it is resumed, and compared with what one worker scored"


@pytest.mark.parametrize("part", [None, Compared(1, "t", {0: RowSums(1.0, 1.0, 0.1, 0.3, 1)}, 0.5)])
def test_a_part_survives_json(part):
    (shard, *_) = shards_of(scoring("text"), scoring("text").task, 16)
    event = measured(shard)
    event = replace(event, part=part or event.part)
    assert event_from_json(json.loads(json.dumps(event_to_json(event)))) == event


@pytest.mark.slow(1)
def test_an_executor_with_one_worker_warns():
    load = lambda variant: ScriptedEngine(FakeClock(), Script(1.0, 1.0))  # noqa: E731
    events = run(InlineExecutor(load), scoring("text", workers=2, max_length=32))
    assert isinstance(outcome(events), Measurement)
    assert "workers" not in outcome(events).facts
    assert any("one worker" in event.text for event in events if isinstance(event, Warn))


@pytest.mark.slow(5)
def test_two_real_workers_score_as_one_although_one_is_killed():
    """Bit-identical: each batch is computed as by a single worker."""
    scenario = scoring("text", max_length=48, batch_size=1, workers=2)
    started, deaths, complete, killed = [], [], [], []

    class Seen(ForkedWorker):
        def __init__(self, *args):
            super().__init__(*args)
            started.append(self)

        def receive(self, seconds):
            message = super().receive(seconds)
            if "batch 1/" in json.dumps(message) and deaths:
                deaths.clear()
                os.kill(self.pid, signal.SIGKILL)
            return message

    executor = ProcessExecutor(start=Seen)
    try:
        run_scenarios(executor, (scenario,), complete.append)
        # The workers, and their model, serve the next text.
        run_scenarios(executor, (scoring("other", max_length=32, workers=2),), [].append)
        # The first one answered what machine this is.
        assert len(started) == 3
        deaths.append("one")
        run_scenarios(executor, (scenario,), killed.append)
        assert len(started) == 4
    finally:
        executor.close()
    alone = outcome(run(InlineExecutor(), replace(scenario, task=replace(scenario.task, workers=1))))
    exact = [
        name for name in alone.metrics if name.startswith(("loss", "perplexity", "bits", "word", "tokens", "bytes"))
    ]
    assert len(exact) > 6
    for events in (complete, killed):
        result = outcome(events)
        assert isinstance(result, Measurement), result
        assert {name: result.metrics[name] for name in exact} == {name: alone.metrics[name] for name in exact}
        assert result.series["batch_loss"] == alone.series["batch_loss"]
        assert result.facts["scored_tokens_digest"] == alone.facts["scored_tokens_digest"]
        assert result.facts["workers"] == 2
    assert not any(worker.lives() for worker in started)


NOISY = Variant("fine", backend="noisy", device="cpu")


@pytest.mark.slow(2)
@pytest.mark.usefixtures("_stays_at_the_terminal")
def test_ctrl_c_ends_scoring_workers_and_resume_scores_only_that_text(
    noisy_backend, tracker, uri, console, monkeypatch
):
    """Scenarios that had ended are tracked; of the text that was being scored nothing is, and resuming scores all of
    it.

    Both texts are scored by the same two workers, which load their model once.
    """
    monkeypatch.syspath_prepend(noisy_backend.with_name("site"))  # the driver knows the backend, too

    class Scripted(ProcessExecutor):
        def identify(self, scenario):
            return {}

    started = []

    class Interrupting(ForkedWorker):
        def __init__(self, *args):
            super().__init__(*args)
            started.append(self)

        def receive(self, seconds):
            message = super().receive(seconds)
            text = json.dumps(message)
            if "other [shard" in text and "batch 1/" in text:
                os.kill(os.getpid(), signal.SIGINT)
                while self.lives():
                    time.sleep(0.01)
            return message

    texts = [scoring(name, NOISY, max_length=length, workers=2) for name, length in (("one", 32), ("other", 48))]
    experiment = Experiment("texts", "How surprising?", tuple(texts), lambda runs, series: {}, lambda runs: [])
    first = Scripted(start=Interrupting)
    with pytest.raises(KeyboardInterrupt), end_on_signal():
        run_study(experiment, tracker=tracker, executor=first, console=console)
    assert not any(worker.lives() for worker in started)
    assert len(noisy_backend.read_text().splitlines()) == 2
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("llmtrack-shards")]
    assert sorted(runs(tracking_uri=uri)["scenario"]) == ["one"]
    assert list(studies(tracking_uri=uri)["outcome"]) == ["killed"]
    second = Scripted(start=ForkedWorker)
    try:
        result = run_study(experiment, tracker=tracker, executor=second, console=console, resume=True)
    finally:
        second.close()
    assert (result.measured, result.exit_code) == (1, 0)
    assert sorted(runs(tracking_uri=uri)["scenario"]) == ["one", "other"]
