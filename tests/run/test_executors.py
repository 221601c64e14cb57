"""Real worker processes: what comes back, what survives a death, and what must not be disturbed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

from llmtrack.errors import LlmtrackError
from llmtrack.run.events import Log, Progress
from llmtrack.run.executors import InlineExecutor, ProcessExecutor
from llmtrack.scenario import Failure, Measurement, RepeatPolicy, Variant
from tests.run.scenarios import MODEL, generating, scoring

ONCE = RepeatPolicy(warmup=0, min_repeats=1, min_seconds=0, max_repeats=1)


@pytest.fixture
def executor() -> Iterator[ProcessExecutor]:
    executor = ProcessExecutor()
    yield executor
    executor.close()


def run(executor, *scenarios):
    events = []
    executor.run(scenarios, events.append)
    return events


def outcomes(events):
    return {event.scenario.name: event for event in events if isinstance(event, (Measurement, Failure))}


def kinds(events):
    return {
        name: each.kind if isinstance(each, Failure) else "measured"
        for name, each in outcomes(events).items()
    }


def test_a_worker_measures_and_one_that_is_killed_loses_one_scenario(executor, monkeypatch):
    """One model in real workers: facts of the machine, outcomes, then a kill in mid-measurement."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    machine = executor.machine()
    assert machine["devices"].startswith("cpu")
    assert machine["threads"] == "1"
    first = executor._worker.pid
    scenarios = [
        generating("one", repeat=ONCE),
        generating("victim", repeat=RepeatPolicy(0, 500, 0, 600, 500), max_new_tokens=20),
        scoring("after", max_length=64),
    ]
    events = []

    def kill_once(event):
        events.append(event)
        if event == Progress("victim", "repeat 2"):
            assert executor._worker.pid == first, "the worker that described the machine measures"
            os.kill(first, signal.SIGKILL)

    executor.run(scenarios, kill_once)
    assert kinds(events) == {"one": "measured", "victim": "killed", "after": "measured"}
    assert executor._worker.pid != first
    assert (
        "killed (SIGKILL), most likely by the system for lack of memory" in outcomes(events)["victim"].reason
    )
    one = outcomes(events)["one"]
    assert one.scenario == scenarios[0]
    assert one.facts["model_id"] == "synthetic:tiny"
    assert one.metrics["tokens_generated"] == 5
    assert one.metrics["total_latency_s"] > 0
    after = outcomes(events)["after"]
    assert after.metrics["perplexity"] > 1
    assert one.started_at < after.started_at


def test_what_libraries_print_does_not_disturb_the_events(executor, noisy_backend, capfd):
    """print, writes to descriptor 1 and child processes all go to standard error."""
    variant = Variant("fine", backend="noisy", device="cpu")
    events = run(executor, generating("one", variant), scoring("two", variant))
    assert kinds(events) == {"one": "measured", "two": "measured"}
    assert events[0] == Log("Loaded: scripted | device=cpu | dtype=float32")
    captured = capfd.readouterr()
    assert captured.out == ""
    for text in ("loading", "generating", "scoring", "not ours"):
        assert text in captured.err
    # A further group of the variant: the same process, and the same engine in it.
    assert kinds(run(executor, generating("three", variant))) == {"three": "measured"}
    assert len(noisy_backend.read_text().splitlines()) == 1
    # Another variant: a process of its own.
    other = replace(variant, model="other")
    assert kinds(run(executor, generating("four", other))) == {"four": "measured"}
    (first, _), (second, _) = (line.split() for line in noisy_backend.read_text().splitlines())
    assert first != second
    worker = executor._worker
    executor.close()
    assert worker.poll() is not None, "closing ends the worker"


@pytest.mark.parametrize(
    ("death", "reason"), [("killed", "killed (SIGKILL)"), ("exits", "exit code 3 in the middle")]
)
def test_a_death_is_blamed_on_the_scenario_that_was_running(executor, noisy_backend, death, reason):
    """`before` has its outcome when scoring ends the worker; `last`, which would do so too, is not blamed for it."""
    variant = Variant(death, backend="noisy", device="cpu")
    events = run(executor, generating("before", variant), scoring("fatal", variant))
    assert kinds(events) == {"before": "measured", "fatal": "killed"}
    assert reason in outcomes(events)["fatal"].reason


class TwoDeaths(ProcessExecutor):
    """Workers that end at once: the first after an outcome and before another step, the second before any."""

    def __init__(self, *jobs):
        super().__init__()
        self.jobs, self.sent = list(jobs), []

    def _start(self):
        self._worker = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"])
        return self._worker

    def _send(self, job):
        self.sent.append([each["name"] for each in job["measure"]])

    def _events(self):
        yield from self.jobs.pop(0)


def test_a_death_between_two_scenarios_is_blamed_on_the_next_one():
    one, two, three = (generating(name) for name in ("one", "two", "three"))
    done = Measurement(one, "w", {}, {})
    last = Measurement(three, "w", {}, {})
    executor = TwoDeaths([Progress("one", "repeat 1"), done], [last])
    events = run(executor, one, two, three)
    assert kinds(events) == {"one": "measured", "two": "killed", "three": "measured"}
    assert executor.sent == [["one", "two", "three"], ["three"]]
    assert "exit code 7" in outcomes(events)["two"].reason


def test_workers_that_die_before_they_begin_end_every_scenario():
    executor = TwoDeaths([], [], [])
    events = run(executor, *(generating(name) for name in ("one", "two", "three")))
    assert kinds(events) == dict.fromkeys(("one", "two", "three"), "killed")


def test_a_worker_that_cannot_start_is_said_in_a_line(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('no torch here')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LlmtrackError, match=r"ended with exit code 1 before it could start.*llmtrack doctor"):
        ProcessExecutor().machine()


@pytest.mark.usefixtures("_known_bandwidth")
def test_inline_measures_in_this_process():
    events = run(InlineExecutor(), generating("one", MODEL, ONCE))
    assert kinds(events) == {"one": "measured"}
