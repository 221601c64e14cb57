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


@pytest.mark.slow(12)
def test_a_crash_at_any_call_leaves_everything_once(tracker_and_uri, monkeypatch, spooled):
    """Each record, of a configuration and a corpus of its own, meets another crash; then all are sent."""
    tracker, uri = tracker_and_uri
    study = start_study(tracker)
    configurations = [{**LOADED, "threads": number} for number in range(len(CRASHES))]
    for number, (moment, owner, call) in enumerate(CRASHES):
        real = getattr(owner, call)

        def crash(*args, moment=moment, real=real, **kwargs):
            if moment == "after":
                real(*args, **kwargs)
            raise KeyboardInterrupt

        facts = {**configurations[number], **CORPUS, "corpus_digest": f"{number:016x}"}
        outcome = measurement(f"a{number}", facts=facts, metrics=SPEED, generations=(FIRST, SECOND))
        with monkeypatch.context() as patch:
            patch.setattr(owner, call, crash)
            with pytest.raises(KeyboardInterrupt):
                tracker.log(study, outcome)
        assert len(spooled()) == number + 1
    if uri.startswith("sqlite"):
        models._known.clear()  # as when another process sends the records
    result = sync.sync(tracker.spool.folder)
    assert (result.sent, result.left, result.problems) == (len(CRASHES), 0, ())
    assert spooled() == []

    client = MlflowClient(uri)
    found = list(client.search_runs([study.experiment_id], "tags.`llmtrack.kind` = 'scenario'"))
    runs = {run.data.params["scenario"]: run for run in found}
    assert len(found) == len(runs) == len(CRASHES)
    seconds = {}
    for number, crash in enumerate(CRASHES):
        run = runs[f"a{number}"]
        run_id = run.info.run_id
        assert run.info.status == "FINISHED", crash
        assert run.data.params["dtype"] == LOADED["dtype"]
        assert {key: run.data.metrics[key] for key in SPEED} == SPEED
        assert [len(client.get_metric_history(run_id, key)) for key in SPEED] == [1, 1], crash
        assert len(run.inputs.dataset_inputs) == 2, crash
        assert Path(client.download_artifacts(run_id, "sample.txt")).read_text() == "Once upon a time"
        again = measurement(f"b{number}", facts=configurations[number], metrics={"decode_tokens_per_sec": 1.0})
        seconds[number] = tracker.log(study, again)

    logged = logged_models(uri, study.experiment_id)
    by_threads = {int(model.params["threads"]): model for model in logged}
    assert len(logged) == len(by_threads) == len(CRASHES)
    for number, crash in enumerate(CRASHES):
        run_id = runs[f"a{number}"].info.run_id
        assert str(by_threads[number].status) == "READY", crash
        assert bound(by_threads[number]) == {
            **{(key, run_id): value for key, value in SPEED.items()},
            ("decode_tokens_per_sec", seconds[number]): 1.0,
        }, crash

    if KEEPS_TRACES:
        traces_of = {trace.info.trace_metadata["mlflow.sourceRun"]: trace for trace in read(uri, study.experiment_id)}
        assert len(traces_of) == len(read(uri, study.experiment_id, include_spans=False)) == len(CRASHES)
        for run in found:
            trace = traces_of[run.info.run_id]
            linked = read(uri, study.experiment_id, run.info.run_id, include_spans=False)
            assert [one.info.trace_id for one in linked] == [trace.info.trace_id]
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
