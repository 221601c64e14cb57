"""The definition of a cell: when two runs are different configurations, and which replaces which."""

from __future__ import annotations

import dataclasses

import pytest

from llmtrack import metrics as schema
from llmtrack.decide.candidates import gather_candidates
from llmtrack.decide.compare import compare_pairs
from llmtrack.decide.selection import Pair, pair_runs
from llmtrack.report.tables.differences import differences_table
from llmtrack.report.tables.summary import summary_table
from llmtrack.report.tables.table import with_differing_params
from llmtrack.spec.task import GenerateTask, PerplexityTask, RepeatPolicy, TrainTask
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.parsing import RunParser
from tests.report.artificial_runs import column, make_runs, run

ONE = {str: "one", int: 1, float: 0.25, bool: False}
OTHER = {str: "other", int: 2, float: 0.5, bool: True}
PARAMS = {param.name: param for param in schema.PARAMS}
CONFIGURATIONS = schema.params_with("configuration")
OF_WORK = schema.params_with("work", "convention")
SAME = schema.params_with("repeats", "named", "found")


def at(minute, **values):
    ids = {"environment_id": "e1", "workload_id": "w1", "tokens_per_sec": 1.0, "study_id": f"s{minute}"}
    return run("a", run_id=f"a{minute}", start_time=f"2026-11-28T10:{minute:02}:00Z", **{**ids, **values})


def two(name):
    kind = PARAMS[name].kind
    return make_runs(at(1, **{name: ONE[kind]}), at(2, **{name: OTHER[kind]}))


def kept(runs):
    return sorted(column(runs.newest_of_each(), "run_id"))


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_runs_of_different_configurations_are_different_cells_everywhere(name):
    runs = two(name)
    assert kept(runs) == ["a1", "a2"]
    pairs, _ = pair_runs(make_runs(run("base", run_id="b", start_time="2026-11-28T09:00:00Z")), runs)
    assert [pair.candidate.run_id for pair in pairs] == ["a1", "a2"]
    # A choice is among the runs of one model, here of the newest.
    chosen = ["a2"] if name == "model_id" else ["a1", "a2"]
    assert sorted(column(gather_candidates(runs).runs, "run_id")) == chosen


@pytest.mark.parametrize("name", OF_WORK)
def test_a_table_shows_all_work_and_a_comparison_the_newest(name):
    runs = two(name)
    assert kept(runs) == ["a1", "a2"]
    assert list(column(runs.newest_of_each(across_work=True), "run_id")) == ["a2"]


@pytest.mark.parametrize("name", SAME)
def test_findings_and_repeats_make_no_other_configuration(name):
    runs = two(name)
    assert kept(runs) == ["a2"]
    assert list(column(gather_candidates(runs).runs, "run_id")) == ["a2"]
    is_setting = name not in schema.params_with("found")
    assert (name in runs.params) == is_setting, "differing settings are shown, findings are not"


# `pooled` must be JSON.
@pytest.mark.parametrize("name", [param for param in schema.params_with("found") if param != "pooled"])
def test_findings_of_a_run_are_not_shown_as_differences(name):
    one, other = two(name)
    runs = Runs((one, dataclasses.replace(other, params={**other.params, "scenario": "b"})))
    columns = with_differing_params(summary_table(runs), runs).keys
    assert (name in columns) == (PARAMS[name].shown is not None), "a table has the columns of shown params only"
    table = differences_table(compare_pairs([Pair(*runs)], ["tokens_per_sec"]))
    texts = [*table.conditions, *table.notes, *(cell for row in table.rows for cell in row)]
    assert not [text for text in texts if "→" in text]


@pytest.mark.parametrize("digest", ["weights_digest", "config_digest", "tokenizer_digest"])
def test_another_model_under_the_same_name_is_another_configuration(digest):
    rows = make_runs(at(1) | {f"env.{digest}": "one"}, at(2) | {f"env.{digest}": "other"})
    assert kept(rows) == ["a1", "a2"]


@pytest.mark.parametrize("values", [("a", "b"), ("1", "2"), ("0.25", "0.5"), ("true", "false"), (None, "1")])
def test_an_unknown_option_is_a_configuration(values):
    """Such as one of an external engine, read back as text."""
    table = RunParser({})
    for number, value in enumerate(values):
        name = f"r{number}"
        table.begin(name, name, "FINISHED", "1", number, number)
        table.put(
            params=[(name, "scenario", "a"), *([(name, "lookahead", value)] if value else [])],
            metrics=[(name, "their_metric", number)],
            tags=[(name, "llmtrack.scenario", "a"), (name, "llmtrack.kind", "scenario")],
        )
    assert sorted(column(table.runs().newest_of_each(), "run_id")) == ["r0", "r1"]


def test_an_unknown_metric_is_not_a_configuration():
    runs = make_runs(at(1, their_metric=1.0), at(2, their_metric=2.0))
    assert kept(runs) == ["a2"]


def test_every_setting_of_a_task_is_in_the_table_with_a_role():
    """A setting without an entry would count as an unnamed configuration."""
    unseen = {"prompts", "verbose", "explain", "output"}
    for task in (GenerateTask, PerplexityTask, TrainTask, RepeatPolicy):
        for field in dataclasses.fields(task):
            assert field.name in schema.PARAM_BY_NAME or field.name in unseen, f"{field.name}: metrics/table.py"
    assert {field.name for field in dataclasses.fields(RepeatPolicy)} == {*schema.params_with("repeats")}


def test_a_failure_after_loading_is_replaced_by_a_newer_run_of_the_same_request():
    """It has fewer facts than a measured run, so by these alone it would be another cell."""
    request = {"model": "m", "device_requested": "auto", "dtype_requested": "auto", "scenario_id": "q1"}
    failed = {"status": "FAILED", "workload_id": None, "prompt_tokens": None, **request}
    finished = at(2, threads=2, **request)
    assert kept(make_runs(at(1, **failed), finished)) == ["a2"]
    assert kept(make_runs(finished, at(3, **failed))) == ["a2", "a3"]
    assert kept(make_runs(at(1, **{**failed, "scenario_id": "q2"}), finished)) == ["a1", "a2"]


@pytest.mark.slow(1)
def test_the_counterpart_has_the_same_configuration_if_there_is_one():
    baselines = make_runs(at(3, threads=8), at(2, threads=1), at(1, threads=None))
    for threads, minute in ((8, 3), (1, 2), (None, 1), (4, 3)):
        ((pair,), _) = pair_runs(baselines, make_runs(at(9, threads=threads)))
        assert pair.baseline.run_id == f"a{minute}"
