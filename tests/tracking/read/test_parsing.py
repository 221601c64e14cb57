"""MLflow's texts are parsed to typed runs, which survive the conversion to a DataFrame and back."""

from __future__ import annotations

from datetime import datetime, timezone

import pandas as pd
import pytest

from llmtrack.experiment import Experiment
from llmtrack.tracked.frames import ID_COLUMNS, PARAM_COLUMNS, frame_of, runs_of
from llmtrack.tracked.run import Run, Spread
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.parsing import RunParser

PARAMS = {"scenario": "a", "batch_size": "4", "use_cache": "False", "stride": "none", "dtype": "float32"}
TAGS = {
    "llmtrack.kind": "scenario",
    "llmtrack.experiment": "precision",
    "llmtrack.study_id": "s1",
    "llmtrack.baseline": "true",
    "llmtrack.warnings": "noisy: so\n\n drift: so ",
    "llmtrack.env.cpu": "A CPU",
    "llmtrack.environment": '{"threads": "2"}',
    "llmtrack.spread": '{"tokens_per_sec": {"n": 5, "ci_low": 9.5, "ci_high": 10.5}}',
    "mlflow.user": "somebody",
}
METRICS = {"tokens_per_sec": 10.0, "perplexity": float("nan"), "their_metric": 3.0, "series/loss": 1.0}


def parsed(*runs: tuple[dict[str, str], dict[str, float], dict[str, str]]) -> Runs:
    from mlflow.entities import Metric, Param, RunData, RunInfo, RunTag
    from mlflow.entities import Run as MlflowRun

    parser = RunParser({"1": "mine"})
    for number, (params, metrics, tags) in enumerate(runs):
        info = RunInfo(f"r{number}", "1", "u", "FINISHED", 1000 * number, None, "active", run_name=f"n{number}")
        data = RunData(
            [Metric(key, value, 0, 0) for key, value in metrics.items()],
            [Param(*item) for item in params.items()],
            [RunTag(*item) for item in tags.items()],
        )
        parser.add(MlflowRun(info, data))
    return parser.runs()


def test_texts_are_parsed_by_the_type_of_their_param():
    (run,) = parsed((PARAMS, METRICS, TAGS))
    assert (run.run_id, run.name, run.status, run.mlflow_experiment) == ("r0", "a", "FINISHED", "mine")
    assert (run.kind, run.experiment, run.study_id, run.suite_id) == ("scenario", "precision", "s1", "")
    assert run.baseline is True
    assert run.start_time == datetime(1970, 1, 1, tzinfo=timezone.utc)
    assert run.end_time is None
    assert run.warnings == ("noisy: so", "drift: so")
    assert run.params == {
        "scenario": "a",
        "batch_size": 4,
        "use_cache": False,
        "stride": None,
        "dtype": "float32",
    }
    assert run.metrics["tokens_per_sec"] == 10.0
    assert run.metrics.keys().isdisjoint({"perplexity", "series/loss"})
    assert run.spread("tokens_per_sec") == Spread(5, 9.5, 10.5)
    assert run.spread("their_metric") is None
    assert run.environment == {"cpu": "A CPU", "threads": "2"}
    assert (run.get("env.cpu"), run.get("batch_size"), run.get("outcome"), run.get("stride")) == (
        "A CPU",
        4,
        None,
        None,
    )
    with pytest.raises(AttributeError):
        run.status = "FAILED"


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (("1", "2"), [2, 1]),
        (("1", "2.5"), [2.5, 1.0]),
        (("true", "False"), [False, True]),
        (("1", "b"), ["b", "1"]),
        (("1_000", "2"), [2.0, 1000.0]),
        (("9" * 19, "1"), [1.0, 1e19]),
        (("none", "2"), [2, None]),
    ],
)
def test_an_unknown_param_has_the_narrowest_type_that_fits_all_values(texts, values):
    params = [run.params["theirs"] for run in parsed(*(({"theirs": text}, {}, {}) for text in texts))]
    assert params == values
    assert list(map(type, params)) == list(map(type, values))


def test_a_clashing_name_gets_a_prefix():
    (run,) = parsed(({"status": "odd", "perplexity": "low"}, {"perplexity": 2.0, "dtype": 16.0}, {}))
    assert run.params == {"params.status": "odd", "params.perplexity": "low"}
    assert run.metrics == {"perplexity": 2.0, "metrics.dtype": 16.0}
    assert run.status == "FINISHED"


def test_runs_survive_the_conversion_to_a_table_and_back():
    runs = parsed(
        (PARAMS, METRICS, TAGS),
        ({"theirs": "1", "batch_size": "many", "status": "odd"}, {"dtype": 16.0}, {}),
        ({}, {}, {"llmtrack.baseline": "false", "llmtrack.outcome": "failed"}),
    )
    table = frame_of(runs)
    assert list(table.columns[: len(ID_COLUMNS)]) == list(ID_COLUMNS)
    assert table["batch_size"].tolist() == [pd.NA, "many", "4"], "a column is of one type"
    assert isinstance(table.attrs[PARAM_COLUMNS], tuple)
    pd.testing.assert_frame_equal(frame_of(runs_of(table)), table)
    for before, after in zip(runs, runs_of(table), strict=True):
        assert (before.name, before.baseline, before.warnings) == (after.name, after.baseline, after.warnings)
        assert before.metrics == after.metrics
        assert before.environment == after.environment


def test_changes_of_a_table_are_kept_in_the_conversion_back():
    table = frame_of(parsed((PARAMS, METRICS, TAGS)))
    table.loc[0, "scenario"], table["mine"] = "another", 2.5
    (run,) = runs_of(table)
    assert (run.name, run.metrics["mine"]) == ("another", 2.5)


def test_runs_without_the_sorting_value_come_last():
    runs = Runs([Run("a", metrics={"loss": 2.0}), Run("b"), Run("c", metrics={"loss": 1.0})])
    assert [run.run_id for run in runs.by("loss")] == ["c", "a", "b"]
    assert [run.run_id for run in runs.by("loss", highest_first=True)] == ["a", "c", "b"]
    assert isinstance(runs[:2], Runs)


@pytest.mark.parametrize(("typed", "kind"), [(True, Runs), (False, pd.DataFrame)])
def test_plots_and_readings_of_other_packages_get_a_table(typed, kind):
    seen = []
    experiment = Experiment(
        "theirs",
        "?",
        (),
        plots=lambda runs, series: seen.append(type(runs)) or {},
        reading=lambda runs: seen.append(type(runs)) or [],
        typed=typed,
    )
    experiment.draw(parsed((PARAMS, METRICS, TAGS)), lambda run_id, name: [])
    experiment.read(parsed((PARAMS, METRICS, TAGS)))
    assert seen == [kind, kind]
