"""Lost nodes and tasks, on a scripted cluster."""

from __future__ import annotations

import pytest

from llmtrack.errors import LlmtrackError
from llmtrack.run.executors.ray.cluster import LostAnswerError
from llmtrack.run.executors.ray.executor import RayExecutor
from llmtrack.run.executors.ray.files import home_of, note_home
from llmtrack.run.executors.ray.kinds import Kind, Node
from llmtrack.run.executors.timeouts import Patience
from llmtrack.spec.events import Begun, Log, Progress, SoFar, event_to_json
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import TrainTask
from llmtrack.tracking.environment import environment_id
from tests.run.executors.ray.conftest import FakeCluster
from tests.run.scenarios import generating, outcomes

ONE, TWO, THREE = (generating(name) for name in ("one", "two", "three"))
FACTS = {"machine": "x86_64", "cpu": "A", "threads": "4"}
KIND = Kind("A", tuple(Node(name, f"node {name}", place=f"host {name}") for name in "ab"), {"CPU": 1.0})
DIED = {"lost": "the node died", "final": False}


def at(node):
    return {"where": FACTS, "node": node}


def event(content):
    return {"event": event_to_json(content)}


def measured(scenario):
    return event(Measurement(scenario, "w", {}, {"total_latency_s": 1.0}, tags={"weights_digest": "d"}))


def run(cluster, *scenarios):
    events = []
    RayExecutor(cluster, KIND, Patience(), True).run(scenarios, events.append)
    return events


def names(events):
    return [(outcome.scenario.name, type(outcome).__name__) for outcome in outcomes(events)]


ENDED = {"ended": True}


def training_in(folder):
    return Scenario("training", Variant("synthetic:tiny", device="cpu"), TrainTask(output=str(folder)))


def test_an_outcome_names_its_node():
    events = run(FakeCluster([at("b"), measured(ONE), ENDED]), ONE)
    (result,) = outcomes(events)
    assert result.tags == {
        "weights_digest": "d",
        **FACTS,
        "node": "node b",
        "llmtrack.environment_id": environment_id(FACTS),
    }


def test_the_rest_of_a_lost_group_continues_elsewhere():
    cluster = FakeCluster(
        [at("a"), measured(ONE), event(Progress("two", "repeat 1")), DIED],
        [at("b"), measured(TWO), measured(THREE), ENDED],
    )
    events = run(cluster, ONE, TWO, THREE)
    assert names(events) == [("one", "Measurement"), ("two", "Measurement"), ("three", "Measurement")]
    assert cluster.asked == [(["a", "b"], ["one", "two", "three"]), (["b"], ["two", "three"])]
    lines = [event.text for event in events if isinstance(event, Log)]
    assert lines == ["  two: the node died on node a; what is unfinished is tried again elsewhere"]
    assert cluster.ended == ["task 1", "task 2"], "no letter of a lost task is heard any more"


def test_a_scenario_lost_three_times_in_a_row_fails():
    lost = [event(Progress("two", "repeat 1")), DIED]
    cluster = FakeCluster(
        [at("a"), measured(ONE), *lost], [at("b"), *lost], [at("a"), *lost], [at("b"), measured(THREE), ENDED]
    )
    events = run(cluster, ONE, TWO, THREE)
    assert names(events) == [("one", "Measurement"), ("two", "Failure"), ("three", "Measurement")]
    failed = outcomes(events)[1]
    assert failed.kind == "killed"
    assert failed.reason == "lost 3 times in a row: the node died on node a; the node died on node b"
    assert failed.tags["node"] == "node a"
    assert [nodes for nodes, _ in cluster.asked] == [["a", "b"], ["b"], ["a"], ["b"]]


def test_a_group_lost_while_loading_fails_as_a_whole():
    cluster = FakeCluster([at("a"), DIED], [at("b"), DIED], [at("a"), DIED])
    events = run(cluster, ONE, TWO)
    assert names(events) == [("one", "Failure"), ("two", "Failure")]


def test_an_outcome_between_losses_resets_the_retries():
    scenarios = [generating(str(number)) for number in range(5)]
    attempts = [[at("ab"[number % 2]), measured(scenario), DIED] for number, scenario in enumerate(scenarios[:4])]
    cluster = FakeCluster(*attempts, [at("a"), measured(scenarios[4]), ENDED])
    assert names(run(cluster, *scenarios)) == [(scenario.name, "Measurement") for scenario in scenarios]


def test_without_a_node_the_rest_fails():
    cluster = FakeCluster([at("a"), measured(ONE), DIED], alive=({"a"}, set()))
    events = run(cluster, ONE, TWO, THREE)
    assert names(events) == [("one", "Measurement"), ("two", "Failure"), ("three", "Failure")]
    assert "no node of its kind (A) is left" in outcomes(events)[1].reason
    assert len(cluster.asked) == 1


