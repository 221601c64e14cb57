import math
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from llmtrack.tracking.limits import (
    MAX_KEY,
    MAX_PARAM_VALUE,
    MAX_TAG_VALUE,
    SHORTENED_MARK,
    fit_key,
    fit_limits,
)


@pytest.mark.parametrize(
    ("key", "fitted"),
    [
        ("total_latency_s", "total_latency_s"),
        ("spread/total_latency_s.ci_low", "spread/total_latency_s.ci_low"),
        ("größe: a b", "größe: a b"),
        ("p@ss(1)%", "p_ss_1__"),
        ("/leading", "leading"),
        ("//leading", "leading"),
        ("a//b/./c", "a/b/c"),
        ("../up", "_./up"),
        ("..", "_."),
        (".", "_"),
        ("", "_"),
        ("k" * 300, "k" * MAX_KEY),
    ],
)
def test_a_key_is_converted_to_one_that_mlflow_accepts(key, fitted):
    assert fit_key(key) == fitted


@pytest.mark.slow(2)
@given(st.text())
def test_fitting_a_key_is_idempotent(key):
    assert fit_key(fit_key(key)) == fit_key(key)


def test_long_values_are_shortened_visibly_and_recorded():
    fitted = fit_limits({"corpus": "x" * 7_000}, {}, {}, {"llmtrack.warnings": "y" * 9_000}, "run")
    assert len(fitted.params["corpus"]) == MAX_PARAM_VALUE
    assert fitted.params["corpus"].endswith(SHORTENED_MARK)
    assert len(fitted.tags["llmtrack.warnings"]) == MAX_TAG_VALUE
    assert "param corpus: 7000 characters" in fitted.tags["llmtrack.omitted"]
    assert "tag llmtrack.warnings: 9000 characters" in fitted.tags["llmtrack.omitted"]


def test_a_value_at_the_limit_is_unchanged():
    fitted = fit_limits({"corpus": "x" * MAX_PARAM_VALUE}, {}, {}, {}, "run")
    assert fitted.params == {"corpus": "x" * MAX_PARAM_VALUE}
    assert fitted.tags == {}


def test_non_finite_numbers_are_omitted_and_recorded():
    metrics = {"loss": math.nan, "perplexity": math.inf, "huge": 10**400, "total_latency_s": 1.0}
    fitted = fit_limits({}, metrics, {"series/gap": (1.0, math.nan, 3.0)}, {}, "run")
    assert fitted.metrics == {"total_latency_s": 1.0}
    assert fitted.series == {"series/gap": ((0, 1.0), (2, 3.0))}
    for name in ("loss", "perplexity", "huge", "series/gap"):
        assert name in fitted.tags["llmtrack.omitted"]


def test_keys_that_collide_after_fitting_are_both_kept():
    fitted = fit_limits({"a@b": 1, "a%b": 2, "a_b": 3}, {}, {}, {}, "run")
    assert sorted(fitted.params.values()) == ["1", "2", "3"]
    assert fitted.params["a_b"] == "3"


@pytest.fixture(scope="module")
def client(template_database, tmp_path_factory) -> MlflowClient:
    path = tmp_path_factory.mktemp("limits") / "mlflow.db"
    shutil.copyfile(template_database, path)
    return MlflowClient(f"sqlite:///{path}")


keys = st.text(max_size=20) | st.text(alphabet="./ :a_@", max_size=12) | st.just("k" * 400)
texts = st.text(max_size=50) | st.just("v" * 9_000) | st.just("\ud800\x00")


@pytest.mark.slow(2)
# A run takes longer than its values: few runs with many.
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    params=st.dictionaries(keys, texts, max_size=12),
    metrics=st.dictionaries(keys, st.floats(), max_size=12),
    series=st.dictionaries(keys, st.lists(st.floats(), max_size=5), max_size=8),
    tags=st.dictionaries(keys, texts, max_size=12),
    run_name=texts,
)
def test_a_real_store_accepts_any_fitted_values(client, params, metrics, series, tags, run_name):
    fitted = fit_limits(params, metrics, series, tags, run_name)
    run = client.create_run("0", run_name=fitted.run_name)
    client.log_batch(
        run.info.run_id,
        metrics=[Metric(k, v, 1, 0) for k, v in fitted.metrics.items()]
        + [Metric(k, v, 1, step) for k, steps in fitted.series.items() for step, v in steps],
        params=[Param(k, v) for k, v in fitted.params.items()],
        tags=[RunTag(k, v) for k, v in fitted.tags.items()],
    )
    stored = client.get_run(run.info.run_id).data
    assert stored.params == fitted.params
    assert {key: stored.tags[key] for key in fitted.tags} == fitted.tags
    assert len(fitted.params) == len(params)


def test_params_tags_and_names_are_fitted_without_credentials():
    uri = "https://me:secret@host/x"
    fitted = fit_limits({"model": uri}, {}, {}, {"mlflow.note.content": uri}, uri)
    assert "secret" not in repr(fitted)
