"""A real cluster: placement, isolation, and recovery. Tests that kill nodes come last."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from dataclasses import replace

import psutil
import pytest

from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import UsageError
from llmtrack.experiment import Experiment
from llmtrack.report.terminal import make_console
from llmtrack.run import main as entry
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.executors.ray.executor import Stopped
from llmtrack.run.executors.timeouts import Patience
from llmtrack.run.settings import RunOptions
from llmtrack.run.study.scoring import run_scenarios
from llmtrack.run.study.shards import SHARDS_EACH
from llmtrack.run.study.study import run_study
from llmtrack.spec.events import Progress
from llmtrack.spec.outcome import Measurement
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import PerplexityTask, RepeatPolicy
from llmtrack.tracking.read.query import runs, studies
from tests.conftest import HANG_S, draw_nothing
from tests.forking import Forked
from tests.run.scenarios import generating, outcomes

# Without time for more: what other work disturbs would be held back, and repeated further.
ONCE = RepeatPolicy(warmup=0, min_repeats=1, min_seconds=0, max_seconds=0.001, max_repeats=1)


def paced(name, model="s-20", new=2):
    return generating(name, Variant(model, backend="paced", device="cpu"), ONCE, max_new_tokens=new)


def text(name, model, **settings):
    task = PerplexityTask(max_length=32, batch_size=1, **settings)
    return Scenario(name, Variant(model, backend="paced", device="cpu"), task)


def experiment(*scenarios):
    return Experiment("paced", "How long?", scenarios, lambda runs, series: {}, lambda runs: [])


def drive(address, uri, model):
    """Measure as a command does."""
    os.dup2(1, 2)
    draw_nothing(pytest.MonkeyPatch())
    settings = RunOptions(executor="ray", address=address, resources="CPU=1", tracking_uri=uri, resume=True)
    console = make_console()
    with entry.exit_codes(console), entry.open_executor(settings) as executor:
        tracker = entry.open_tracker(settings)
        paced_study = experiment(*round_of(model))
        result = run_study(paced_study, tracker=tracker, executor=executor, console=console, resume=True)
        sys.exit(result.exit_code)


def round_of(model):
    """Three scenarios, the second of which hangs the first time; or a timed one and a long text."""
    if "text" in model:
        return [paced("one", model), text("two", model, workers=2)]
    return [paced(name, model, new) for name, new in (("one", 2), ("two", 13), ("three", 4))]


def started(address, uri, model):
    """Start a driver, and wait until it has tracked its first scenario."""
    driver = Forked(drive, address, uri, model, environment=os.environ)
    until = time.monotonic() + HANG_S
    while ("one", "FINISHED") not in statuses(uri):  # a text that is being scored is tracked, too
        assert driver.poll() is None, driver.stdout.read()
        assert time.monotonic() < until
        time.sleep(0.5)
    return driver


def statuses(uri):
    tracked = runs(tracking_uri=uri)[["scenario", "status"]].fillna("")  # one that is being made has neither
    return sorted(zip(tracked["scenario"], tracked["status"], strict=True))


def workers():
    """Return the worker processes of this cluster on this machine."""
    result = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if (
                "llmtrack.worker.process" in process.cmdline()
                and process.environ().get("PACED_LOG") == os.environ["PACED_LOG"]
            ):
                result.append(process)
    return result


@pytest.mark.slow(45)
def test_a_restarted_driver_measures_only_what_is_missing(cluster, uri):
    model = "synthetic:tiny"
    first = started(cluster.address, uri, model)
    assert workers()
    os.kill(first.pid, signal.SIGKILL)
    first.wait(HANG_S)
    until = time.monotonic() + HANG_S
    while workers():
        assert time.monotonic() < until, "workers end with the driver"
        time.sleep(0.5)
    second = Forked(drive, cluster.address, uri, model, environment=os.environ)
    code, output = second.wait(HANG_S), second.stdout.read()
    assert code == 0, output
    assert "resume: 1 of 3 scenarios is measured already" in output
    assert statuses(uri) == [("one", "FINISHED"), ("three", "FINISHED"), ("two", "FINISHED")]
    assert sorted(studies(tracking_uri=uri)["outcome"]) == ["finished", "killed"]


@pytest.mark.slow(30)
@pytest.mark.parametrize(
    ("number", "model", "local"),
    [(signal.SIGTERM, "s-20.hangs-terminated", True), (signal.SIGINT, "s-20.text-long", False)],
    ids=["terminated", "interrupted while two workers score"],
)
def test_a_terminated_driver_tracks_its_results_and_leaves_no_process(cluster, uri, number, model, local):
    """Nor of a cluster that it started itself."""
    if not local:
        cluster.fill(2)
    driver = started("local" if local else cluster.address, uri, model)
    until = time.monotonic() + HANG_S
    while "text" in model and len(workers()) < 2:
        assert driver.poll() is None, driver.stdout.read()
        assert time.monotonic() < until
        time.sleep(0.2)
    below = psutil.Process(driver.pid).children(recursive=True) + workers()
    assert any(process.name() == "raylet" for process in below) == local
    os.kill(driver.pid, number)
    code, output = driver.wait(HANG_S), driver.stdout.read()
    assert code == 128 + number, output
    assert "what was measured is tracked" in output
    assert statuses(uri) == [("one", "FINISHED")]
    assert list(studies(tracking_uri=uri)["outcome"]) == ["killed"]
    _, alive = psutil.wait_procs(below, timeout=HANG_S)
    assert not alive


class TestOnOneExecutor:
    @pytest.mark.slow(40)
    @pytest.mark.usefixtures("_unreported")
    def test_groups_are_measured_concurrently_each_alone_on_a_node(self, executor, tracker, uri, console):
        """Four groups on three nodes: each run names its node, and none overlaps another there."""
        scenarios = [
            paced(f"{model}{number}", f"s-10{model}", new=2 + number) for model in range(4) for number in range(2)
        ]
        result = run_study(experiment(*scenarios), tracker=tracker, executor=executor, console=console)
        assert result.measured == len(scenarios), console.file.getvalue()
        tracked = runs(tracking_uri=uri)
        assert sorted(tracked["scenario"]) == sorted(scenario.name for scenario in scenarios)
        assert set(tracked["status"]) == {"FINISHED"}
        assert tracked["environment_id"].nunique() == 1, "nodes of one kind are one environment"
        places = {node: group.sort_values("start_time") for node, group in tracked.groupby("env.node")}
        assert set(places) == {node.name for node in executor.kind.nodes}
        for group in places.values():
            assert (group["start_time"].iloc[1:].values >= group["end_time"].iloc[:-1].values).all()

    @pytest.mark.slow(15)
    def test_a_hanging_worker_is_ended_by_the_time_limit(self, executor):
        events = []
        model = "s-10.hangs-always"
        executor.run([paced("hangs", model, new=13), paced("goes on", model)], events.append)
        hung, after = outcomes(events)
        assert (hung.scenario.name, hung.kind) == ("hangs", "timeout")
        assert "no sign of life for 0:01 (at: repeat 1)" in hung.reason
        assert isinstance(after, Measurement)

    @pytest.mark.slow(30)
    def test_a_killed_node_loses_only_its_current_scenario(self, cluster, executor):
        """The group continues with its second scenario on the other node."""
        events, killed = [], []

        def kill_once(event):
            events.append(event)
            if event == Progress("second", "repeat 1") and not killed:
                killed.append(outcomes(events)[0].tags["node"])
                cluster.kill(killed[0])

        model = "s-20.hangs-second"
        executor.run([paced("first", model), paced("second", model, 13), paced("third", model, 4)], kill_once)
        result = outcomes(events)
        assert [outcome.scenario.name for outcome in result] == ["first", "second", "third"]
        assert all(isinstance(outcome, Measurement) for outcome in result), result
        assert {outcome.tags["node"] for outcome in result[1:]}.isdisjoint(killed)
        assert any("the node died" in getattr(event, "text", "") for event in events)

    @pytest.mark.slow(30)
    def test_a_text_is_scored_on_both_nodes_and_lost_shards_on_the_other(self, cluster, executor):
        scenario = text("text", "s-20", workers=None)
        alive = {node.node_id for node in cluster.ray.worker_nodes}
        names = [node.name for node in executor.kind.nodes if node.id in alive]
        events, killed = [], []

        def kill_once(event):
            events.append(event)
            if isinstance(event, Progress) and event.done > 0.2 and not killed:
                killed.append(names[0])
                cluster.kill(names[0])

        run_scenarios(executor, (scenario,), kill_once)
        (result,) = outcomes(events)
        assert isinstance(result, Measurement), result
        assert result.scenario == scenario
        assert (result.facts["workers"], result.facts["shards"]) == (len(names), len(names) * SHARDS_EACH)
        shards = [line.split("\t") for line in result.texts["shards.txt"].splitlines()[1:]]
        assert [int(number) for number, *_ in shards] == list(range(1, len(shards) + 1)), "each counts once"
        assert len(shards) == len(names) * SHARDS_EACH
        assert {node for _, _, node, *_ in shards} <= set(names)
        assert names[1] in result.tags["node"]
        alone = []
        plain = replace(scenario, task=replace(scenario.task, workers=1))
        load = lambda variant: ScriptedEngine(FakeClock(), Script(1.0, 1.0))  # noqa: E731
        InlineExecutor(load).run((plain,), alone.append)
        (expected,) = outcomes(alone)
        for name in ("loss", "loss_stderr", "perplexity", "tokens_scored", "bits_per_byte", "documents_scored"):
            assert result.metrics[name] == expected.metrics[name]
        assert result.series["batch_loss"] == expected.series["batch_loss"]
        shares = [event.done for event in events if isinstance(event, Progress)]
        assert shares[-1] == 1.0

    @pytest.mark.slow(5)
    def test_stopping_ends_the_workers_and_keeps_results(self, executor):
        """Like Ctrl-C: running groups end, waiting ones do not begin, so that this test is the last of its executor."""
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
        assert [outcome.scenario.name for outcome in outcomes(events)] == ["done"]
        with pytest.raises(Stopped):
            executor.run([paced("too late")], events.append)


@pytest.mark.slow(30)
@pytest.mark.usefixtures("_unreported")
def test_each_kind_of_hardware_is_measured(two_kinds, uri, tracker, console):
    from llmtrack.decide.compare import compare
    from llmtrack.run.executors.ray.executor import open_cluster

    executors = open_cluster(
        two_kinds.address, "each", "node", Patience(starting=HANG_S, step=HANG_S), lambda line: None
    )
    try:
        results = [
            run_study(
                experiment(paced("one"), paced("two", new=3)), tracker=tracker, executor=executor, console=console
            )
            for executor in executors
        ]
    finally:
        executors[0].close()
    tracked = runs(tracking_uri=uri)
    assert len(tracked) == 4
    kinds = {study: set(group["env.node_kind"].fillna("")) for study, group in tracked.groupby("study_id")}
    assert sorted(map(tuple, kinds.values())) == [("",), ("cooled",)]
    assert tracked["environment_id"].nunique() == 2
    one, other = (f"study:{result.study.study_id}" for result in results)
    with pytest.raises(UsageError, match=r"different environments .*node_kind: (not given|cooled) against"):
        compare(one, other, ["total_latency_s"], tracking_uri=uri)
    comparison = compare(one, other, ["total_latency_s"], across_environments=True, tracking_uri=uri)
    assert "not comparable" not in set(comparison["verdict"])
