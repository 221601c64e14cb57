"""The inputs of runs and studies are data sets in MLflow."""

from __future__ import annotations

import dataclasses
import json

import mlflow.data
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import BAD_REQUEST

from llmtrack.spec.scenario import Scenario, Variant
from llmtrack.spec.task import GenerateTask, PerplexityTask, TrainTask
from llmtrack.tracking.write import datasets, sync
from llmtrack.tracking.write.datasets import corpus_of, data_sets_of, prompt_set
from llmtrack.tracking.write.push import redacted
from llmtrack.tracking.write.records import StudyContext, scenario_record
from llmtrack.tracking.write.tracker import Tracker
from tests.tracking.samples import CORPUS, ENVIRONMENT, failure, measurement, perplexity, start_study

CALIBRATION = {"calibration": "pydoc", "calibration_digest": "c0ffee"}
STUDY = StudyContext("study-1", "precision")


def columns(schema: str) -> list[tuple[str, str]]:
    return [(column["name"], column["type"]) for column in json.loads(schema)["mlflow_colspec"]]


def test_a_prompt_set_is_identified_by_its_texts_which_are_not_tracked():
    dataset = prompt_set(("secret one", "two"))
    assert (dataset.name, dataset.context, json.loads(dataset.profile)) == ("2 prompts", "evaluation", {"num_rows": 2})
    assert columns(dataset.schema) == [("prompt", "string")]
    assert dataset.digest == prompt_set(["secret one", "two"]).digest
    assert dataset.digest not in (prompt_set(("two", "secret one")).digest, prompt_set(("secret one",)).digest)
    assert "secret" not in str(dataset)


@pytest.mark.parametrize(
    ("name", "source_type", "source"),
    [("my_texts.jsonl", "local", {"uri": "my_texts.jsonl"}), ("builtin", "code", None), ("pydoc", "code", None)],
)
def test_a_corpus_has_a_schema_and_a_source_that_mlflow_can_read(name, source_type, source):
    dataset = corpus_of({"corpus": name, "corpus_digest": "d"}, {})
    assert (dataset.identity, dataset.source_type, columns(dataset.schema)) == (
        (name, "d"),
        source_type,
        [("text", "string")],
    )
    read = mlflow.data.get_source(datasets.entity(dataset))
    assert read._get_source_type() == source_type
    assert source is None or read.to_dict() == source


def test_the_digest_may_be_a_tag():
    assert corpus_of({"corpus": "a.txt"}, {"llmtrack.digest.corpus_digest": "d"}).identity == ("a.txt", "d")
    assert corpus_of({"corpus": "a.txt"}, {}) is None


def names(task, params) -> list[tuple[str, str]]:
    return [(dataset.name, dataset.context) for dataset in data_sets_of(Scenario("s", Variant("m"), task), params)]


def test_the_inputs_of_a_scenario_are_prompts_corpus_and_calibration_text():
    assert names(GenerateTask(("a",)), CORPUS | CALIBRATION) == [
        ("1 prompt", "evaluation"),
        ("my_texts.jsonl", "evaluation"),
        ("pydoc", "calibration"),
    ]
    assert names(PerplexityTask(), CORPUS | {"calibration": "none"}) == [("my_texts.jsonl", "evaluation")]
    assert names(TrainTask(), CORPUS | {"task": "train"}) == [("my_texts.jsonl", "training")]


def test_credentials_are_redacted_in_inputs():
    record = scenario_record(measurement(facts={**CORPUS, "corpus": "s3cr3t.txt"}), STUDY)
    assert "s3cr3t" in str(record.inputs)
    assert "s3cr3t" not in str(redacted(record, ("s3cr3t",)).inputs)


def read_by(tracker: Tracker, run_id: str) -> dict[tuple[str, str], str]:
    inputs = MlflowClient(tracker.tracking_uri).get_run(run_id).inputs.dataset_inputs
    assert len({(used.dataset.name, used.dataset.digest) for used in inputs}) == len(inputs)
    contexts = {(used.dataset.name, used.dataset.digest): used.tags for used in inputs}
    return {key: tag.value for key, tags in contexts.items() for tag in tags if tag.key == "mlflow.data.context"}


PROMPTS = (prompt_set(("one", "two")).identity, "evaluation")
TEXT = (("my_texts.jsonl", "0123456789abcdef"), "evaluation")


@pytest.mark.slow(1)
def test_runs_have_their_inputs_and_study_and_suite_all_of_them(tracker):
    suite = tracker.start_study("suite", "q", {}, ENVIRONMENT)
    study = tracker.start_study("precision", "q", {}, ENVIRONMENT, suite_id=suite.study_id)
    timed = tracker.log(study, measurement("plain"))
    failed = tracker.log(study, failure("failed"))
    scored = [tracker.log(study, measurement(name, scenario=perplexity(name), facts=CORPUS)) for name in ("a", "b")]
    assert read_by(tracker, timed) == read_by(tracker, failed) == dict([PROMPTS])
    assert [read_by(tracker, run_id) for run_id in scored] == [dict([TEXT])] * 2
    for parent in (study, suite):
        assert read_by(tracker, tracker.finish_study(parent, "finished")) == dict([PROMPTS, TEXT])
    client = MlflowClient(tracker.tracking_uri)
    by_dataset = client.search_runs([study.experiment_id], f"dataset.digest = '{CORPUS['corpus_digest']}'")
    assert {run.info.run_id for run in by_dataset} == {*scored, study.run_id, suite.run_id}


@pytest.mark.slow(2)
def test_inputs_reach_a_server_and_survive_the_spool(server, line, tmp_path, messages):
    tracker = Tracker.open(line.uri, "inputs", tmp_path / "spool", messages.append)
    study = start_study(tracker)
    line.down()
    assert tracker.log(study, measurement(facts=CORPUS)) is None
    line.up()
    assert sync.sync(tmp_path / "spool").sent == 1
    (run_id,) = MlflowClient(server.uri).search_runs([study.experiment_id], "tags.`llmtrack.kind` = 'scenario'")
    assert read_by(tracker, run_id.info.run_id) == dict([PROMPTS, TEXT])


@pytest.mark.slow(1)
@pytest.mark.parametrize("refusals", [1, 2, 3])
def test_a_data_set_created_by_another_writer_meanwhile_rejects_no_record(tracker, monkeypatch, spooled, refusals):
    """Two inputs may be rejected twice; a further rejection has another reason."""
    study, real, left = start_study(tracker), MlflowClient.log_inputs, [*range(refusals)]

    def refuse(self, *args, **kwargs):
        if left:
            left.pop()
            raise MlflowException("UNIQUE constraint failed: datasets.name, datasets.digest", BAD_REQUEST)
        return real(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "log_inputs", refuse)
        run_id = tracker.log(study, measurement(facts=CORPUS))
    assert (run_id is None) == (refusals == 3) == (len(spooled()) == 1)
    assert run_id is None or read_by(tracker, run_id) == dict([PROMPTS, TEXT])


@pytest.mark.slow(1)
def test_a_record_of_an_older_version_has_its_corpus_as_input(tracker):
    study = start_study(tracker)
    record = scenario_record(measurement(facts=CORPUS), study.context)
    run_id = tracker.delivery.write(dataclasses.replace(record, inputs=()))
    assert read_by(tracker, run_id) == dict([TEXT])
