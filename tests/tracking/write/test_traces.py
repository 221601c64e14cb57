"""The generations of a run are one MLflow trace, readable by MLflow's own API and sent exactly once."""

from __future__ import annotations

import json
import socket
from dataclasses import replace

import mlflow
import pytest
from mlflow import MlflowClient

from llmtrack.spec.outcome import Generation
from llmtrack.tracking.write import sync, traces
from llmtrack.tracking.write.push import redacted
from llmtrack.tracking.write.records import DEFAULT_TRACES, StudyContext, scenario_record
from llmtrack.tracking.write.tracker import Tracker
from tests.tracking.samples import measurement, start_study

pytestmark = pytest.mark.skipif(traces._version_here() < (3, 3), reason="MLflow before 3.3 keeps no such traces")

FIRST = Generation("Once upon a time", "there was Ärger \U0001f600", 4, 32, 1_790_000_001.25, 1.5, 0.25, 2, 3)
SECOND = replace(
    FIRST, prompt="A harbour wakes", text="at dawn", prompt_tokens=5, new_tokens=2, started_at=1_790_000_003.0
)
WITHOUT_STEPS = replace(FIRST, first_token_s=None)
FACTS = {"model_id": "packaged:tiny", "backend": "torch", "device": "cpu", "dtype": "float32"}


def generated(name: str = "p64", generations=(FIRST,), **changes):
    return measurement(name, generations=tuple(generations), **{"facts": FACTS, "summaries": {}, **changes})


def read(uri: str, experiment_id: str, run_id: str | None = None, **more):
    # MLflow downloads spans from the server of the process, not from that of the client.
    mlflow.set_tracking_uri(uri)
    return MlflowClient(uri).search_traces(locations=[experiment_id], run_id=run_id, **more)


@pytest.mark.slow(5)
def test_a_generation_is_a_trace_of_its_run_and_logged_model_in_opentelemetrys_names(tracker_and_uri):
    tracker, uri = tracker_and_uri
    study = start_study(tracker)
    run_id = tracker.log(study, generated())
    (trace,) = read(uri, study.experiment_id, run_id)
    (model,) = MlflowClient(uri).search_logged_models([study.experiment_id])
    assert [linked.info.trace_id for linked in read(uri, study.experiment_id, model_id=model.model_id)] == [
        trace.info.trace_id
    ]
    assert (trace.info.request_preview, trace.info.response_preview) == (FIRST.prompt, FIRST.text)
    assert (trace.info.request_time, trace.info.execution_duration) == (1_790_000_001_250, 1500)
    assert (trace.info.state, trace.info.tags["mlflow.traceName"]) == ("OK", "precision/p64")
    assert trace.info.token_usage == {"input_tokens": 4, "output_tokens": 32, "total_tokens": 36}
    (span,) = trace.data.spans
    assert (span.inputs, span.outputs, span.span_type, span.parent_id) == (FIRST.prompt, FIRST.text, "LLM", None)
    assert (span.start_time_ns, span.end_time_ns) == (1_790_000_001_250_000_000, 1_790_000_002_750_000_000)
    assert span.attributes["mlflow.chat.tokenUsage"] == trace.info.token_usage
    assert {key: value for key, value in span.attributes.items() if not key.startswith("mlflow.")} == {
        "gen_ai.operation.name": "text_completion",
        "gen_ai.provider.name": "torch",
        "gen_ai.request.model": "packaged:tiny",
        "gen_ai.request.max_tokens": 8,
        "gen_ai.response.time_to_first_chunk": 0.25,
        "gen_ai.usage.input_tokens": 4,
        "gen_ai.usage.output_tokens": 32,
        "llmtrack.rows": 2,
        "llmtrack.repeat": 3,
    }


