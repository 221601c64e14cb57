"""Studies and suites on a scripted engine and a real store: what is tracked, and how they end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from mlflow import MlflowClient

from experiments import batching, perplexity, precision, prompt_length
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.errors import UsageError
from llmtrack.experiment import Experiment
from llmtrack.measure.statistics import disturbed
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.settings import Settings
from llmtrack.run.study.study import run_study
from llmtrack.run.suite import run_suite
from llmtrack.spec.options import config_from
from llmtrack.tracking.read.query import runs, studies
from llmtrack.worker import generate
from tests.run.scenarios import generating

pytestmark = pytest.mark.usefixtures("_known_ceilings")

SETTINGS = Settings(
    model="synthetic:tiny", device="cpu", max_new_tokens=5, min_repeats=2, min_seconds=0.0, max_seconds=0.11
)


def scripted(*scripts, context_length=None) -> InlineExecutor:
    """An engine whose calls take 30 ms + 4 x 5 ms, so 100 tokens/s, unless another script is given."""
    clock = FakeClock()
    scripts = scripts or (Script(0.030, 0.005),)
    return InlineExecutor(lambda v: ScriptedEngine(clock, *scripts, context_length=context_length), clock)


def lengths(*values: int) -> Experiment:
    return prompt_length.build(config_from(prompt_length.Config, SETTINGS, lengths=values))


def study(tracker, console, experiment, executor=None):
    return run_study(experiment, tracker=tracker, executor=executor or scripted(), console=console)


def artifacts(uri, run_id):
    client = MlflowClient(tracking_uri=uri)
    names, folders = [], [""]
    while folders:
        for item in client.list_artifacts(run_id, folders.pop() or None):
            (folders if item.is_dir else names).append(item.path)
    return sorted(names)


def text(uri, run_id, name, folder):
    return Path(MlflowClient(tracking_uri=uri).download_artifacts(run_id, name, str(folder))).read_text()


@pytest.mark.slow(2)
def test_a_study_that_works(tracker, uri, console, tmp_path):
    result = study(tracker, console, lengths(4, 8))
    assert (result.measured, result.failed, result.exit_code) == (2, 0, 0)
    tracked = runs(study=result.study.study_id, tracking_uri=uri)
    assert list(tracked["status"]) == ["FINISHED", "FINISHED"]
    assert set(tracked["scenario"]) == {"prompt_4", "prompt_8"}
    assert set(tracked["experiment"]) == {"prompt_length"}
    assert list(tracked["tokens_per_sec"]) == pytest.approx([100, 100])
    (own,) = studies(tracking_uri=uri).to_dict("records")
    assert (own["run_id"], own["status"], own["outcome"]) == (result.study.run_id, "FINISHED", "finished")
    assert artifacts(uri, own["run_id"]) == [
        "environment.json",
        "plots/latency.png",
        "plots/tokens_per_sec.png",
        "reading.md",
        "report.html",
        "table.csv",
        "table.md",
        "table.png",
    ]
    note = MlflowClient(tracking_uri=uri).get_run(own["run_id"]).data.tags["mlflow.note.content"]
    assert note.splitlines()[0] == f"**{result.reading[0]}**", "three lines are shown: the answer is the first"
    assert note.splitlines()[2] == "*What does a longer prompt cost?*"
    for run_id, name in zip(tracked["run_id"], tracked["scenario"], strict=True):
        link = f"#/experiments/{result.study.experiment_id}/runs/{run_id}?workflowType=machine_learning"
        assert f"[{name}]({link})" in note
    table = text(uri, own["run_id"], "table.md", tmp_path)
    assert table.index("prompt_4") < table.index("prompt_8")
    printed = console.file.getvalue()
    assert "prompt_4: 0.050 s, 100.00 tokens/s, 10.00 ms/token, TTFT 30.0 ms (median of 2)" in printed
    for line in result.reading:
        assert line in printed
        assert line in note
        assert line in text(uri, own["run_id"], "reading.md", tmp_path)


@pytest.mark.slow(2)
def test_a_scenario_that_fails_fails_the_study_and_not_the_others(tracker, uri, console):
    result = study(tracker, console, lengths(4, 100), scripted(context_length=64))
    assert (result.measured, result.failed, result.exit_code) == (1, 1, 1)
    tracked = runs(study=result.study.study_id, tracking_uri=uri).set_index("scenario")
    assert dict(tracked["status"]) == {"prompt_4": "FINISHED", "prompt_100": "FAILED"}
    assert tracked.loc["prompt_100", "failure"] == "too_long"
    (own,) = studies(tracking_uri=uri).to_dict("records")
    assert (own["status"], own["outcome"]) == ("FAILED", "failed")
    assert "table.csv" in artifacts(uri, own["run_id"])
    assert "prompt_100: FAILED (too_long): a prompt of 100 tokens" in console.file.getvalue()


@pytest.mark.slow(2)
def test_a_study_in_which_everything_fails_still_reports(tracker, uri, console):
    for experiment in (
        lengths(100),
        precision.build(config_from(precision.Config, SETTINGS)),
        perplexity.build(config_from(perplexity.Config, SETTINGS)),
    ):
        error = Script(0, 0, error=RuntimeError("no"))
        executor = scripted(error, context_length=16)
        result = study(tracker, console, experiment, executor)
        assert (result.measured, result.exit_code) == (0, 1), experiment.name
        assert "table.md" in artifacts(uri, result.study.run_id)
        assert result.reading


@pytest.mark.slow(2)
def test_a_precision_that_is_forced_is_tracked_as_the_same(tracker, uri, console):
    result = study(
        tracker, console, precision.build(config_from(precision.Config, SETTINGS, dtypes=("float32", "float16")))
    )
    assert (result.measured, result.failed) == (1, 0)
    tracked = runs(study=result.study.study_id, tracking_uri=uri).set_index("scenario")
    assert tracked.loc["float16", "same_as"] == "float32"
    assert tracked.loc["float16", "dtype"] == "float32 (forced on CPU)"
    assert tracked.loc["float16", "outcome"] == "same_as"
    assert "float16: not measured again, same as float32: float32 (forced on CPU)" in console.file.getvalue()
    assert not any("not measured" in line for line in result.reading), "the table's note says it"


@pytest.mark.slow(1)
def test_a_replaced_run_is_kept_but_not_counted(tracker, uri, console, monkeypatch):
    """The baseline is disturbed and remeasured: only one of its runs is listed and compared."""
    monkeypatch.setattr(generate, "disturbed", disturbed)
    steps = (Script(0.03, 0.005), Script(0.01, 0.005), Script(0.05, 0.005), Script(0.03, 0.005))
    result = study(tracker, console, lengths(4), scripted(*steps))
    assert "disturbed, will be remeasured" in console.file.getvalue()
    (run,) = runs(tracking_uri=uri).to_dict("records")
    assert (run["baseline"], run["tokens_per_sec"]) == (True, pytest.approx(100))
    assert len(result.tracked) == 1
    everything = runs(kind=None, tracking_uri=uri)
    assert sorted(everything["kind"]) == ["scenario", "set_aside", "study"]
    (aside,) = runs(kind="set_aside", tracking_uri=uri).to_dict("records")
    assert "disturbed: measured once more" in aside["warnings"]
    assert runs(study=result.study.study_id, tracking_uri=uri)["run_id"].tolist() == [run["run_id"]]


class Interrupted(InlineExecutor):
    """Measures the given number of groups (one), and is interrupted in the next."""

    def __init__(self, error, measured=1):
        clock = FakeClock()
        super().__init__(lambda v: ScriptedEngine(clock, Script(0.03, 0.005)), clock)
        self.error, self.measured, self.groups, self.closed = error, measured, 0, False

    def run(self, scenarios, emit):
        self.groups += 1
        if self.groups > self.measured:
            raise self.error
        super().run(scenarios, emit)

    def close(self):
        self.closed = True
        super().close()


@pytest.mark.slow(1)
@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), "KILLED"), (RuntimeError("a bug"), "FAILED")])
def test_an_interruption_ends_the_runs_and_keeps_the_results(tracker, uri, console, error, status):
    executor = Interrupted(error)
    with pytest.raises(type(error)):
        study(
            tracker,
            console,
            precision.build(config_from(precision.Config, SETTINGS, dtypes=("float32", "bfloat16"))),
            executor,
        )
    assert executor.closed
    assert runs(kind=None, status="RUNNING", tracking_uri=uri).empty
    (own,) = studies(tracking_uri=uri).to_dict("records")
    assert (own["status"], own["outcome"]) == (status, status.lower())
    assert type(error).__name__ in own["reason"]
    assert list(runs(tracking_uri=uri)["scenario"]) == ["float32"]


def test_a_rejected_plan_opens_no_study(tracker, uri, console):
    twice = replace(lengths(4), scenarios=(generating("a"), generating("a")))
    with pytest.raises(UsageError):
        study(tracker, console, twice)
    assert studies(tracking_uri=uri).empty


@pytest.mark.slow(1)
def test_brackets_are_printed_literally(tracker, console):
    experiment = replace(lengths(4, 8), question="What of [bold]this[/bold] and [/]?")
    study(tracker, console, experiment)
    assert "What of [bold]this[/bold] and [/]?" in console.file.getvalue()


def suite(tracker, console, *experiments, executor=None, quick=False):
    return run_suite(
        experiments,
        question="All?",
        settings={"quick": quick},
        tracker=tracker,
        executor=executor or scripted(),
        console=console,
    )


@pytest.mark.slow(4)
def test_a_suite_ties_its_studies_together(tracker, uri, console):
    result = suite(tracker, console, lengths(4, 8), perplexity.build(config_from(perplexity.Config, SETTINGS)))
    assert result.exit_code == 0
    tracked = studies(tracking_uri=uri).set_index("experiment")
    assert set(tracked.index) == {"suite", "prompt_length", "perplexity"}
    suite_id = result.study.study_id
    assert dict(tracked["suite_id"].fillna("none")) == {
        "suite": "none",
        "prompt_length": suite_id,
        "perplexity": suite_id,
    }
    assert set(runs(tracking_uri=uri)["suite_id"]) == {suite_id}
    assert len(runs(tracking_uri=uri)) == 3
    assert {"table.csv", "table.md", "table.png", "reading.md"} <= set(artifacts(uri, tracked.loc["suite", "run_id"]))
    note = MlflowClient(tracking_uri=uri).get_run(result.study.run_id).data.tags["mlflow.note.content"]
    for name in ("prompt_4", "prompt_8", "perplexity_float32"):
        assert f"[{name}](#/experiments/" in note


def broken_reading(runs):
    raise ZeroDivisionError("a bug in a reading")


@pytest.mark.slow(2)
def test_a_broken_experiment_does_not_stop_the_others(tracker, uri, console):
    broken = replace(lengths(4), name="broken", scenarios=(generating("a"), generating("a")))
    result = suite(tracker, console, broken, perplexity.build(config_from(perplexity.Config, SETTINGS)))
    assert result.exit_code == 1
    assert result.results["broken"] is None
    assert result.results["perplexity"].exit_code == 0
    tracked = studies(tracking_uri=uri).set_index("experiment")
    assert tracked.loc["suite", "status"] == "FAILED"
    assert tracked.loc["perplexity", "status"] == "FINISHED"
    assert runs(kind=None, status="RUNNING", tracking_uri=uri).empty
    assert "broken could not be run" in console.file.getvalue()


@pytest.mark.slow(4)
def test_a_failing_report_in_a_suite_costs_no_measurement(tracker, uri, console):
    broken = replace(lengths(4), name="broken", reading=broken_reading)
    result = suite(tracker, console, broken, perplexity.build(config_from(perplexity.Config, SETTINGS)))
    assert result.exit_code == 1
    assert result.results["broken"].problems == (
        "reading: experiment broken cannot be used: reading raised ZeroDivisionError: a bug in a reading: fix or update its "
        "package",
    )
    assert dict(studies(tracking_uri=uri).set_index("experiment")["status"]) == {
        "suite": "FINISHED",
        "broken": "FINISHED",
        "perplexity": "FINISHED",
    }


@pytest.mark.slow(1)
def test_a_suite_without_a_finished_experiment_fails(tracker, uri, console):
    result = suite(tracker, console, lengths(4), executor=Interrupted(RuntimeError("broken"), measured=0))
    assert result.exit_code == 1
    own = studies(tracking_uri=uri).set_index("experiment")["status"]
    assert dict(own) == {"suite": "FAILED", "prompt_length": "FAILED"}


def test_a_suite_without_a_plannable_experiment_opens_no_run(tracker, uri, console):
    with pytest.raises(UsageError, match="a is used twice"):
        suite(tracker, console, replace(lengths(4), scenarios=(generating("a"), generating("a"))))
    assert studies(tracking_uri=uri).empty


@pytest.mark.slow(1)
def test_an_interrupted_suite_is_killed_with_its_study(tracker, uri, console):
    with pytest.raises(KeyboardInterrupt):
        suite(
            tracker,
            console,
            precision.build(config_from(precision.Config, SETTINGS, dtypes=("float32", "bfloat16"))),
            executor=Interrupted(KeyboardInterrupt()),
        )
    assert dict(studies(tracking_uri=uri).set_index("experiment")["status"]) == {
        "suite": "KILLED",
        "precision": "KILLED",
    }


class SmallMemory(ScriptedEngine):
    """Has memory for two rows."""

    def generate(self, request, on_step):
        if len(request.prompt_ids) > 2:
            raise RuntimeError("CUDA out of memory. Tried to allocate 9.00 GiB")
        return super().generate(request, on_step)


@pytest.mark.slow(1)
@pytest.mark.usefixtures("_unreported")
def test_out_of_memory_ends_its_batch_size_and_not_the_experiment(tracker, uri, console):
    clock = FakeClock()
    executor = InlineExecutor(lambda v: SmallMemory(clock, Script(0.030, 0.005)), clock)
    result = study(tracker, console, batching.build(config_from(batching.Config, SETTINGS, sizes=(1, 2, 4))), executor)
    assert (result.measured, result.failed, result.exit_code) == (2, 1, 1)
    tracked = runs(study=result.study.study_id, tracking_uri=uri).set_index("scenario")
    assert tracked["status"].to_dict() == {"batch_1": "FINISHED", "batch_2": "FINISHED", "batch_4": "FAILED"}
    assert tracked.loc["batch_4", "failure"] == "out_of_memory"
    assert "Tried to allocate 9.00 GiB" in tracked.loc["batch_4", "reason"]
    # Four prompts of 30 ms and 4 x 5 ms each: one at a time 200 ms, two at a time 100 ms.
    assert tracked["total_latency_s"].dropna().to_dict() == pytest.approx({"batch_1": 0.2, "batch_2": 0.1})
