"""Crashes and concurrent writers leave each run once and complete, with one logged model and one trace."""

from __future__ import annotations

import time
import uuid
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.tracing.client import TracingClient

from llmtrack.tracking.write import models, push, sync, traces
from llmtrack.tracking.write.tracker import Tracker
from tests.forking import at_once
from tests.tracking.samples import CORPUS, start_study
from tests.tracking.write.test_models import LOADED, SPEED, bound, logged_models, measurement
from tests.tracking.write.test_traces import FIRST, SECOND, read

KEEPS_TRACES = traces._version_here() >= (3, 3)
# In order: apart from the first two, the moment before a call is that after the previous one.
CRASHES = [
    ("before", MlflowClient, "create_run"),
    ("after", MlflowClient, "create_run"),
    ("before", MlflowClient, "search_logged_models"),
    ("after", MlflowClient, "search_logged_models"),
    ("after", MlflowClient, "create_logged_model"),
    ("after", MlflowClient, "finalize_logged_model"),
    ("after", MlflowClient, "log_batch"),
    ("after", MlflowClient, "log_inputs"),
    *([("after", TracingClient, "start_trace"), ("after", traces, "_upload")] if KEEPS_TRACES else []),
    ("after", push, "_upload"),
    ("after", MlflowClient, "set_terminated"),
]


@pytest.mark.slow(4)
@pytest.mark.parametrize(("moment", "owner", "call"), CRASHES)
def test_a_crash_at_any_call_leaves_everything_once(tracker_and_uri, monkeypatch, spooled, moment, owner, call):
    tracker, uri = tracker_and_uri
    study, real = start_study(tracker), getattr(owner, call)

    def crash(*args, **kwargs):
        if moment == "after":
            real(*args, **kwargs)
        raise KeyboardInterrupt

    outcome = measurement("a", facts={**LOADED, **CORPUS}, metrics=SPEED, generations=(FIRST, SECOND))
    with monkeypatch.context() as patch:
        patch.setattr(owner, call, crash)
        with pytest.raises(KeyboardInterrupt):
            tracker.log(study, outcome)
    assert len(spooled()) == 1
    if uri.startswith("sqlite"):
        models._known.clear()  # as when another process sends the record
    result = sync.sync(tracker.spool.folder)
    assert (result.sent, result.left, result.problems) == (1, 0, ())
    assert spooled() == []

    client = MlflowClient(uri)
    (run,) = client.search_runs([study.experiment_id], "tags.`llmtrack.kind` = 'scenario'")
    run_id = run.info.run_id
    assert run.info.status == "FINISHED"
    assert run.data.params["dtype"] == LOADED["dtype"]
    assert {key: run.data.metrics[key] for key in SPEED} == SPEED
    assert [len(client.get_metric_history(run_id, key)) for key in SPEED] == [1, 1]
    assert len(run.inputs.dataset_inputs) == 2
    assert Path(client.download_artifacts(run_id, "sample.txt")).read_text() == "Once upon a time"

    second = tracker.log(study, measurement("b", facts=LOADED, metrics={"decode_tokens_per_sec": 1.0}))
    (model,) = logged_models(uri, study.experiment_id)
    assert str(model.status) == "READY"
    assert bound(model) == {
        **{(key, run_id): value for key, value in SPEED.items()},
        ("decode_tokens_per_sec", second): 1.0,
    }

    if KEEPS_TRACES:
        (trace,) = read(uri, study.experiment_id)
        assert [linked.info.trace_id for linked in read(uri, study.experiment_id, run_id)] == [trace.info.trace_id]
        assert [span.inputs for span in trace.data.spans[1:]] == [FIRST.prompt, SECOND.prompt]


@pytest.mark.slow(10)
def test_eight_writers_at_once_share_logged_models_and_write_one_trace_per_run(tracker_and_uri, tmp_path):
    tracker, uri = tracker_and_uri
    at_once(_track_two_configurations, uri, tracker.delivery.experiment, tmp_path, number=8)
    experiment_id = tracker.delivery.experiment_id
    runs = MlflowClient(uri).search_runs([experiment_id], "tags.`llmtrack.kind` = 'scenario'")
    assert len(runs) == 16
    logged = logged_models(uri, experiment_id)
    assert {model.params["threads"]: len(bound(model)) for model in logged} == {"1": 8, "2": 8}
    assert len(logged) == 2
    if KEEPS_TRACES:
        written = read(uri, experiment_id)
        assert len(written) == 16
        assert {trace.info.trace_metadata["mlflow.sourceRun"] for trace in written} == {run.info.run_id for run in runs}
        assert {len(trace.data.spans) for trace in written} == {3}


def _track_two_configurations(uri: str, experiment: str, folder: Path) -> None:
    tracker = Tracker.open(uri, experiment, folder / f"spool-{uuid.uuid4().hex}")
    study = start_study(tracker)
    for threads in (1, 2):
        facts, metrics = {**LOADED, "threads": threads}, {"decode_tokens_per_sec": time.time()}
        outcome = measurement(facts=facts, metrics=metrics, generations=(FIRST, SECOND))
        while tracker.log(study, outcome) is None:
            tracker.sync()
    tracker.finish_study(study, "finished")
