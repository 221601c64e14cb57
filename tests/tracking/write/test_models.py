"""Each configuration is one MLflow logged model with the metrics of all its runs, in SQLite and on a server."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import mlflow
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import ENDPOINT_NOT_FOUND

import llmtrack
from llmtrack.spec.outcome import REPLACED
from llmtrack.tracking.write import models, sync, traces
from llmtrack.tracking.write.models import configuration_of
from llmtrack.tracking.write.records import StudyContext, scenario_record, study_record
from llmtrack.tracking.write.tracker import Tracker
from tests.tracking import samples
from tests.tracking.samples import CORPUS, SUMMARY, failure, perplexity, start_study

STUDY = StudyContext("study-1", "precision")
LOADED = {
    "model_id": "packaged:smollm2",
    "backend": "onnx",
    "device": "cpu",
    "dtype": "int8 weights (float32)",
    "quantization": "int8-weight-only",
    "threads": 2,
    "block_size": 64,
}
INTERVAL = {"decode_tokens_per_sec.low": SUMMARY.ci_low, "decode_tokens_per_sec.high": SUMMARY.ci_high}
SPEED = {"decode_tokens_per_sec": 60.5, "peak_memory_mib": 512.0}
TRACES = "it stores no traces of generations; MLflow 3.3 and newer do"
QUALITY = {"perplexity": 12.5, "bits_per_byte": 1.25}


def measurement(name: str = "p64", **changes):
    """A measurement without spread, unless given."""
    return samples.measurement(name, **{"summaries": {}, **changes})


def way(name: str = "p64", **changes):
    values = {"facts": LOADED, "tags": {"weights_digest": "w1", "tokenizer_digest": "t1"}, **changes}
    return configuration_of(scenario_record(measurement(name, **values), STUDY))


def logged_models(uri: str, experiment_id: str, text: str | None = None):
    return list(MlflowClient(uri).search_logged_models([experiment_id], filter_string=text))


def bound(model) -> dict[tuple[str, str], float]:
    """Return the values of a logged model by metric and run; fail for a duplicate."""
    counts = Counter((metric.key, metric.run_id) for metric in model.metrics)
    assert set(counts.values()) <= {1}
    return {(metric.key, metric.run_id): metric.value for metric in model.metrics}


def test_a_configuration_has_a_readable_name_its_settings_and_digests():
    configuration = way()
    assert configuration.name == "smollm2 · onnx int8-weight-only · 2 threads"
    assert configuration.params == {name: str(value) for name, value in LOADED.items()}
    assert configuration.tags == {
        "llmtrack.digest.weights_digest": "w1",
        "llmtrack.digest.tokenizer_digest": "t1",
        "llmtrack.way": configuration.key,
    }


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        ({"backend": "torch", "quantization": "none", "dtype": "bfloat16", "threads": 1}, "smollm2 · torch bfloat16 · 1 thread"),
        ({"compile": "default", "quantization": "none", "dtype": "float32"}, "smollm2 · onnx float32 · compiled · 2 threads"),
        ({"device": "cuda:0"}, "smollm2 · onnx int8-weight-only · cuda_0"),
        ({"model_id": "meta/Llama-3.2-1B", "threads": "some"}, "Llama-3_2-1B · onnx int8-weight-only"),
    ],
)  # fmt: skip
def test_a_name_has_the_distinctive_settings_and_only_valid_characters(facts, name):
    assert way(facts={**LOADED, **facts}).name == name


CHANGES = {"threads": 1, "dtype": "float32", "compile": "default", "block_size": 32, "device": "cuda", "its_own": "x"}


@pytest.mark.parametrize("changed", CHANGES.items(), ids=list(CHANGES))
def test_settings_of_the_loaded_model_make_another_configuration(changed):
    assert way(facts={**LOADED, **dict([changed])}).key != way().key


@pytest.mark.parametrize("digest", ["weights_digest", "config_digest", "tokenizer_digest"])
def test_other_files_make_another_configuration(digest):
    assert way(tags={"weights_digest": "w1", "tokenizer_digest": "t1", digest: "other"}).key != way().key


def test_another_calibration_makes_another_configuration():
    assert way(facts={**LOADED, "calibration_digest": "c1"}).key != way().key


@pytest.mark.parametrize(
    "facts",
    [
        {"batch_size": 8, "prompt_tokens": 512, "output_digest": "o"},
        {"decoding": "greedy", "arithmetic": "float32"},
        {**CORPUS, "protocol": "rolling", "stride": 16, "reference": "torch"},
        {"race_place": "winner", "revision": "main"},
    ],
)
def test_the_workload_makes_no_other_configuration(facts):
    assert way("another name", facts={**LOADED, **facts}).key == way().key


def test_generating_and_scoring_share_a_configuration():
    scored = measurement("ppl", scenario=perplexity("ppl"), facts={**LOADED, **CORPUS}, tags={"weights_digest": "w1"})
    assert configuration_of(scenario_record(scored, STUDY)).key == way(tags={"weights_digest": "w1"}).key


def test_studies_trainings_and_failures_have_no_configuration():
    training = scenario_record(measurement(facts=LOADED), STUDY)
    assert configuration_of(replace(training, params={**training.params, "task": "train"})) is None
    assert configuration_of(scenario_record(failure(facts=LOADED), STUDY)) is None
    assert (
        configuration_of(scenario_record(measurement(facts=LOADED, warnings=(f"disturbed: {REPLACED}",)), STUDY))
        is None
    )
    assert configuration_of(study_record(STUDY, "q", {"model": "m"}, 1)) is None


@pytest.mark.slow(5)
def test_metrics_are_linked_to_the_configuration_and_the_scored_text(tracker_and_uri, monkeypatch):
    tracker, uri = tracker_and_uri
    study, batches, log_batch = start_study(tracker), [], MlflowClient.log_batch

    def logged(self, run_id, **kwargs):
        batches.append(kwargs)
        return log_batch(self, run_id, **kwargs)

    monkeypatch.setattr(MlflowClient, "log_batch", logged)
    facts = {**LOADED, **CORPUS}
    repeated = {"decode_tokens_per_sec": SUMMARY}
    first = tracker.log(study, measurement("p64", facts=facts, metrics=SPEED | QUALITY, summaries=repeated))
    (batch,) = batches
    own = [metric for metric in batch["metrics"] if not metric.key.startswith("series/")]
    (model,) = logged_models(uri, study.experiment_id)
    assert {metric.key for metric in own} == {*SPEED, *QUALITY, *INTERVAL}
    assert {metric.model_id for metric in own} == {model.model_id}
    assert f"models:/{model.model_id}" in {tag.key: tag.value for tag in batch["tags"]}["mlflow.llmtrack.details"]
    of_text = {metric.key: (metric.dataset_name, metric.dataset_digest) for metric in own}
    assert of_text == {
        **dict.fromkeys(SPEED | INTERVAL, (None, None)),
        **dict.fromkeys(QUALITY, tuple(CORPUS.values())),
    }

    second = tracker.log(study, measurement("p128", facts=LOADED, metrics={"decode_tokens_per_sec": 40.0}))
    other = tracker.log(
        study, measurement("t1", facts={**LOADED, "threads": 1}, metrics={"decode_tokens_per_sec": 30.0})
    )
    scored = tracker.log(
        study, measurement("ppl", scenario=perplexity("ppl"), facts=facts, metrics={"load_time_s": 2.0})
    )
    tracker.finish_study(study, "finished")

    client = MlflowClient(uri)
    same = client.get_logged_model(model.model_id)
    assert (same.name, str(same.status), same.source_run_id) == (
        "smollm2 · onnx int8-weight-only · 2 threads",
        "READY",
        first,
    )
    assert bound(same) == {
        **{(key, first): value for key, value in (SPEED | QUALITY | INTERVAL).items()},
        ("decode_tokens_per_sec", second): 40.0,
        ("load_time_s", scored): 2.0,
    }
    (of_scoring,) = (metric for metric in same.metrics if metric.key == "load_time_s")
    assert (of_scoring.dataset_name, of_scoring.dataset_digest) == tuple(CORPUS.values())
    assert {used.model_id for used in client.get_run(second).inputs.model_inputs} == {same.model_id}
    (slow,) = logged_models(uri, study.experiment_id, "params.threads = '1'")
    assert bound(slow) == {("decode_tokens_per_sec", other): 30.0}

    uris = llmtrack.runs(study=study.study_id, tracking_uri=uri).set_index("run_id")["model_uri"]
    assert uris.to_dict() == {
        **dict.fromkeys([first, second, scored], f"models:/{same.model_id}"),
        other: f"models:/{slow.model_id}",
    }


@pytest.mark.slow(3)
def test_logged_models_are_found_by_mlflows_search(tracker_and_uri):
    tracker, uri = tracker_and_uri
    study = start_study(tracker)
    repeated = {"decode_tokens_per_sec": replace(SUMMARY, ci_low=59.0, ci_high=61.0)}
    tracker.log(study, measurement("fast", facts={**LOADED, **CORPUS}, metrics=SPEED | QUALITY, summaries=repeated))
    tracker.log(study, measurement("slow", facts={**LOADED, "threads": 1}, metrics={"decode_tokens_per_sec": 49.0}))
    mlflow.set_tracking_uri(uri)

    def names(text: str, **more) -> set[str]:
        matches = mlflow.search_logged_models([study.experiment_id], text, output_format="list", **more)
        return {model.name for model in matches}

    fast = {"smollm2 · onnx int8-weight-only · 2 threads"}
    assert names("metrics.decode_tokens_per_sec > 50") == fast
    assert names("metrics.`decode_tokens_per_sec.low` > 50") == fast
    assert names("metrics.`decode_tokens_per_sec.low` > 60") == set()
    # A server finds nothing by a name alone.
    text = {"dataset_name": CORPUS["corpus"], "dataset_digest": CORPUS["corpus_digest"]}
    assert names("metrics.perplexity < 13", datasets=[text]) == fast
    assert names("metrics.decode_tokens_per_sec > 0", datasets=[text]) == set()


@pytest.mark.slow(1)
def test_another_mlflow_experiment_has_logged_models_of_its_own(uri, tmp_path):
    for name in ("a", "b"):
        tracker = Tracker.open(uri, name, tmp_path / "spool")
        study = start_study(tracker)
        tracker.log(study, measurement(facts=LOADED))
        assert len(logged_models(uri, study.experiment_id)) == 1


@pytest.mark.slow(3)
def test_records_sent_later_are_linked_to_the_same_logged_model(server, line, experiment, tmp_path, messages, spooled):
    tracker = Tracker.open(line.uri, experiment, tmp_path / "spool", messages.append)
    study = start_study(tracker)
    tracker.log(study, measurement("before", facts=LOADED, metrics=SPEED))
    line.down()
    tracker.log(study, measurement("same way", facts=LOADED, metrics=SPEED))
    tracker.log(study, measurement("new way", facts={**LOADED, "threads": 1}, metrics=SPEED))
    assert len(spooled()) == 2
    line.up()
    assert sync.sync(tmp_path / "spool") == sync.SyncResult(sent=2, left=0)
    counts = {model.params["threads"]: len(bound(model)) for model in logged_models(server.uri, study.experiment_id)}
    assert counts == {"2": 2 * len(SPEED), "1": len(SPEED)}
    assert llmtrack.runs(study=study.study_id, tracking_uri=server.uri)["model_uri"].nunique() == 2


@pytest.mark.slow(3)
def test_of_two_logged_models_created_at_once_the_older_is_kept(server, experiment, tmp_path, monkeypatch):
    """Machines share no lock: both find none, and both create one."""
    tracker = Tracker.open(server.uri, experiment, tmp_path / "spool")
    study, real = start_study(tracker), MlflowClient.create_logged_model
    older = []

    def another_is_faster(self, *args, **kwargs):
        older.append(real(self, *args, **kwargs))
        return real(self, *args, **kwargs)

    monkeypatch.setattr(MlflowClient, "create_logged_model", another_is_faster)
    tracker.log(study, measurement(facts=LOADED, metrics=SPEED))
    (model,) = logged_models(server.uri, study.experiment_id)
    assert model.model_id == older[0].model_id
    assert len(bound(model)) == len(SPEED)


@pytest.mark.slow(1)
def test_a_deleted_logged_model_is_replaced_by_a_new_one(tracker):
    client = MlflowClient(tracker.tracking_uri)
    study = start_study(tracker)
    tracker.log(study, measurement("a", facts=LOADED, metrics=SPEED))
    (old,) = logged_models(tracker.tracking_uri, study.experiment_id)
    client.delete_logged_model(old.model_id)
    models._known.clear()
    tracker.log(study, measurement("b", facts=LOADED, metrics=SPEED))
    (new,) = logged_models(tracker.tracking_uri, study.experiment_id)
    assert new.model_id != old.model_id
    assert len(bound(new)) == len(SPEED)


def _without_logged_models(patch: pytest.MonkeyPatch) -> list[str]:
    """Let MLflow answer like a server without logged models; return the list of its calls."""
    requests: list[str] = []

    def unknown(self, experiment_ids, filter_string=None, **more):
        requests.append(filter_string or "")
        raise MlflowException("API request to endpoint failed with error code 404 != 200", ENDPOINT_NOT_FOUND)

    patch.setattr(MlflowClient, "search_logged_models", unknown)
    return requests


@pytest.mark.slow(1)
def test_a_store_without_logged_models_gets_everything_else_and_is_asked_once(
    tracker, uri, monkeypatch, messages, spooled
):
    requests = _without_logged_models(monkeypatch)
    study = start_study(tracker)
    run_ids = [tracker.log(study, measurement(name, facts=LOADED, metrics=SPEED)) for name in ("a", "b")]
    assert (None in run_ids, messages, spooled(), len(requests)) == (False, [], [], 1)
    table = llmtrack.runs(study=study.study_id, tracking_uri=uri)
    assert list(table["decode_tokens_per_sec"]) == [60.5, 60.5]
    assert table["model_uri"].isna().all()


@contextmanager
def _old_server() -> Iterator[str]:
    """A server that lists experiments but has no logged models, like MLflow 2."""

    class Old(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            known = self.path.endswith("/experiments/search")
            answer = json.dumps({"experiments": []}).encode() if known else b"<title>404 Not Found</title>"
            self.send_response(200 if known else 404)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def do_GET(self) -> None:
            self.do_POST()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Old)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.slow(1)
def test_the_doctor_reports_what_a_store_does_not_support(uri, monkeypatch):
    from llmtrack.cli.doctor import _tracking

    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    assert (_tracking().state, _tracking().remedy) == ("ok", "" if traces._version_here() >= (3, 3) else TRACES)
    with _old_server() as old:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", old)
        finding = _tracking()
        assert (finding.state, finding.text) == ("ok", old)
        assert finding.remedy.startswith("it has no logged models")
        assert "\n" not in finding.remedy