@pytest.mark.slow(5)
def test_several_generations_are_spans_of_one_trace(tracker_and_uri):
    tracker, uri = tracker_and_uri
    study = start_study(tracker)
    run_id = tracker.log(study, generated(generations=(FIRST, SECOND)))
    (trace,) = read(uri, study.experiment_id, run_id)
    assert json.loads(trace.info.request_preview) == [FIRST.prompt, SECOND.prompt]
    assert json.loads(trace.info.response_preview) == [FIRST.text, SECOND.text]
    assert trace.info.execution_duration == 3250, "from the first one's start to the last one's end"
    assert trace.info.token_usage == {"input_tokens": 9, "output_tokens": 34, "total_tokens": 43}
    root, *spans = trace.data.spans
    assert [span.parent_id for span in spans] == [root.span_id] * 2
    assert [(span.inputs, span.outputs) for span in spans] == [
        (FIRST.prompt, FIRST.text),
        (SECOND.prompt, SECOND.text),
    ]
    assert trace.search_spans(span_type="LLM") == spans


@pytest.mark.slow(2)
@pytest.mark.parametrize(("most", "spans"), [(16, 17), (2, 3), (1, 1), (0, None)])
def test_the_number_of_generations_is_bounded_and_may_be_zero(uri, tmp_path, most, spans):
    tracker = Tracker.open(uri, spool=tmp_path / "spool", traces=most)
    study = start_study(tracker)
    generations = [replace(FIRST, prompt=f"prompt {number}") for number in range(20)]
    run_id = tracker.log(study, generated(generations=generations))
    written = read(uri, study.experiment_id, run_id)
    assert [len(trace.data.spans) for trace in written] == ([] if spans is None else [spans])
    assert Tracker.open(uri)._traces == DEFAULT_TRACES == 16


@pytest.mark.slow(1)
def test_no_other_host_is_contacted(tracker, monkeypatch):
    def refuse(self, address):
        raise AssertionError(f"asks {address}")

    study = start_study(tracker)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    run_id = tracker.log(study, generated(facts={**FACTS, "model_id": "gpt-4o"}))
    assert len(read(tracker.tracking_uri, study.experiment_id, run_id)) == 1


def test_credentials_are_redacted_in_generations():
    generation = replace(FIRST, prompt="my s3cr3t", text="your s3cr3t")
    record = replace(scenario_record(generated(), StudyContext("study-1", "precision")), generations=(generation,))
    assert "s3cr3t" not in str(redacted(record, ("s3cr3t",)))


def test_unreported_values_have_no_attribute():
    record = scenario_record(generated(facts={}), StudyContext("study-1", "precision"))
    (span,) = traces.spans_of("r", replace(record, params={}, generations=(WITHOUT_STEPS,)))
    assert {key for key in span.attributes if key.startswith("gen_ai.")} == {
        "gen_ai.operation.name",
        "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens",
    }


@pytest.mark.slow(3)
def test_generations_spooled_without_a_store_are_sent_by_sync(server, line, experiment, tmp_path, messages):
    tracker = Tracker.open(line.uri, experiment, tmp_path / "spool", messages.append)
    study = start_study(tracker)
    line.down()
    assert tracker.log(study, generated()) is None
    line.up()
    assert sync.sync(tmp_path / "spool") == sync.SyncResult(sent=1, left=0)
    (trace,) = read(server.uri, study.experiment_id)
    assert [span.outputs for span in trace.data.spans] == [FIRST.text]


@pytest.mark.slow(3)
def test_an_older_server_gets_everything_else_and_the_doctor_reports_it(server, experiment, tmp_path, monkeypatch):
    from llmtrack.cli.doctor import _tracking

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    assert _tracking().remedy == ""
    monkeypatch.setattr(traces, "_version_of", lambda client: (3, 1))
    tracker = Tracker.open(server.uri, experiment, tmp_path / "spool")
    study = start_study(tracker)
    run_id = tracker.log(study, generated())
    assert MlflowClient(server.uri).get_run(run_id).info.status == "FINISHED"
    assert read(server.uri, study.experiment_id) == []
    assert _tracking().remedy == "it stores no traces of generations; MLflow 3.3 and newer do"
