"""A real cluster of two nodes: where it is measured, alone, and what survives a death."""

from __future__ import annotations

import threading

import pytest

from llmtrack.events import Progress
from llmtrack.experiment import Experiment
from llmtrack.run.cluster.executor import Stopped
from llmtrack.run.patience import Patience
from llmtrack.run.study import run_study
from llmtrack.scenario import Failure, Measurement, RepeatPolicy, Variant
from llmtrack.tracking.query import runs
from tests.conftest import HANG_S
from tests.run.scenarios import generating

ONCE = RepeatPolicy(warmup=0, min_repeats=1, min_seconds=0, max_repeats=1)


def paced(name, model="s-20", new=2):
    return generating(name, Variant(model, backend="paced", device="cpu"), ONCE, max_new_tokens=new)


def experiment(*scenarios):
    return Experiment("paced", "How long?", scenarios, lambda runs, series: {}, lambda runs: [])


def outcomes(events):
    return [each for each in events if isinstance(each, (Measurement, Failure))]


@pytest.mark.slow(40)
def test_groups_are_measured_at_once_each_on_a_node_alone(executor, tracker, uri, console):
    """Four groups on two nodes: every run says where it was measured, and none overlaps another there."""
    scenarios = [
        paced(f"{model}{number}", f"s-10{model}", new=2 + number) for model in range(4) for number in range(2)
    ]
    result = run_study(experiment(*scenarios), tracker=tracker, executor=executor, console=console)
    assert result.measured == len(scenarios), console.file.getvalue()
    tracked = runs(tracking_uri=uri)
    assert sorted(tracked["scenario"]) == sorted(each.name for each in scenarios)
    assert set(tracked["status"]) == {"FINISHED"}
    assert tracked["environment_id"].nunique() == 1, "nodes of one kind are one environment"
    places = {node: group.sort_values("start_time") for node, group in tracked.groupby("env.node")}
    assert set(places) == {each.name for each in executor.kind.nodes}
    for group in places.values():
        assert (group["start_time"].iloc[1:].values >= group["end_time"].iloc[:-1].values).all()


@pytest.mark.slow(30)
def test_a_killed_node_costs_what_it_was_measuring_and_nothing_that_had_ended(cluster, executor):
    """The group goes on with its second scenario on the other node."""
    events, killed = [], []

    def kill_once(event):
        events.append(event)
        if event == Progress("second", "repeat 1") and not killed:
            killed.append(outcomes(events)[0].tags["node"])
            cluster.kill(killed[0])

    model = "s-20.hangs-second"
    executor.run([paced("first", model), paced("second", model, 13), paced("third", model, 4)], kill_once)
    found = outcomes(events)
    assert [each.scenario.name for each in found] == ["first", "second", "third"]
    assert all(isinstance(each, Measurement) for each in found), found
    assert {each.tags["node"] for each in found[1:]}.isdisjoint(killed)
    assert any("the node died" in getattr(each, "text", "") for each in events)


@pytest.mark.slow(25)
def test_a_worker_that_hangs_is_ended_by_the_limit_of_time(cluster):
    from llmtrack.run.cluster.opening import open_cluster

    patience = Patience(time_limit=6.0, starting=HANG_S)
    (executor,) = open_cluster(cluster.address, "same", "CPU=1", patience, lambda line: None)
    events = []
    try:
        executor.run(
            [paced("hangs", "s-10.hangs-always", new=13), paced("goes on", "s-10.hangs-always")],
            events.append,
        )
    finally:
        executor.close()
    hung, after = outcomes(events)
    assert (hung.scenario.name, hung.kind) == ("hangs", "timeout")
    assert "no sign of life for 0:06" in hung.reason
    assert isinstance(after, Measurement)


@pytest.mark.slow(15)
def test_stopped_it_ends_the_workers_and_keeps_what_was_measured(executor):
    """As Ctrl-C does: what runs is ended, what waits does not begin."""
    events, ended = [], []

    def measure():
        try:
            model = "s-20.hangs-stopped"
            executor.run([paced("done", model), paced("runs", model, 13)], take)
        except Stopped as stopped:
            ended.append(stopped)

    def take(event):
        events.append(event)
        if isinstance(event, Measurement):
            threading.Thread(target=executor.stop).start()

    thread = threading.Thread(target=measure)
    thread.start()
    thread.join(HANG_S)
    assert ended
    assert [each.scenario.name for each in outcomes(events)] == ["done"]
    with pytest.raises(Stopped):
        executor.run([paced("too late")], events.append)
