"""Results of documents, and generations, are MLflow evaluation tables, readable by MLflow's own API."""

from __future__ import annotations

import json
import math
from unittest.mock import Mock

import mlflow
import pytest

from llmtrack.spec.outcome import Generation
from llmtrack.spec.scores import Item
from llmtrack.tracking.write import sync
from llmtrack.tracking.write.records import GENERATIONS, TABLE, TABLES_TAG, StudyContext, scenario_record, tables_of
from tests.tracking.samples import measurement, perplexity, start_study

ITEMS = (
    Item("1: Once upon a time", {"perplexity": 8.5, "loss": 2.14, "tokens_scored": 12}),
    Item("3: Ärger \U0001f600", {"perplexity": math.inf, "loss": 900.0, "tokens_scored": 2}),
)


def scored(name: str = "ppl", items=ITEMS, **changes):
    return measurement(
        name, scenario=perplexity(name), metrics={"perplexity": 9.0}, summaries={}, items=items, **changes
    )


def test_the_first_columns_are_the_document_and_its_perplexity():
    texts, tags = tables_of(ITEMS)
    assert json.loads(texts[TABLE]) == {
        "columns": ["document", "perplexity", "loss", "tokens_scored"],
        "data": [["1: Once upon a time", 8.5, 2.14, 12], ["3: Ärger \U0001f600", "inf", 900.0, 2]],
    }
    assert json.loads(tags[TABLES_TAG]) == [{"path": TABLE, "type": "table"}]


def test_a_run_without_items_has_no_table():
    record = scenario_record(scored(items=()), StudyContext("study-1", "precision"))
    assert TABLE not in record.texts
    assert TABLES_TAG not in record.tags


@pytest.mark.slow(3)
def test_mlflow_loads_the_tables_of_two_runs_together(tracker_and_uri):
    tracker, uri = tracker_and_uri
    study = start_study(tracker)
    worse = (Item(ITEMS[0].name, {**ITEMS[0].values, "perplexity": 11.0}),)
    run_ids = [tracker.log(study, scored("fp32")), tracker.log(study, scored("int4", worse))]
    mlflow.set_tracking_uri(uri)
    mlflow.set_experiment(experiment_id=study.experiment_id)
    table = mlflow.load_table(TABLE, run_ids=run_ids, extra_columns=["run_id"])
    of_first = table[table["document"] == ITEMS[0].name].set_index("run_id")["perplexity"]
    assert of_first.astype(float).to_dict() == dict(zip(run_ids, [8.5, 11.0], strict=True))


def test_prompts_and_their_outputs_are_a_table_of_their_own():
    generations = (
        Generation("Once", "upon a time", 1, 3, 0.0, 1.5, None, 1, 1),
        Generation("A", "b", 1, 1, 0.0, 1.0, 0.5, 1, 1),
    )
    record = scenario_record(scored(generations=generations), StudyContext("study-1", "perplexity"), traces=1)
    assert json.loads(record.texts[GENERATIONS]) == {
        "columns": ["prompt", "output", "seconds", "first_token_s", "new_tokens"],
        "data": [["Once", "upon a time", 1.5, None, 3]],
    }
    assert [table["path"] for table in json.loads(record.tags[TABLES_TAG])] == [TABLE, GENERATIONS]
    assert (
        GENERATIONS
        not in scenario_record(scored(generations=generations), StudyContext("study-1", "perplexity"), traces=0).texts
    )


@pytest.mark.slow(1)
def test_a_table_survives_the_spool(tracker, uri, monkeypatch):
    study = start_study(tracker)
    with monkeypatch.context() as away:
        away.setattr("llmtrack.tracking.write.push._log_artifacts", Mock(side_effect=OSError("away")))
        run_id = tracker.log(study, scored())
    assert sync.sync(tracker.spool.folder).left == 0
    client = mlflow.MlflowClient(uri)
    assert TABLE in {artifact.path for artifact in client.list_artifacts(run_id)}
    assert json.loads(client.get_run(run_id).data.tags[TABLES_TAG])[0]["path"] == TABLE
