import json

import numpy as np
import pytest

from llmtrack.plain import from_json, to_json
from llmtrack.tracking.records import RunRecord, StudyContext, params_of, same_as_record, scenario_record
from tests.tracking.samples import failure, measurement, perplexity, scenario

STUDY = StudyContext("study-1", "precision", "suite-1", {"llmtrack.environment_id": "e1"})


def test_a_measurement_becomes_a_finished_record():
    record = scenario_record(measurement(), STUDY)
    assert (record.status, record.run_name) == ("FINISHED", "p64")
    assert (record.start_ms, record.end_ms) == (1_790_000_000_500, 1_790_000_010_250)
    assert record.params["dtype"] == "float32"
    assert record.params["dtype_requested"] == "float32"
    assert record.params["max_new_tokens"] == 8
    assert record.metrics["total_latency_s"] == 1.5
    assert record.metrics["spread/total_latency_s.n"] == 12
    assert record.metrics["spread/total_latency_s.p90"] == 1.7
    assert "spread/total_latency_s.p99" not in record.metrics
    assert record.series == {"series/token_latency_ms": (1.0, 2.0, 3.0)}
    assert record.tags["llmtrack.outcome"] == "finished"
    assert record.tags["llmtrack.study_id"] == "study-1"
    assert record.tags["llmtrack.suite_id"] == "suite-1"
    assert record.tags["llmtrack.scenario_id"] == scenario().scenario_id
    assert record.tags["llmtrack.env.weights_digest"] == "abc"
    assert record.tags["llmtrack.environment_id"] == "e1"
    assert record.texts["sample.txt"] == "Once upon a time"
    assert json.loads(record.texts["samples.json"])["samples"] == {"total_latency_s": [1.4, 1.5, 1.6]}


def test_a_failure_becomes_a_failed_record_with_its_reason_in_one_line():
    record = scenario_record(failure(kind="killed"), STUDY)
    assert record.status == "FAILED"
    assert record.metrics == {}
    assert record.tags["llmtrack.outcome"] == "failed"
    assert record.tags["llmtrack.failure"] == "killed"
    assert record.tags["llmtrack.reason"] == "out of memory: needs 9 GiB"
    assert "Traceback" in record.texts["failure.txt"]


def test_same_as_is_finished_without_metrics():
    record = same_as_record(
        scenario("fp16"), {"dtype": "float32 (forced on CPU)"}, "fp32", "no float16 here", STUDY, 5.0
    )
    assert (record.status, record.metrics, record.start_ms) == ("FINISHED", {}, 5000)
    assert record.tags["llmtrack.outcome"] == "same_as"
    assert record.tags["llmtrack.same_as"] == "fp32"
    assert record.params["dtype"] == "float32 (forced on CPU)"


@pytest.mark.parametrize("outcome", [measurement(), failure(), measurement(metrics={"loss": float("inf")})])
def test_a_record_survives_json(outcome):
    record = scenario_record(outcome, STUDY)
    assert from_json(json.loads(json.dumps(to_json(record))), RunRecord) == record


def test_the_same_outcome_is_the_same_record_and_another_is_another():
    first = scenario_record(measurement(), STUDY)
    assert scenario_record(measurement(), STUDY).record_id == first.record_id
    assert scenario_record(measurement(metrics={"loss": 1.0}), STUDY).record_id != first.record_id


def test_numbers_of_numpy_and_broken_text_are_taken():
    facts = {"parameters": np.int64(5), "share": np.float32(0.5), "odd": object}
    record = scenario_record(
        measurement(facts=facts, metrics={"loss": np.float32(2.0)}, sample_text="\ud800"), STUDY
    )
    assert record.params["parameters"] == 5
    json.dumps(to_json(record))


def test_params_say_what_was_asked_and_no_more():
    params = params_of(scenario())
    assert params["batch_size"] == 2
    assert params["decoding"] == "greedy"
    assert params["min_repeats"] == 5
    assert "revision" not in params
    assert "prompts" not in params
    asked = params_of(perplexity())
    assert (asked["task"], asked["protocol"], asked["max_length"]) == ("perplexity", "documents", 512)
    assert "warmup" not in asked
    assert "verbose" not in asked
