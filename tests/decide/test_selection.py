"""Selectors by id, study, branch, tag and alias, and those that match nothing."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient

import llmtrack
from llmtrack.cli import main
from llmtrack.decide.selection import as_selector, select, select_all, single_run_id
from llmtrack.errors import UsageError
from llmtrack.tracking.read.lookup import set_alias
from llmtrack.tracking.read.query import newest_study, runs, study_run
from llmtrack.tracking.write.tracker import Tracker
from tests.tracking.samples import ENVIRONMENT, failure, measurement, scenario

pytestmark = pytest.mark.usefixtures("_clean_environment")


@pytest.fixture
def studies(filled_once):
    """A study on `main` with a failure, and a newer one of another experiment on `feature`."""
    older, newer, ids = filled_once("two-branches", two_branches)
    return SimpleNamespace(**older), SimpleNamespace(**newer), ids


def two_branches(tracker):
    older = tracker.start_study("precision", "q", {}, {**ENVIRONMENT, "git_branch": "main"})
    ids = {
        "a": tracker.log(older, measurement("a")),
        "b": tracker.log(older, failure("b", scenario=scenario("b"))),
    }
    tracker.finish_study(older, "failed")
    newer = tracker.start_study("batching", "q", {}, {**ENVIRONMENT, "git_branch": "feature"})
    ids["c"] = tracker.log(newer, measurement("c", started_at=1_790_000_100.0, tags={"llmtrack.label": "x"}))
    tracker.finish_study(newer, "finished")
    return *({"study_id": study.study_id, "run_id": study.run_id} for study in (older, newer)), ids


def chosen(selector, uri, **more):
    return sorted(select(selector, tracking_uri=uri, **more).scenarios)


@pytest.mark.slow(2)
def test_selectors(studies, uri):
    older, newer, ids = studies
    assert chosen(ids["b"], uri) == ["b"]
    assert chosen(older.run_id, uri) == ["a", "b"]
    assert chosen(f"study:{older.study_id}", uri) == ["a", "b"]
    assert chosen(f"study:{newer.run_id}", uri) == ["c"]
    assert chosen("latest", uri) == ["c"]
    assert chosen("latest:precision", uri) == ["a", "b"]
    assert chosen("latest", uri, experiment="precision") == ["a", "b"]
    assert chosen("branch:main", uri) == ["a"], "only what finished"
    assert chosen("branch:feature", uri) == ["c"]
    assert chosen("tag:llmtrack.label=x", uri) == ["c"]
    assert chosen("latest:precision#a", uri) == ["a"]
    assert chosen(f"study:{older.study_id}#b", uri) == ["b"]
    both = select_all([ids["a"], f"study:{older.study_id}", "latest"], tracking_uri=uri)
    assert sorted(both.scenarios) == ["a", "b", "c"]


@pytest.mark.slow(5)
def test_short_ids_and_every_name_of_a_study_are_selectors(studies, uri):
    older, _other, ids = studies
    set_alias("good", older.run_id[:8], uri)
    assert chosen(ids["b"][:8], uri) == ["b"]
    assert chosen(older.run_id[:8], uri) == chosen(older.study_id, uri) == chosen("alias:good", uri) == ["a", "b"]
    for name in (
        older.study_id,
        older.run_id,
        older.run_id[:8],
        "latest:precision",
        "alias:good",
        f"study:{older.study_id}",
    ):
        assert sorted(runs(study=name, tracking_uri=uri)["scenario"]) == ["a", "b"]
        assert study_run(name, uri).run_id == older.run_id
        assert chosen(as_selector(name), uri) == ["a", "b"]
    assert sorted(runs(study="latest", tracking_uri=uri)["scenario"]) == ["c"]


@pytest.mark.slow(1)
@pytest.mark.usefixtures("studies")
def test_unknown_ids_are_refused(uri):
    with pytest.raises(UsageError, match="no tracked scenario run"):
        select("0" * 8, tracking_uri=uri)
    with pytest.raises(UsageError, match="there is no study"):
        runs(study="0" * 8, tracking_uri=uri)
    with pytest.raises(UsageError, match=r"invalid study .*: use study:ID"):
        runs(study="branch:main", tracking_uri=uri)


@pytest.mark.slow(1)
def test_a_suite_selects_the_runs_of_all_its_studies(tracker, uri):
    suite = tracker.start_study("suite", "q", {}, ENVIRONMENT)
    for experiment in ("precision", "batching"):
        study = tracker.start_study(experiment, "q", {}, ENVIRONMENT, suite_id=suite.study_id)
        tracker.log(study, measurement(experiment))
        tracker.finish_study(study, "finished")
    tracker.finish_study(suite, "finished")
    for name in (suite.study_id, suite.run_id, suite.run_id[:8], "latest:suite"):
        assert sorted(runs(study=name, tracking_uri=uri)["scenario"]) == ["batching", "precision"]
    assert chosen(f"study:{suite.study_id}", uri) == chosen("latest:suite", uri) == ["batching", "precision"]
    assert study_run("latest:suite", uri).run_id == suite.run_id


NOTHING = [
    ("newest", "invalid selector .newest.: use a run id, study:ID"),
    ("tag:a", "invalid selector"),
    ("latest:precision#c", "'latest:precision' has no scenario 'c': it has"),
    ("branch:", "invalid selector"),
    ("branch:nope", "no tracked scenario run.*only finished ones"),
    ("tag:a=b", "no tracked scenario run"),
    ("alias:nope", "set it by `llmtrack alias nope RUN_ID`"),
    ("alias:no pe", "invalid alias"),
    ("study:nope", "there is no study 'nope'"),
    ("0" * 32, "no tracked scenario run"),
]


@pytest.mark.slow(1)
@pytest.mark.usefixtures("studies")
def test_selectors_that_match_nothing_are_refused(uri):
    for selector, message in NOTHING:
        with pytest.raises(UsageError, match=message):
            select(selector, tracking_uri=uri)


@pytest.mark.slow(1)
def test_an_alias_moves_to_its_newest_run(studies, uri):
    older, _, ids = studies
    assert set_alias("production", ids["a"], uri) is None
    assert chosen("alias:production", uri) == ["a"]
    assert set_alias("production", ids["c"], uri) == ids["a"]
    assert chosen("alias:production", uri) == ["c"]
    for run_id in (ids["a"], ids["c"]):
        tags = MlflowClient(uri).get_run(run_id).data.tags
        assert not [key for key in tags if key.startswith("llmtrack.alias.")]
    assert set_alias("production", ids["c"], uri) == ids["c"], "unchanged"
    assert chosen("alias:production", uri) == ["c"]
    set_alias("production", older.run_id, uri)
    assert chosen("alias:production", uri) == ["a", "b"], "a study's alias means all its scenarios"


@pytest.mark.slow(1)
def test_an_alias_of_an_older_version_counts_until_it_is_set(studies, uri):
    ids, client = studies[2], MlflowClient(uri)
    client.set_tag(ids["a"], "llmtrack.alias.x", "1" * 19)
    client.set_tag(ids["c"], "llmtrack.alias.x", "9" * 19)
    assert chosen("alias:x", uri) == ["c"], "the newer of both"
    assert set_alias("y", ids["b"], uri) is None
    assert chosen("alias:x", uri) == ["c"], "another alias changes nothing"
    assert set_alias("x", ids["b"], uri) == ids["c"]
    assert chosen("alias:x", uri) == ["b"]
    client.delete_run(ids["b"])
    with pytest.raises(UsageError, match="no run has the alias 'x'"):
        select("alias:x", tracking_uri=uri)


@pytest.mark.slow(1)
def test_a_registry_alias_selects_the_run_of_its_version(studies, uri):
    ids, client = studies[2], MlflowClient(uri)
    client.create_registered_model("my model")
    for run_id in (None, ids["a"], ids["c"]):
        client.create_model_version("my model", f"/made/{run_id}", run_id=run_id)
    client.set_registered_model_alias("my model", "champion", "2")
    assert chosen("alias:my model@champion", uri) == ["a"]
    client.set_registered_model_alias("my model", "champion", "3")
    assert chosen("alias:my model@champion", uri) == ["c"]
    for selector, message in (
        (
            "alias:my model@nope",
            "no registered model 'my model' has the alias 'nope': set it by `llmtrack promote RUN",
        ),
        ("alias:nope@champion", "no registered model 'nope'"),
        ("alias:@", "no registered model ''"),
    ):
        with pytest.raises(UsageError, match=message):
            select(selector, tracking_uri=uri)
    client.set_registered_model_alias("my model", "champion", "1")
    with pytest.raises(UsageError, match="registered without a run"):
        select("alias:my model@champion", tracking_uri=uri)


@pytest.mark.slow(2)
def test_an_alias_is_unique_in_each_mlflow_experiment(studies, uri, tmp_path):
    ids = studies[2]
    elsewhere = Tracker.open(uri, "elsewhere", tmp_path / "spool")
    theirs = elsewhere.log(elsewhere.start_study("precision", "q", {}, ENVIRONMENT), measurement("d"))
    set_alias("x", ids["a"], uri)
    set_alias("x", theirs, uri)
    with pytest.raises(UsageError, match=r"several experiments have the alias 'x' \(elsewhere, llmtrack\)"):
        select("alias:x", tracking_uri=uri)
    assert chosen("alias:x", uri, experiment="elsewhere") == ["d"]
    assert chosen("alias:x", uri, experiment="llmtrack") == ["a"]


@pytest.mark.slow(1)
def test_invalid_aliases(studies, uri):
    with pytest.raises(UsageError, match="there is no run 'nope'"):
        set_alias("x", "nope", uri)
    with pytest.raises(UsageError, match="use letters"):
        set_alias("a b", studies[2]["a"], uri)


@pytest.mark.slow(2)
def test_latest_is_the_newest_suite_or_study_outside_of_one(tracker, uri):
    """The last study of a suite is not, except by its experiment's name."""
    suite = tracker.start_study("suite", "q", {}, ENVIRONMENT)
    last = None
    for experiment in ("precision", "training"):
        last = tracker.start_study(experiment, "q", {}, ENVIRONMENT, suite_id=suite.study_id)
        tracker.log(last, measurement(experiment))
        tracker.finish_study(last, "finished")
    tracker.finish_study(suite, "finished")
    assert newest_study(tracking_uri=uri) == suite.study_id
    assert chosen("latest", uri) == ["precision", "training"]
    assert chosen("latest:training", uri) == ["training"]
    assert newest_study("training", uri) == last.study_id
    alone = tracker.start_study("precision", "q", {}, ENVIRONMENT)
    tracker.log(alone, measurement("alone"))
    tracker.finish_study(alone, "finished")
    assert chosen("latest", uri) == ["alone"]
    assert newest_study("precision", uri) == alone.study_id


