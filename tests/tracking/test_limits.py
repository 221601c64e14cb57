import math
import shutil

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from llmtrack.host.secrets import HIDDEN, redact, secrets_of
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
def test_a_key_becomes_one_that_mlflow_accepts(key, fitted):
    assert fit_key(key) == fitted


@pytest.mark.slow(2)
@given(st.text())
def test_fitting_a_key_twice_changes_nothing_more(key):
    assert fit_key(fit_key(key)) == fit_key(key)


def test_long_values_are_shortened_with_a_mark_and_said_so():
    fitted = fit_limits({"corpus": "x" * 7_000}, {}, {}, {"llmtrack.warnings": "y" * 9_000}, "run")
    assert len(fitted.params["corpus"]) == MAX_PARAM_VALUE
    assert fitted.params["corpus"].endswith(SHORTENED_MARK)
    assert len(fitted.tags["llmtrack.warnings"]) == MAX_TAG_VALUE
    assert "param corpus: 7000 characters" in fitted.tags["llmtrack.omitted"]
    assert "tag llmtrack.warnings: 9000 characters" in fitted.tags["llmtrack.omitted"]


def test_a_value_at_the_limit_is_left_alone():
    fitted = fit_limits({"corpus": "x" * MAX_PARAM_VALUE}, {}, {}, {}, "run")
    assert fitted.params == {"corpus": "x" * MAX_PARAM_VALUE}
    assert fitted.tags == {}


def test_non_finite_numbers_are_left_out_and_named():
    metrics = {"loss": math.nan, "perplexity": math.inf, "huge": 10**400, "total_latency_s": 1.0}
    fitted = fit_limits({}, metrics, {"series/gap": (1.0, math.nan, 3.0)}, {}, "run")
    assert fitted.metrics == {"total_latency_s": 1.0}
    assert fitted.series == {"series/gap": ((0, 1.0), (2, 3.0))}
    for name in ("loss", "perplexity", "huge", "series/gap"):
        assert name in fitted.tags["llmtrack.omitted"]


def test_two_keys_that_become_the_same_are_both_kept():
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
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    params=st.dictionaries(keys, texts, max_size=5),
    metrics=st.dictionaries(keys, st.floats(), max_size=5),
    series=st.dictionaries(keys, st.lists(st.floats(), max_size=5), max_size=3),
    tags=st.dictionaries(keys, texts, max_size=5),
    run_name=texts,
)
def test_a_real_store_takes_whatever_was_fitted(client, params, metrics, series, tags, run_name):
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


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("https://me:secret@host/x", f"https://{HIDDEN}@host/x"),
        (
            "see postgresql+psycopg://u:p@ss/w@db:5432/x now",
            f"see postgresql+psycopg://{HIDDEN}@db:5432/x now",
        ),
        ("git+https://ghtoken@github.com/a/b", f"git+https://{HIDDEN}@github.com/a/b"),
        ("http://h/x?token=abc&page=2", f"http://h/x?token={HIDDEN}&page=2"),
        ("http://h/x?a=1&api_key=abc#top", f"http://h/x?a=1&api_key={HIDDEN}#top"),
        ("s3://b/k?X-Amz-Signature=abc", f"s3://b/k?X-Amz-Signature={HIDDEN}"),
        ("Authorization: Bearer abc.def", f"Authorization: Bearer {HIDDEN}"),
        ("hf_abcdefghijklmnopqrstuvwxyz", f"hf_{HIDDEN}"),
        ("postgresql://u:12345/abc@db/x", f"postgresql://{HIDDEN}@db/x"),
        ("see http://u:12345/abc@db:1/x", f"see http://{HIDDEN}@db:1/x"),
        ("http://u:99#pass@db/x", f"http://{HIDDEN}@db/x"),
        ("http://u:1234?pw@db/x", f"http://{HIDDEN}@db/x"),
        ("mysql://u:99#pass@db/x", f"mysql://{HIDDEN}@db/x"),
        ("http://u:pa<ss@db/x", f"http://{HIDDEN}@db/x"),
        ("http://u:it's@db/x", f"http://{HIDDEN}@db/x"),
        ("'postgresql://u:it's@db/x'", f"'postgresql://{HIDDEN}@db/x'"),
        ("host=db user=me password=pw dbname=x", f"host=db user=me password={HIDDEN} dbname=x"),
        (r"password='it\'s so' host=db", f"password={HIDDEN} host=db"),
        ("AccountName=a;AccountKey=abc==;x", f"AccountName=a;AccountKey={HIDDEN};x"),
    ],
)
def test_credentials_are_removed(text, clean):
    assert redact(text) == clean


@pytest.mark.parametrize(
    "text",
    [
        "http://localhost:5000/#/experiments/1",
        "sqlite:////home/me/mlflow.db",
        "mail me@example.com, see https://example.com/a@1.2",
        "http://host:5000/path/a@b",
        "tokens_per_sec=12; key figures: 3",
        "packaged:smollm2,synthetic:smollm2-135m",
    ],
)
def test_what_is_no_credential_stays(text):
    assert redact(text) == text


user = st.text(alphabet=st.characters(categories=["Ll", "Nd"]), min_size=1, max_size=8)
password = st.text(alphabet="abcXYZ$!*@:/.-_", min_size=3, max_size=16).map(lambda text: "pw" + text + "wp")


@given(user, password)
def test_no_password_of_a_uri_survives(user, password):
    text = redact(f"failed for postgresql://{user}:{password}@db.example:5432/mlflow (timeout)")
    assert password not in text
    assert "@db.example:5432/mlflow (timeout)" in text


def test_values_of_variables_named_like_credentials_are_removed():
    environ = {"MLFLOW_TRACKING_PASSWORD": "hunter2hunter2", "HF_TOKEN": "abcdefgh", "HOME": "/home/someone"}
    secrets = secrets_of(environ)
    assert redact("login hunter2hunter2 with abcdefgh in /home/someone", secrets) == (
        f"login {HIDDEN} with {HIDDEN} in /home/someone"
    )


def test_params_tags_and_names_are_fitted_without_credentials():
    uri = "https://me:secret@host/x"
    fitted = fit_limits({"model": uri}, {}, {}, {"mlflow.note.content": uri}, uri)
    assert "secret" not in repr(fitted)
