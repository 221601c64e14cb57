import sqlite3
from collections.abc import Iterable
from datetime import date, datetime, timedelta, timezone

import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from llmtrack import metrics as schema
from llmtrack.errors import TrackingError, UsageError
from llmtrack.spec.outcome import StepValues
from llmtrack.tracked.frames import ID_COLUMNS
from llmtrack.tracking.read.artifacts import series
from llmtrack.tracking.read.query import runs, studies
from llmtrack.tracking.write.tracker import Tracker
from tests.tracking.samples import ENVIRONMENT, failure, measurement, perplexity, scenario


@pytest.fixture
def filled(filled_once) -> None:
    """Two studies of different experiments."""
    filled_once("two-studies", two_studies)


def two_studies(tracker: Tracker) -> None:
    study = tracker.start_study("precision", "Which dtype?", {"n": 3}, ENVIRONMENT)
    tracker.log(study, measurement("fp32", scenario=scenario("fp32", baseline=True)))
    tracker.log(study, measurement("bf16", facts={"dtype": "bfloat16", "model_id": "hub/Other_Model"}))
    tracker.log(study, failure("fp16", scenario=scenario("fp16")))
    tracker.log_same_as(study, scenario("half"), {"dtype": "float32 (forced on CPU)"}, "fp32", "same dtype")
    tracker.finish_study(study, "failed")
    other = tracker.start_study("perplexity", "How good?", {}, ENVIRONMENT)
    tracker.log(other, measurement("ppl", scenario=perplexity(), metrics={"loss": 2.5}, summaries={}))
    tracker.finish_study(other, "finished")


def names(**filters) -> list[str]:
    return sorted(runs(**filters)["scenario"])


@pytest.mark.slow(1)
def test_digests_and_spreads_of_older_versions_are_read(tracker, uri):
    """They were params and metrics."""
    study = tracker.start_study("precision", "q", {}, ENVIRONMENT)
    tracker.log(study, measurement("new", facts={"output_digest": "d1", "corpus_digest": "01"}))
    client = MlflowClient(uri)
    tags = {"llmtrack.kind": "scenario", "llmtrack.experiment": "precision"}
    old = client.create_run(study.experiment_id, tags=tags, run_name="old").info.run_id
    for key, value in {"scenario": "old", "output_digest": "d1", "corpus_digest": "01"}.items():
        client.log_param(old, key, value)
    for key, value in {"n": 12, "ci_low": 1.4, "ci_high": 1.6}.items():
        client.log_metric(old, f"spread/total_latency_s.{key}", value)
    table = runs(tracking_uri=uri).set_index("scenario")
    for column in (
        "output_digest",
        "corpus_digest",
        *(f"spread/total_latency_s.{e}" for e in ("n", "ci_low")),
    ):
        assert table[column]["old"] == table[column]["new"]
        assert table[column].dtype == ("float64" if column.startswith("spread") else "string")
    new = client.search_runs([study.experiment_id], "params.scenario = 'new'")[0]
    assert not [key for key in new.data.params if "digest" in key]
    assert not [key for key in new.data.metrics if key.startswith("spread/")]


@pytest.mark.slow(1)
def test_columns_are_typed(filled, uri):
    table = runs(tracking_uri=uri).set_index("scenario", drop=False)
    assert list(table.columns[: len(ID_COLUMNS)]) == list(ID_COLUMNS)
    assert table["max_new_tokens"].dtype == "Int64"
    assert table["max_new_tokens"]["ppl"] is pd.NA
    assert table["max_new_tokens"]["fp32"] == 8
    assert table["use_cache"].dtype == "boolean"
    assert table["target_ci"].dtype == "float64"
    assert table["dtype"]["bf16"] == "bfloat16"
    assert table["dtype"]["half"] == "float32 (forced on CPU)"
    assert table["total_latency_s"].dtype == "float64"
    assert table["total_latency_s"]["fp32"] == 1.5
    assert pd.isna(table["total_latency_s"]["ppl"])
    assert table["spread/total_latency_s.ci_low"]["fp32"] == 1.4
    assert table["baseline"].to_dict() == {
        "fp32": True,
        "bf16": False,
        "fp16": False,
        "half": False,
        "ppl": False,
    }
    assert table["outcome"]["fp16"] == "failed"
    assert table["reason"]["fp16"] == "out of memory: needs 9 GiB"
    assert table["failure"]["fp16"] == "out_of_memory"
    assert table["same_as"]["half"] == "fp32"
    assert table["warnings"]["fp32"] == "samples drift"
    assert table["env.cpu"]["fp32"] == "A CPU"
    assert table["mlflow_experiment"]["fp32"] == "llmtrack"
    assert str(table["start_time"].dtype) == "datetime64[ms, UTC]"
    assert table["start_time"]["fp32"] == pd.Timestamp(1_790_000_000_500, unit="ms", tz="UTC")
    assert not [name for name in table.columns if name.startswith("series/") or name.endswith((".low", ".high"))]


