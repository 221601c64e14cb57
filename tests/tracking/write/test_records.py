import json
from dataclasses import replace

import numpy as np
import pytest

from llmtrack.spec.serialization import from_json, to_json
from llmtrack.tracking import packed
from llmtrack.tracking.limits import MAX_TAG_VALUE
from llmtrack.tracking.write.records import (
    RunRecord,
    StudyContext,
    begun_record,
    params_of,
    same_as_record,
    scenario_record,
    study_name,
    study_record,
)
from tests.tracking.samples import SUMMARY, failure, measurement, perplexity, scenario

STUDY = StudyContext("study-1", "precision", "suite-1", {"llmtrack.environment_id": "e1"})


def test_a_measurement_becomes_a_finished_record():
    record = scenario_record(measurement(), STUDY)
    assert (record.status, record.run_name) == ("FINISHED", "precision/p64")
    assert (record.start_ms, record.end_ms) == (1_790_000_000_500, 1_790_000_010_250)
    assert record.params["dtype"] == "float32"
    assert record.params["dtype_requested"] == "float32"
    assert record.params["max_new_tokens"] == 8
    assert record.metrics["total_latency_s"] == 1.5
    assert list(record.metrics) == ["total_latency_s", "tokens_per_sec", "total_latency_s.low", "total_latency_s.high"]
    spread = packed.join_spread(packed.unpack(record.tags[packed.SPREAD]))
    assert spread["spread/total_latency_s.n"] == 12
    assert spread["spread/total_latency_s.p90"] == 1.7
    assert "spread/total_latency_s.p99" not in spread
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


def test_a_covered_scenario_is_finished_without_metrics():
    record = same_as_record(
        scenario("fp16"), {"dtype": "float32 (forced on CPU)"}, "fp32", "no float16 here", STUDY, 5.0
    )
    assert (record.status, record.metrics, record.start_ms) == ("FINISHED", {}, 5000)
    assert record.run_name == "precision/fp16 = fp32"
    assert record.tags["llmtrack.outcome"] == "same_as"
    assert record.tags["llmtrack.same_as"] == "fp32"
    assert record.params["dtype"] == "float32 (forced on CPU)"


@pytest.mark.parametrize("outcome", [measurement(), failure(), measurement(metrics={"loss": float("inf")})])
def test_a_record_survives_json(outcome):
    record = scenario_record(outcome, STUDY)
    assert from_json(json.loads(json.dumps(to_json(record))), RunRecord) == record


def test_records_are_identified_by_their_outcome():
    first = scenario_record(measurement(), STUDY)
    assert scenario_record(measurement(), STUDY).record_id == first.record_id
    assert scenario_record(measurement(metrics={"loss": 1.0}), STUDY).record_id != first.record_id


def test_numpy_numbers_and_lone_surrogates_are_accepted():
    facts = {"parameters": np.int64(5), "share": np.float32(0.5), "odd": object}
    record = scenario_record(measurement(facts=facts, metrics={"loss": np.float32(2.0)}, sample_text="\ud800"), STUDY)
    assert record.params["parameters"] == 5
    json.dumps(to_json(record))


def test_params_are_those_of_the_request_that_are_set():
    params = params_of(scenario())
    assert params["batch_size"] == 2
    assert params["decoding"] == "greedy"
    assert params["min_repeats"] == 5
    assert "revision" not in params
    assert "prompts" not in params
    of_scoring = params_of(perplexity())
    assert (of_scoring["task"], of_scoring["protocol"], of_scoring["max_length"]) == ("perplexity", "documents", 512)
    assert "warmup" not in of_scoring
    assert "verbose" not in of_scoring


