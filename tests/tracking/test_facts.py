"""The facts of an environment: one tag and one artifact of a run, and the columns that they were always read back as."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

from mlflow import MlflowClient

from llmtrack.metrics import ENV_TAG_PREFIX
from llmtrack.tracking import facts
from llmtrack.tracking.limits import MAX_TAG_VALUE
from llmtrack.tracking.query import runs, studies

FACTS = {
    "cpu": "An \u00e9lan 5",
    "git_branch": "main",
    "version.torch": "2.13.0",
    **{f"fact{n}": str(n) for n in range(40)},
}
TAGS = {ENV_TAG_PREFIX + key: value for key, value in FACTS.items()}


def test_a_run_has_the_facts_in_one_tag_and_those_that_are_searched():
    found = facts.split({"llmtrack.kind": "scenario", **TAGS})
    assert sorted(found) == ["llmtrack.env.cpu", "llmtrack.env.git_branch", facts.TAG, "llmtrack.kind"]
    assert facts.joined(found[facts.TAG]) == TAGS


def test_without_facts_nothing_is_added():
    assert facts.split({"llmtrack.kind": "study"}) == {"llmtrack.kind": "study"}
    assert facts.artifact({"llmtrack.kind": "study"}) == {}


def test_what_there_is_no_room_for_stays_a_tag():
    long = {ENV_TAG_PREFIX + f"f{n}": "x" * 3_000 for n in range(4)}
    found = facts.split(long)
    assert len(found[facts.TAG]) <= MAX_TAG_VALUE
    assert {**found, **facts.joined(found[facts.TAG])}.keys() - {facts.TAG} == long.keys()


def test_a_broken_tag_is_no_fact():
    for text in ("", "{", "[]", "3", "null"):
        assert facts.joined(text) == {}


def test_a_tracked_study_has_few_tags_its_facts_as_an_artifact_and_their_columns(tracker, uri, tmp_path):
    study = tracker.start_study("precision", "Why?", {}, FACTS)
    tracker.finish_study(study, "finished")
    client = MlflowClient(tracking_uri=uri)
    tags = client.get_run(study.run_id).data.tags
    assert [key for key in sorted(tags) if key.startswith(ENV_TAG_PREFIX)] == [
        "llmtrack.env.cpu",
        "llmtrack.env.git_branch",
    ]
    path = client.download_artifacts(study.run_id, facts.ARTIFACT, str(tmp_path))
    assert json.loads(Path(path).read_text("utf-8")) == FACTS
    (row,) = runs(kind="study", tracking_uri=uri).to_dict("records")
    assert {key: row[f"env.{key}"] for key in FACTS} == FACTS
    found = runs(kind="study", tags={"llmtrack.env.git_branch": "main"}, tracking_uri=uri)
    assert list(found["run_id"]) == [study.run_id]
    assert len(studies(tracking_uri=uri)) == 1


def test_runs_are_found_by_any_fact_whichever_version_tracked_them(tracker, uri):
    new = tracker.start_study("precision", "Why?", {}, FACTS)
    old = tracker.start_study("precision", "Why?", {}, {})
    client = MlflowClient(tracking_uri=uri)
    client.set_tag(old.run_id, "llmtrack.env.version.torch", "2.13.0")
    for search in (None, "attributes.run_name != ''"):
        found = partial(runs, kind="study", tracking_uri=uri, search=search)
        assert set(found(tags={"llmtrack.env.version.torch": "2.13.0"})["run_id"]) == {new.run_id, old.run_id}
        both = {"llmtrack.env.version.torch": "2.13.0", "llmtrack.env.cpu": FACTS["cpu"]}
        assert list(found(tags=both)["run_id"]) == [new.run_id]
        assert found(tags={"llmtrack.env.version.torch": "2.14.0"}).empty
        assert found(tags={"llmtrack.env.of_no_run": "x"}).empty


def test_a_store_of_an_older_version_is_read_as_before(tracker, uri):
    study = tracker.start_study("precision", "Why?", {}, {})
    client = MlflowClient(tracking_uri=uri)
    client.set_tag(study.run_id, "llmtrack.env.version.torch", "2.1.0")
    (row,) = runs(kind="study", tracking_uri=uri).to_dict("records")
    assert row["env.version.torch"] == "2.1.0"
