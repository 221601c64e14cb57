"""Concurrent groups: events arrive in one thread, and all groups end together."""

from __future__ import annotations

import threading

import pytest

from llmtrack.spec.outcome import Measurement
from tests.conftest import HANG_S
from tests.run.scenarios import generating, in_groups


class Many:
    """Measures a group once as many groups as it takes at a time have arrived, or it is stopped."""

    where = "here"

    def __init__(self, at_once, error=None):
        self.at_once = at_once
        self.error = error
        self.together = threading.Barrier(at_once)
        self.stopped = threading.Event()

    def machine(self):
        return {}

    def check(self, variants):
        pass

    def identify(self, scenario):
        return {}

    def run(self, scenarios, emit):
        for scenario in scenarios:
            self.together.wait(HANG_S)
            if scenario.name == "breaks":
                raise self.error
            if scenario.name == "waits":
                assert self.stopped.wait(HANG_S)
            emit(Measurement(scenario, "w", {}, {}))

    def stop(self):
        self.stopped.set()
        self.together.abort()

    def close(self):
        pass


def groups(*names):
    return [[generating(name)] for name in names]


def run(executor, names):
    events, threads = [], set()

    def take(event):
        events.append(event.scenario.name)
        threads.add(threading.current_thread())

    try:
        in_groups(executor, groups(*names), take)
    finally:
        assert threads <= {threading.current_thread()}
    return events


def test_groups_are_measured_concurrently_and_reported_in_the_callers_thread():
    assert sorted(run(Many(3), "abc")) == ["a", "b", "c"]


def test_an_error_stops_all_groups_and_keeps_their_events():
    executor, events = Many(2, ValueError("broken")), []
    with pytest.raises(ValueError, match="broken"):
        in_groups(executor, groups("breaks", "waits", "later"), lambda e: events.append(e.scenario.name))
    assert events == ["waits"]


def test_a_signal_stops_all_groups_and_keeps_their_events():
    """It arrives while the first event is handled."""
    executor, events = Many(2), []

    def take(event):
        events.append(event.scenario.name)
        if event.scenario.name == "first":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        in_groups(executor, groups("first", "waits", "later"), take)
    assert events == ["first", "waits"]


def test_a_single_group_runs_in_the_callers_thread():
    assert run(Many(1), "a") == ["a"]
