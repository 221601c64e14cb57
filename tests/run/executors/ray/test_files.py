"""Files that scenarios name reach a node unchanged: by the same path, or sent."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from llmtrack.errors import LlmtrackError
from llmtrack.run.executors.ray import files, node
from llmtrack.run.executors.ray.cluster import LostAnswerError
from llmtrack.run.executors.ray.files import (
    digest_of,
    home_of,
    localized,
    named_files,
    note_home,
    parcel_of,
    unlocalized,
    unpack,
    with_files,
)
from llmtrack.run.executors.ray.kinds import Node
from llmtrack.run.executors.timeouts import Patience
from llmtrack.spec.events import event_to_json
from llmtrack.spec.outcome import Failure, Measurement
from llmtrack.spec.scenario import QualityCheck, Scenario, Variant
from llmtrack.spec.serialization import to_json
from llmtrack.spec.task import PerplexityTask, TrainTask
from tests.run.scenarios import generating, scoring

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "models" / "mine"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "weights.bin").write_bytes(b"\0" * 9)
    return folder


def sent(path, most=files.MOST_SENT_MIB):
    return parcel_of(str(path), path, lambda content: content)


def as_it_is(content):
    return content


def never(content):
    raise AssertionError("nothing is fetched")


def test_all_named_files_are_found(model, tmp_path):
    for name in ("a.gguf", "text.txt", "beside.jsonl", "calibration.txt"):
        (tmp_path / name).write_text("x")
    path = {name: str(tmp_path / name) for name in ("a.gguf", "text.txt", "beside.jsonl", "calibration.txt")}
    variant = Variant(f"{model},org/name", options=(("calibration", path["calibration.txt"]),))
    check = QualityCheck(PerplexityTask(path["beside.jsonl"]), Variant(path["a.gguf"]))
    scenarios = [replace(generating("a", variant), quality=check), scoring("b", corpus=path["text.txt"])]
    assert set(named_files(scenarios)) == {str(model), *path.values()}
    assert named_files([generating("c"), scoring("d"), scoring("e", corpus=str(tmp_path / "no.txt"))]) == {}


def test_an_equal_file_at_the_same_path_is_not_fetched(model):
    assert unpack(sent(model), never) == str(model)


@pytest.mark.parametrize("changed", ["gone", "other"])
def test_a_missing_or_different_file_is_fetched(model, changed):
    parcel = sent(model)
    for path in (model / "config.json", model / "sub" / "weights.bin"):
        path.write_text("other") if changed == "other" else path.unlink()
    copy = unpack(parcel, as_it_is)
    assert copy != str(model)
    assert copy.endswith("/mine")
    assert digest_of(files.Path(copy)) == parcel.digest
    assert unpack(parcel, never) == copy, "it is kept"


def test_a_single_file_keeps_its_name(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("hello")
    parcel = sent(path)
    path.unlink()
    copy = files.Path(unpack(parcel, as_it_is))
    assert (copy.name, copy.read_text()) == ("text.txt", "hello")


def test_a_file_changed_in_transit_is_refused(model):
    parcel = sent(model)
    damaged = replace(parcel, path=str(model) + "x", content={"minex/config.json": b"{"})
    with pytest.raises(LlmtrackError, match="changed on its way"):
        unpack(damaged, as_it_is)


def test_a_file_too_large_to_send_names_the_remedy(model, monkeypatch):
    monkeypatch.setattr(files, "MOST_SENT_MIB", 0)
    parcel = sent(model)
    assert parcel.content is None
    assert unpack(parcel, never) == str(model), "a folder that is shared has no limit"
    (model / "config.json").write_text("another")
    with pytest.raises(LlmtrackError, match=r"holds other files there, .* too many to be sent .* all nodes share"):
        unpack(parcel, never)


def test_file_names_are_localized_on_the_node_and_restored_for_the_driver():
    scenario = Scenario("a", Variant("models/mine, org/name"), PerplexityTask("t.txt"))
    names = {"models/mine": "/cache/sent-1/mine", "t.txt": "/cache/sent-2/t.txt"}
    there = localized(to_json(scenario), names)
    assert there["variant"]["model"] == "/cache/sent-1/mine, org/name"
    assert "/cache/sent-2/t.txt" in str(there["task"])
    measurement = Measurement(
        scenario, "w", {"model_id": "/cache/sent-1/mine"}, {}, files={"f": "/cache/sent-1/mine/f"}
    )
    back = unlocalized(event_to_json(measurement), names)["data"]
    assert back["facts"] == {"model_id": "models/mine"}
    assert back["files"] == {"f": "/cache/sent-1/mine/f"}, "where a file is stays where it is"


def written_by(model):
    """Return a measurement whose worker wrote a file and a model, and a function that fetches them."""
    there = {"here.json": str(model / "config.json"), "there.bin": "/nowhere/mine/sub/weights.bin"}
    outcome = Measurement(scoring("a"), "w", {}, {"loss": 1.0}, files=there, model_folder="/nowhere/mine")

    def fetch(path):
        parcel = node.fetch(str(model.parent) + path.removeprefix("/nowhere"))
        return replace(parcel, written=path, path=path)

    return outcome, fetch


def test_output_files_of_a_worker_are_fetched(model):
    outcome, fetch = written_by(model)
    fetched = with_files(outcome, "node b", fetch)
    assert fetched.warnings == ()
    assert fetched.files["here.json"] == outcome.files["here.json"], "what is here already is not fetched"
    assert files.Path(fetched.files["there.bin"]).read_bytes() == b"\0" * 9
    assert digest_of(files.Path(fetched.model_folder)) == digest_of(model)


@pytest.mark.parametrize("why", ["too big", "gone"])
def test_output_files_that_stay_on_a_node_are_a_warning(model, monkeypatch, why):
    outcome, fetch = written_by(model)
    monkeypatch.setattr(files, "MOST_SENT_MIB", 0)

    def lost(path):
        raise LostAnswerError("the node died")

    fetched = with_files(outcome, "node b", fetch if why == "too big" else lost)
    assert fetched == replace(
        outcome, files={"here.json": outcome.files["here.json"]}, model_folder="", warnings=fetched.warnings
    )
    (warning,) = fetched.warnings
    assert warning.startswith("files stayed on node b (more than 0 MiB are not sent)")
    assert warning.endswith(": /nowhere/mine, /nowhere/mine/sub/weights.bin")


def test_the_node_of_a_training_is_known_until_its_checkpoints_are_local(tmp_path):
    task = TrainTask(output=str(tmp_path / "training"))
    assert home_of(task) == ""
    note_home(task, Node("a", "host (10.0.0.1, a1)", place="host (10.0.0.1)"))
    assert home_of(task) == "host (10.0.0.1)"
    (tmp_path / "training" / "checkpoint-000005").mkdir()
    assert home_of(task) == "", "a folder that is shared"
    assert home_of(generating("a").task) == ""


def test_missing_files_fail_each_scenario_without_measuring(model, monkeypatch):
    """No other node could help, so it is reported at once."""
    monkeypatch.setattr(files, "MOST_SENT_MIB", 0)
    parcel = replace(sent(model), path="/nowhere/mine")
    executor = node.ProcessExecutor(Patience())
    monkeypatch.setattr(node, "_idle", (executor, dict(os.environ)))
    monkeypatch.setattr(executor, "machine", dict)
    messages = []
    scenarios = [to_json(generating(name, Variant(str(model)))) for name in "ab"]
    node.measure(messages.append, Patience(), False, {}, scenarios, [parcel])
    events = [files_event["event"] for files_event in messages if "event" in files_event]
    assert [event["kind"] for event in events] == [Failure.__name__] * 2
    assert all(event["data"]["kind"] == "load" and "is not there" in event["data"]["reason"] for event in events)
    assert messages[-1] == {"ended": True}
