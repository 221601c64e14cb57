"""Earlier runs of this machine as prior knowledge of a search."""

from __future__ import annotations

import math
import time

import pytest

from llmtrack.decide.predictor import Baseline, Predictor, Prior, Workload
from llmtrack.run.tune.priors import earlier_ratios
from llmtrack.run.tune.search_space import Candidate
from llmtrack.spec.scenario import Variant
from llmtrack.spec.task import GenerateTask
from llmtrack.tracking.environment import environment_id
from tests.tracking.samples import ENVIRONMENT, failure, measurement, scenario

SPEED = "decode_tokens_per_sec"
TASK = GenerateTask(("a",))
VARIANTS = {
    "base": Variant("m"),
    "half": Variant("m", dtype="bfloat16"),
    "one": Variant("m", options=(("threads", 1),)),
    "never": Variant("m", dtype="float16"),
}
CANDIDATES = [Candidate(name, variant, TASK, 0) for name, variant in VARIANTS.items()]


def facts_of(dtype: str = "float32", threads: int = 2, model: str = "other", **more):
    return {
        "model_id": model,
        "backend": "torch",
        "dtype_requested": dtype,
        "device_requested": "auto",
        "quantization": "none",
        "threads": threads,
        "use_cache": True,
        "batch_size": 1,
        **more,
    }


def logged(tracker, study, name, speed, at, **own):
    tracker.log(
        study,
        measurement(
            name, scenario=scenario(name), facts=facts_of(**own), metrics={SPEED: speed}, started_at=at, ended_at=at + 1
        ),
    )


def fill(tracker):
    now = time.time()
    speeds = {"base": (10.0, {}), "half": (30.0, {"dtype": "bfloat16"}), "one": (8.0, {"threads": 1})}
    for slower, extra in ((1.0, {}), (2.0, {"half": 0.5})):
        study = tracker.start_study("precision", "q", {}, ENVIRONMENT)
        for name, (speed, own) in speeds.items():
            logged(tracker, study, name, speed / slower * extra.get(name, 1.0), now, **own)
        # Neither of these says anything of a way that is asked for.
        logged(tracker, study, "rows", 99.0, now, batch_size=4)
        tracker.log(study, failure("float16", scenario=scenario("float16"), facts=facts_of("float16")))
    alone = tracker.start_study("baseline", "q", {}, ENVIRONMENT)
    logged(tracker, alone, "x", 70.0, now, dtype="float16")
    long_ago = tracker.start_study("precision", "q", {}, ENVIRONMENT)
    for name, dtype in (("base", "float32"), ("never", "float16")):
        logged(tracker, long_ago, name, 50.0, now - 40 * 24 * 3600, dtype=dtype)


@pytest.fixture
def ratios(tracker, uri):
    fill(tracker)

    def of(objective: str = SPEED, where: str = environment_id(ENVIRONMENT)):
        return earlier_ratios(CANDIDATES, "base", objective, where, 2, uri)

    return of


@pytest.mark.slow(1)
def test_ratios_are_to_the_baseline_of_their_study_and_medians_over_studies(ratios):
    # 30 over 10, and 7.5 over 5: their median is 2.25. What ran beside no baseline, or in batches, tells nothing.
    assert ratios() == {"half": pytest.approx(2.25), "one": pytest.approx(0.8)}
    assert ratios(where="of another machine") == {}
    assert ratios("joules_per_token") == {}


def test_an_unreadable_store_yields_no_ratios(tmp_path):
    (tmp_path / "mlflow.db").write_text("no database")
    assert earlier_ratios(CANDIDATES, "base", SPEED, "e", 2, f"sqlite:///{tmp_path / 'mlflow.db'}") == {}


def test_earlier_ratios_shape_the_forecast_and_new_samples_outweigh_them():
    def predictor(earlier):
        priors = {
            "base": Prior("torch", "a"),
            "fast": Prior("onnx", "b", 8.0, earlier=earlier),
            "kin": Prior("onnx", "c", 8.0),
        }
        return Predictor(priors, Baseline(priors["base"], 0.1, 0.2, log_goodness=math.log(10.0)), Workload())

    usual, informed = predictor(None), predictor(12.0)
    known = {"base": math.log(10.0)}
    before, after = usual.predict(known), informed.predict(known)
    # Between what its runtime promises and 12 times the baseline, nearer to the latter; its kin gains, too.
    assert before["fast"].mean < after["fast"].mean < math.log(120.0)
    assert math.log(120.0) - after["fast"].mean < after["fast"].mean - before["fast"].mean
    assert before["kin"].mean < after["kin"].mean < after["fast"].mean
    assert after["fast"].sd < before["fast"].sd
    now = informed.predict({**known, "fast": math.log(60.0)})
    assert now["fast"].mean == pytest.approx(math.log(60.0), abs=0.1)