@pytest.mark.parametrize(
    ("experiment", "models", "expected"),
    [
        ("precision", ["packaged:smollm2,synthetic:smollm2-135m"], "precision 11:02, study of smollm2"),
        ("precision", ["hub/SmolLM2", "hub/SmolLM2"], "precision 11:02, study of SmolLM2"),
        ("prompt_length", [], "prompt_length 11:02, study"),
        ("tune", ["/home/me/models/mine/"], "tune 11:02, study of mine"),
        ("suite", ["a", "b"], "suite 11:02, 2 models"),
        ("compare", [""], "compare 11:02"),
        ("training", ["x" * 99], f"training 11:02, study of {'x' * 40}"),
    ],
)
def test_a_study_is_named_by_its_models_and_start(experiment, models, expected):
    assert study_name(StudyContext(f"{experiment}-20261128-110211-3f2a", experiment), models) == expected


def test_a_starting_study_is_named_by_the_requested_model():
    study = StudyContext("precision-20261128-110211-3f2a", "precision")
    assert study_record(study, "q", {"model": "hub/m"}, 5).run_name == "precision 11:02, study of m"


@pytest.mark.parametrize("name", ["output_digest", "corpus_digest", "calibration_digest", "digest_of_a_plugin_digest"])
@pytest.mark.parametrize("ended", [True, False])
def test_a_digest_is_a_tag_not_a_param(name, ended):
    facts = {name: "0123abcd", "dtype": "float32"}
    record = (
        scenario_record(measurement(facts=facts), STUDY)
        if ended
        else begun_record(scenario(), "key", facts, {}, 1.0, STUDY)
    )
    assert name not in record.params
    assert record.params["dtype"] == "float32"
    assert record.tags[f"llmtrack.digest.{name}"] == "0123abcd"


def test_a_spread_survives_its_tag_up_to_the_size_limit():
    metrics = {f"spread/m{number}.{stat}": 1 / 3 for number in range(200) for stat in ("n", "ci_low")}
    own, tags = packed.split_spread({"loss": 1.0, **metrics, "spread/odd.mean": float("nan")})
    assert own == {"loss": 1.0}
    assert len(tags[packed.SPREAD]) <= MAX_TAG_VALUE
    restored = packed.join_spread(packed.unpack(tags[packed.SPREAD]))
    assert 100 < len(restored) < len(metrics)
    assert restored == dict.fromkeys(list(metrics)[: len(restored)], 1 / 3)
    assert packed.split_spread({"loss": 1.0}) == ({"loss": 1.0}, {})


@pytest.mark.parametrize(
    ("name", "n", "are_metrics"),
    [
        ("total_latency_s", 2, True),
        ("decode_tokens_per_sec", 12, True),
        ("total_latency_s", 1, False),
        ("tokens_generated", 12, False),
        ("of_a_plugin", 12, False),
    ],
)
def test_the_interval_of_a_shown_metric_is_two_metrics(name, n, are_metrics):
    record = scenario_record(measurement(metrics={name: 1.5}, summaries={name: replace(SUMMARY, n=n)}), STUDY)
    assert record.metrics == {name: 1.5, **({f"{name}.low": 1.4, f"{name}.high": 1.6} if are_metrics else {})}
    spread = packed.join_spread(packed.unpack(record.tags[packed.SPREAD]))
    assert (spread[f"spread/{name}.ci_low"], spread[f"spread/{name}.ci_high"]) == (1.4, 1.6)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"a": {"n": "x"}}'])
def test_an_invalid_spread_is_empty(text):
    assert packed.join_spread(packed.unpack(text)) == {}


@pytest.mark.parametrize(
    ("experiment", "scenario_name", "remark", "expected"),
    [
        ("precision", "bfloat16", "", "precision/bfloat16"),
        ("precision", "float32", ", disturbed", "precision/float32, disturbed"),
        ("quantization", "onnx/int8", "", "quantization/onnx/int8"),
        ("perplexity", "perplexity_float32", "", "perplexity_float32"),
        ("training", "training", "", "training"),
        ("prompt_length", "prompt_16", "", "prompt_length/prompt_16"),
    ],
)
def test_a_run_is_named_by_its_experiment_and_scenario(experiment, scenario_name, remark, expected):
    study = StudyContext("s", experiment)
    assert scenario_record(measurement(scenario_name), study, remark).run_name == expected
    plain = scenario_record(measurement(scenario_name), study)
    assert scenario_record(measurement(scenario_name), study, remark).record_id == plain.record_id
