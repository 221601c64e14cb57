"""Values packed into JSON tags and `environment.json` are read back as the same columns as ever."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from mlflow import MlflowClient

from llmtrack.metrics import DETAILS_TAG, ENV_TAG_PREFIX, ENVIRONMENT_TAG
from llmtrack.tracking import packed
from llmtrack.tracking.limits import MAX_TAG_VALUE
from llmtrack.tracking.read.query import runs, studies

FACTS = {
    "cpu": "An \u00e9lan 5",
    "git_branch": "main",
    "version.torch": "2.13.0",
    **{f"fact{n}": str(n) for n in range(40)},
}
TAGS = {ENV_TAG_PREFIX + key: value for key, value in FACTS.items()}


def test_facts_are_in_one_tag_and_searched_ones_also_in_their_own():
    tags = packed.pack({"llmtrack.kind": "scenario", **TAGS})
    assert sorted(tags) == ["llmtrack.env.cpu", "llmtrack.env.git_branch", "llmtrack.kind", ENVIRONMENT_TAG]
    assert packed.facts_of(tags[ENVIRONMENT_TAG]) == FACTS


OWN = {
    "llmtrack.scenario_id": "s1",
    "llmtrack.workload_id": "w1",
    "llmtrack.baseline": "true",
    "llmtrack.asked": '{"prompt": "\u00e9"}',
    "llmtrack.model_uri": "models:/m-1",
    "llmtrack.digest.output_digest": "0123",
    "llmtrack.spread": '{"tokens_per_sec":{"n":5,"ci_low":9.5,"ci_high":10.5}}',
}


def test_unsearched_values_are_in_one_tag():
    searched = {"llmtrack.kind": "scenario", "llmtrack.outcome": "finished", "mlflow.user": "me"}
    tags = packed.pack({**searched, **OWN, "llmtrack.scenario": "fp32", "llmtrack.version": "1"})
    assert {key: tags[key] for key in tags if key != DETAILS_TAG} == searched
    details = packed.unpack(tags[DETAILS_TAG])
    assert details["spread"]["tokens_per_sec"] == {"n": 5, "ci_low": 9.5, "ci_high": 10.5}
    assert details["digest"] == {"output_digest": "0123"}
    assert {name: details[name] for name in ("scenario_id", "baseline", "asked")} == {
        "scenario_id": "s1", "baseline": "true", "asked": '{"prompt": "\u00e9"}'
    }  # fmt: skip


@pytest.mark.parametrize("long", ["llmtrack.asked", "llmtrack.spread", "llmtrack.digest.output_digest"])
def test_only_a_value_that_does_not_fit_has_its_own_tag(long):
    text = json.dumps({"x" * 7_950: {"n": 1}})
    tags = packed.pack({**OWN, long: text})
    assert tags[long] == text
    assert len(tags[DETAILS_TAG]) <= MAX_TAG_VALUE
    assert set(tags) == {long, DETAILS_TAG}


def test_only_a_running_run_has_the_tag_of_its_process():
    tags = {"llmtrack.kind": "study", "llmtrack.process": "a b 1 2", "llmtrack.work": "w"}
    assert packed.pack(tags, running=True) == tags
    assert packed.pack(tags) == {"llmtrack.kind": "study"}


def test_without_facts_nothing_is_added():
    assert packed.pack({"llmtrack.kind": "study"}) == {"llmtrack.kind": "study"}
    assert packed.artifact({"llmtrack.kind": "study"}) == {}


def test_facts_that_do_not_fit_have_their_own_tags():
    long = {ENV_TAG_PREFIX + f"f{n}": "x" * 3_000 for n in range(4)}
    tags = packed.pack(long)
    assert len(tags[ENVIRONMENT_TAG]) <= MAX_TAG_VALUE
    facts = {ENV_TAG_PREFIX + name for name in packed.facts_of(tags[ENVIRONMENT_TAG])}
    assert tags.keys() - {ENVIRONMENT_TAG} | facts == long.keys()


def test_an_invalid_tag_has_no_values():
    for text in ("", "{", "[]", "3", "null"):
        assert packed.facts_of(text) == {}
        assert packed.unpack(text) == {}


def test_a_study_has_few_tags_and_its_facts_as_an_artifact_and_columns(tracker, uri, tmp_path):
    study = tracker.start_study("precision", "Why?", {}, FACTS)
    tracker.finish_study(study, "finished")
    client = MlflowClient(tracking_uri=uri)
    tags = client.get_run(study.run_id).data.tags
    assert [key for key in sorted(tags) if key.startswith(ENV_TAG_PREFIX)] == [
        "llmtrack.env.cpu",
        "llmtrack.env.git_branch",
    ]
    path = client.download_artifacts(study.run_id, packed.ARTIFACT, str(tmp_path))
    assert json.loads(Path(path).read_text("utf-8")) == FACTS
    (row,) = runs(kind="study", tracking_uri=uri).to_dict("records")
    assert {key: row[f"env.{key}"] for key in FACTS} == FACTS
    table = runs(kind="study", tags={"llmtrack.env.git_branch": "main"}, tracking_uri=uri)
    assert list(table["run_id"]) == [study.run_id]
    assert len(studies(tracking_uri=uri)) == 1


def test_runs_of_all_versions_are_found_by_any_fact(tracker, uri):
    new = tracker.start_study("precision", "Why?", {}, FACTS)
    old = tracker.start_study("precision", "Why?", {}, {})
    client = MlflowClient(tracking_uri=uri)
    client.set_tag(old.run_id, "llmtrack.env.version.torch", "2.13.0")
    for search in (None, "attributes.run_name != ''"):
        search_runs = partial(runs, kind="study", tracking_uri=uri, search=search)
        assert set(search_runs(tags={"llmtrack.env.version.torch": "2.13.0"})["run_id"]) == {new.run_id, old.run_id}
        both = {"llmtrack.env.version.torch": "2.13.0", "llmtrack.env.cpu": FACTS["cpu"]}
        assert list(search_runs(tags=both)["run_id"]) == [new.run_id]
        assert search_runs(tags={"llmtrack.env.version.torch": "2.14.0"}).empty
        assert search_runs(tags={"llmtrack.env.of_no_run": "x"}).empty


def test_facts_in_tags_of_an_older_version_are_read(tracker, uri):
    study = tracker.start_study("precision", "Why?", {}, {})
    client = MlflowClient(tracking_uri=uri)
    client.set_tag(study.run_id, "llmtrack.env.version.torch", "2.1.0")
    (row,) = runs(kind="study", tracking_uri=uri).to_dict("records")
    assert row["env.version.torch"] == "2.1.0"