@pytest.mark.slow(1)
def test_filters(filled, uri):
    assert names(tracking_uri=uri) == ["bf16", "fp16", "fp32", "half", "ppl"]
    assert names(tracking_uri=uri, experiment="perplexity") == ["ppl"]
    assert names(tracking_uri=uri, experiment="llmtrack", status="failed") == ["fp16"]
    assert names(tracking_uri=uri, model="OTHER_model") == ["bf16"]
    assert names(tracking_uri=uri, model="OtherXModel") == []
    # Of `half` the name says that it is the same as fp32.
    assert names(tracking_uri=uri, search="fp") == ["fp16", "fp32", "half"]
    assert names(tracking_uri=uri, search="other_") == ["bf16"]
    assert names(tracking_uri=uri, search="tags.`llmtrack.outcome` = 'failed'") == ["fp16"]
    assert names(tracking_uri=uri, search="metrics.`total_latency_s.high` < 1.7") == ["bf16", "fp32"]
    assert names(tracking_uri=uri, search="metrics.`total_latency_s.low` > 1.4") == []
    assert names(tracking_uri=uri, search="metrics.loss < 3") == ["ppl"]
    assert names(tracking_uri=uri, search="it's") == []
    assert names(tracking_uri=uri, tags={"llmtrack.baseline": "true"}) == ["fp32"]
    assert names(tracking_uri=uri, tags={"llmtrack.baseline": "false", "llmtrack.experiment": "perplexity"}) == ["ppl"]
    assert len(runs(tracking_uri=uri, kind=None)) == 7
    assert len(runs(tracking_uri=uri, kind="study")) == 2


@pytest.mark.slow(1)
def test_a_study_is_found_by_its_id_by_its_runs_id_or_as_the_latest(filled, uri):
    by_experiment = studies(experiment="precision", tracking_uri=uri).iloc[0]
    expected = ["bf16", "fp16", "fp32", "half"]
    assert names(tracking_uri=uri, study=by_experiment["study_id"]) == expected
    assert names(tracking_uri=uri, study=by_experiment["run_id"]) == expected
    assert names(tracking_uri=uri, study="latest") == ["ppl"]
    assert names(tracking_uri=uri, study="latest", experiment="precision") == expected


@pytest.mark.slow(1)
def test_studies_are_read_with_their_settings(filled, uri):
    table = studies(tracking_uri=uri).set_index("experiment")
    assert table["cfg.n"].dtype == "Int64"
    assert table["cfg.n"]["precision"] == 3
    assert table["question"]["precision"] == "Which dtype?"
    assert table["status"].to_dict() == {"perplexity": "FINISHED", "precision": "FAILED"}


@pytest.mark.slow(1)
def test_filters_by_time(tracker, uri):
    study = tracker.start_study("e", "q", {}, {})
    day = datetime(2026, 3, 1, tzinfo=timezone.utc)
    for name, hours in (("morning", 8), ("noon", 12), ("evening", 20)):
        begun = (day + timedelta(hours=hours)).timestamp()
        tracker.log(study, measurement(name, started_at=begun, ended_at=begun + 1))
    assert names(since="2026-03-01T12:00", tracking_uri=uri) == ["evening", "noon"]
    assert names(since=day + timedelta(hours=9), until="2026-03-01T20:00:00Z", tracking_uri=uri) == ["noon"]
    assert names(until=date(2026, 3, 1), tracking_uri=uri) == []
    assert names(since="1h", tracking_uri=uri) == []
    assert names(since="2026-03-01T13:00+02:00", until="2026-03-01T15:00+02:00", tracking_uri=uri) == ["noon"]


@pytest.mark.slow(1)
def test_chosen_columns(filled, uri):
    table = runs(tracking_uri=uri, columns=["scenario", "tokens_per_sec", "env.cpu"])
    assert list(table.columns) == ["scenario", "tokens_per_sec", "env.cpu"]
    with pytest.raises(UsageError, match=r"no column 'token_per_sec': did you mean tokens_per_sec"):
        runs(tracking_uri=uri, columns=["token_per_sec"])
    with pytest.raises(UsageError, match=r"did you mean .*env\.cpu"):
        runs(tracking_uri=uri, columns=["cpu"])


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"since": "yesterday"}, "7d or 12h"),
        ({"tags": {"a`b": "c"}}, "cannot search for the key"),
        ({"experiment": "precison"}, "did you mean precision"),
        ({"experiment": "a'b\"c"}, "quotes"),
        ({"study": "precision-0"}, "there is no study"),
        ({"study": "0" * 32}, "there is no study"),
        ({"study": "latest", "experiment": "nothing"}, "there is no study of experiment 'nothing'"),
        ({"search": "params.x = 1"}, "rejects the filter"),
        ({"search": "metrics.loss <"}, "rejects the filter"),
        ({"status": "done"}, "RUNNING"),
    ],
)
def test_an_invalid_filter_gives_one_line_with_a_remedy(filled, uri, filters, message):
    with pytest.raises(UsageError, match=message) as caught:
        runs(tracking_uri=uri, **filters)
    assert "\n" not in str(caught.value)