@pytest.mark.slow(2)
def test_latest_finds_a_suite_without_its_own_run(tracker, uri):
    study = tracker.start_study("precision", "q", {}, ENVIRONMENT, suite_id="suite-20261128-014301-3f2a")
    tracker.log(study, measurement("a"))
    tracker.finish_study(study, "finished")
    assert newest_study(tracking_uri=uri) == "suite-20261128-014301-3f2a"


@pytest.mark.parametrize("unset", ["", "#", "#a", "study:", "study:#a", "latest#", "study:x#"])
@pytest.mark.usefixtures("studies")
def test_an_unset_variable_selects_neither_the_newest_study_nor_all(uri, unset):
    for use in (
        lambda: select(unset, tracking_uri=uri),
        lambda: runs(study=unset, tracking_uri=uri),
        lambda: single_run_id(unset, uri),
        lambda: llmtrack.compare("latest", unset, tracking_uri=uri),
    ):
        with pytest.raises(UsageError, match=r"names no (run or study|scenario after #): use for example latest"):
            use()
    for arguments in (["alias", "production", unset], ["report", unset], ["runs", "--study", unset]):
        done = CliRunner().invoke(main, [*arguments, "--tracking-uri", uri])
        assert (done.exit_code, done.stderr.count("\n"), "production" in done.stdout) == (2, 1, False)