def test_the_only_live_node_is_used_again():
    cluster = FakeCluster([at("a"), DIED], [at("a"), measured(ONE), ENDED], alive=({"a"},))
    assert names(run(cluster, ONE)) == [("one", "Measurement")]


def test_out_of_memory_is_not_retried():
    out = {"lost": "Ray ended it, since the node's memory was used up", "final": True}
    cluster = FakeCluster([at("a"), event(Progress("one", "repeat 1")), out], [at("b"), measured(TWO), ENDED])
    events = run(cluster, ONE, TWO)
    assert names(events) == [("one", "Failure"), ("two", "Measurement")]
    assert outcomes(events)[0].reason.startswith("Ray ended it, since the node's memory was used up")


def test_a_timing_is_kept_if_its_scoring_is_lost():
    main_part = Measurement(ONE, "w", {}, {"total_latency_s": 1.0})
    lost = [event(SoFar(main_part)), DIED]
    cluster = FakeCluster([at("a"), *lost], [at("b"), *lost], [at("a"), *lost])
    (result,) = outcomes(run(cluster, ONE))
    assert isinstance(result, Measurement)
    assert result.tags["node"] == "node a"
    assert "what is measured after it is missing: lost 3 times in a row" in result.warnings[-1]


def test_a_repeated_outcome_counts_once():
    events = run(FakeCluster([at("a"), measured(ONE), measured(ONE), measured(TWO), ENDED]), ONE, TWO)
    assert names(events) == [("one", "Measurement"), ("two", "Measurement")]


def test_a_task_without_all_outcomes_is_retried():
    cluster = FakeCluster([at("a"), measured(ONE), ENDED], [at("b"), measured(TWO), ENDED])
    assert names(run(cluster, ONE, TWO)) == [("one", "Measurement"), ("two", "Measurement")]


@pytest.mark.parametrize(("place", "asked_nodes"), [("host b", ["b"]), ("host c", None)], ids=["there", "not there"])
def test_a_training_resumes_on_the_node_of_its_checkpoints(tmp_path, place, asked_nodes):
    training = training_in(tmp_path / "out")
    note_home(training.task, Node("old", "node old", place=place))
    cluster = FakeCluster([at("b"), measured(training), ENDED])
    (result,) = outcomes(run(cluster, training))
    assert [nodes for nodes, _ in cluster.asked] == ([asked_nodes] if asked_nodes else [])
    if not asked_nodes:
        assert "its checkpoints are on host c, which is not among the nodes" in result.reason


def test_the_node_of_a_training_is_recorded_and_named(tmp_path):
    training = training_in(tmp_path / "out")
    begun = event(Begun(training, "key", {}, {}, 0.0, False))
    lost = event(Failure(training, "interrupted", "its checkpoint is kept"))
    (result,) = outcomes(run(FakeCluster([at("b"), begun, lost, ENDED]), training))
    assert home_of(training.task) == "host b"
    assert result.reason == "its checkpoint is kept (on node b)"


def test_a_lost_training_restarts_elsewhere(tmp_path):
    training = training_in(tmp_path / "out")
    begun = event(Begun(training, "key", {}, {}, 0.0, False))
    cluster = FakeCluster([at("a"), begun, DIED], [at("b"), begun, measured(training), ENDED])
    assert names(run(cluster, training)) == [("training", "Measurement")]
    assert [nodes for nodes, _ in cluster.asked] == [["a", "b"], ["b"]]


def test_a_lost_cluster_ends_the_study():
    with pytest.raises(LlmtrackError, match="the Ray cluster is lost: connection refused"):
        run(FakeCluster([at("a"), {"gone": "connection refused"}]), ONE)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_question_to_a_lost_node_is_put_to_another(lost):
    cluster = Answering(*["the node died"] * lost, {"cpu": "A"})
    assert RayExecutor(cluster, KIND, Patience(), True).machine() == {"cpu": "A"}
    assert cluster.asked == [("a", "b"), ("b",), ("b",)][: lost + 1]


def test_without_an_answer_the_study_ends_in_one_line():
    cluster = Answering(*["the node died"] * 4)
    with pytest.raises(LlmtrackError, match="no node of A answers: the node died"):
        RayExecutor(cluster, KIND, Patience(), True).machine()
    assert len(cluster.asked) == 3


class Answering(FakeCluster):
    """Answers by a script; a text is the reason for no answer, and its node is gone."""

    def __init__(self, *answers):
        super().__init__(alive=({"a", "b"}, {"b"}))
        self.answers = list(answers)

    def call(self, function, needs, nodes, *args):
        self.asked.append(nodes)
        return self.answers.pop(0)

    def answer(self, ref):
        if isinstance(ref, str):
            self.lives = self.lives[-1:]
            raise LostAnswerError(ref)
        return ref