@pytest.mark.slow(1)
def test_an_empty_result_has_the_same_columns_and_types(tracker, uri):
    empty = runs(tracking_uri=uri)
    assert len(empty) == 0
    tracker.log(tracker.start_study("e", "q", {}, {}), measurement())
    full = runs(tracking_uri=uri)
    assert set(empty.columns) <= set(full.columns)
    for name in empty.columns:
        assert empty[name].dtype == full[name].dtype, name
    assert set(empty.columns) == {*ID_COLUMNS, *schema.PARAM_BY_NAME, *schema.METRIC_BY_NAME}


@pytest.mark.slow(1)
def test_a_series_is_read_back_by_step(tracker, uri):
    run_id = tracker.log(tracker.start_study("e", "q", {}, {}), measurement())
    assert series(run_id, "token_latency_ms", uri) == [1.0, 2.0, 3.0]
    assert series(run_id, "nothing", uri) == []
    assert series("0" * 32, "token_latency_ms", uri) == []


@pytest.mark.slow(1)
def test_system_metrics_are_series_under_mlflows_own_names(tracker, uri):
    key = "system/cpu_utilization_percentage"
    steps = tuple(StepValues(step, 1_790_000_001.5 + step, {key: 50.0 + step}) for step in range(2))
    run_id = tracker.log(tracker.start_study("e", "q", {}, {}), measurement(steps=steps))
    history = MlflowClient(uri).get_metric_history(run_id, key)
    assert [(m.step, m.timestamp, m.value) for m in history] == [
        (0, 1_790_000_001_500, 50.0),
        (1, 1_790_000_002_500, 51.0),
    ]
    assert series(run_id, key, uri) == [50.0, 51.0]
    assert not [name for name in runs(tracking_uri=uri).columns if "system" in name]


def test_no_database_is_a_clear_error(tmp_path):
    with pytest.raises(TrackingError, match="run an experiment first"):
        runs(tracking_uri=f"sqlite:///{tmp_path}/none.db")


@pytest.mark.slow(1)
def test_clashing_names_get_a_prefix_and_unknown_values_a_type(tracker, uri):
    facts = {
        "status": "mine",
        "loss": "mse",
        "heads": 4,
        "scale": 0.5,
        "tied": True,
        "norm": "rms",
        "mixed": 1,
    }
    study = tracker.start_study("e", "q", {}, {})
    tracker.log(study, measurement("a", facts=facts, metrics={"run_id": 1.0, "loss": 2.0}))
    tracker.log(study, measurement("b", facts={"mixed": "1,2", "max_new_tokens": "many"}))
    table = runs(tracking_uri=uri).set_index("scenario", drop=False)
    assert table["params.status"]["a"] == "mine"
    assert table["status"]["a"] == "FINISHED"
    assert table["params.loss"]["a"] == "mse"
    assert table["loss"]["a"] == 2.0
    assert table["metrics.run_id"]["a"] == 1.0
    assert table["heads"].dtype == "Int64"
    assert table["scale"].dtype == "float64"
    assert table["tied"].dtype == "boolean"
    assert list(table["mixed"][["a", "b"]]) == ["1", "1,2"]
    assert list(table["max_new_tokens"][["a", "b"]]) == ["8", "many"]


@pytest.mark.slow(1)
def test_all_pages_are_read_once_and_foreign_runs_excluded(uri):
    client = MlflowClient(uri)
    number = client.create_experiment("many")
    tags = {"llmtrack.kind": "scenario", "llmtrack.experiment": "many"}
    first = client.create_run(number, run_name="r", tags=tags, start_time=1_000)
    clone(uri, first.info.run_id, range(1_001, 2_200))
    client.create_run(number, run_name="someone else's")
    table = runs(tracking_uri=uri)
    assert len(table) == 1_200
    assert table["run_id"].is_unique


def clone(uri: str, run_id: str, start_times: Iterable[int]) -> None:
    """Copy a run inside the database: 1,200 calls of create_run would take half a minute."""
    with sqlite3.connect(uri.removeprefix("sqlite:///")) as database:
        for table in ("runs", "tags"):
            columns = [row[1] for row in database.execute(f"pragma table_info({table})")]
            changed = {"run_uuid": ":uuid", "start_time": ":start"}
            chosen = ", ".join(changed.get(name, name) for name in columns)
            statement = f"insert into {table} ({', '.join(columns)}) select {chosen} from {table} where run_uuid = :of"
            rows = [{"uuid": f"{n:032x}", "start": start, "of": run_id} for n, start in enumerate(start_times)]
            database.executemany(statement, rows)


def test_foreign_runs_are_read_on_request(uri):
    client = MlflowClient(uri)
    run = client.create_run("0", run_name="theirs")
    client.log_batch(run.info.run_id, [Metric("acc", 0.5, 1, 0)], [Param("lr", "0.1")], [RunTag("a", "b")])
    table = runs(kind=None, tracking_uri=uri)
    assert (table["lr"][0], table["acc"][0]) == (0.1, 0.5)
    assert table["kind"][0] is pd.NA
