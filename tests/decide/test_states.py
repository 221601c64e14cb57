"""Commands and reports handle runs in every state: in progress, killed, failed, and without our tags."""

from __future__ import annotations

import itertools

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient
from mlflow.entities import Param

from experiments import baseline as baseline_experiment
from experiments import (
    batching,
    cache_padding,
    edge_prompts,
    perplexity,
    precision,
    prompt_length,
    quantization,
    training,
)
from llmtrack.cli import main
from llmtrack.report.page.content import conditions, rows_of
from llmtrack.report.sentences.takeaways import takeaways
from tests.report.artificial_runs import make_runs, replace_values, run

pytestmark = pytest.mark.usefixtures("_clean_environment")


STATES = ["RUNNING", "KILLED", "SCHEDULED", "FAILED"]


@pytest.fixture
def store(measured, uri, monkeypatch):
    """Two finished runs, and one in each other state with our tags and without."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (study,) = measured((1, 1.0))
    client = MlflowClient(uri)
    ids = {}
    for state, bare in itertools.product(STATES, (False, True)):
        tags = {"llmtrack.kind": "scenario", "llmtrack.study_id": study.study_id}
        if not bare:
            tags |= {"llmtrack.experiment": "prompt_length", "llmtrack.baseline": "false"}
        run_id = client.create_run(study.experiment_id, tags=tags, run_name=state).info.run_id
        if not bare:
            ids[state] = run_id
            client.log_batch(run_id, params=[Param("scenario", f"on_{state}"), Param("model", "m")])
        client.update_run(run_id, status=state)
    return ids


WORDS = {
    "RUNNING": "is still running",
    "KILLED": "was killed",
    "SCHEDULED": "has not begun",
    "FAILED": "failed: no reason was tracked",
}


COMMANDS = [
    (["runs"], "on_RUNNING"),
    (["runs", "--format", "csv"], "SCHEDULED"),
    (["compare", "--all", "--sort", "-tokens_per_sec"], "on_KILLED was killed"),
    (["compare", "--format", "json"], '"against baseline": "SCHEDULED"'),
    (["compare", "--baseline", "latest#prompt_8", "--candidate", "latest"], "is still running"),
    (["pareto", "--quality", "peak_memory_mib"], "1 run of another workload is left out"),
    (["recommend"], "Run prompt_4"),
    (["gate", "--baseline", "latest#prompt_8", "--candidate", "latest", "--fail-if", "model_size_mib > 1%"], "kept"),
]  # fmt: skip


@pytest.mark.slow(5)
def test_every_command_handles_runs_in_every_state(store):
    for command, part in COMMANDS:
        result = CliRunner().invoke(main, command)
        assert result.exception is None or isinstance(result.exception, SystemExit), (command, result.output)
        assert part in result.output, (command, result.output)
    listing = CliRunner().invoke(main, ["compare", "--all"]).output
    for state, words in WORDS.items():
        assert f"on_{state} {words}" in listing
    assert CliRunner().invoke(main, ["alias", "odd", store["RUNNING"]]).exit_code == 0
    of_alias = CliRunner().invoke(main, ["compare", "--baseline", "alias:odd", "--candidate", "latest"])
    assert of_alias.exit_code == 2
    assert "the baseline has no finished run: on_RUNNING is still running" in of_alias.stderr


READINGS = [
    baseline_experiment, batching, cache_padding, edge_prompts, perplexity, precision, prompt_length, quantization, training
]  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_readings_and_pages_handle_runs_in_every_state(state):
    runs = make_runs(run("a", status=state, outcome=None, baseline=None, use_cache=None), run("b", status=state))
    for experiment in READINGS:
        lines = experiment.reading(runs)
        assert any("2 of 2 scenarios" in line for line in lines) or "Nothing" in lines[0]
    assert takeaways(runs) == runs.unfinished(experiments=True)
    rows_of(runs)
    conditions(runs)


@pytest.mark.parametrize("name", ["outcome", "baseline", "status", "warnings", "use_cache", "workload_id"])
def test_values_may_be_missing_in_all_runs(name):
    runs = make_runs(run("a", baseline=True, total_latency_s=1.0, tokens_per_sec=32.0), run("b"))
    runs = replace_values(runs, **{name: None})
    rows_of(runs)
    takeaways(runs)
    for experiment in (batching, quantization):
        experiment.reading(runs)


def test_missing_values_agree_with_each_other_only():
    first, second = make_runs(run("a", outcome=None), run("b", outcome=None))
    assert first.agrees(second, "outcome")
    assert not first.agrees(make_runs(run("c"))[0], "outcome")
    assert not first.has("outcome")
    assert first.text("outcome") == ""
    assert first.number("perplexity") is None
    assert first.get("no such value") is None


def test_unfinished_runs_are_listed_by_state():
    runs = make_runs(
        run("a"), run("b", status="FAILED"), run("c", status="KILLED"), run("d", status="RUNNING"),
        run("e", status="RUNNING"),
    )  # fmt: skip
    assert runs.unfinished() == [
        "1 of 5 scenarios failed: b.",
        "1 of 5 scenarios was killed: c.",
        "2 of 5 scenarios are still running: d, e.",
    ]
