"""A recommendation gives its reason, what was ruled out and why, or that nothing fits."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from llmtrack.cli import main
from llmtrack.decide.recommend import Limits, parse_percent, parse_size, recommend
from llmtrack.errors import UsageError
from llmtrack.tracked.runs import Runs
from llmtrack.tracking.read.query import newest_study
from tests.report.artificial_runs import interval, make_runs, repeated, run
from tests.report.artificial_runs import timed as timed_once

pytestmark = pytest.mark.usefixtures("_clean_environment")


def timed(name, speed, n=8, share=0.02, perplexity=None, **values):
    return repeated(name, speed, perplexity, n, share, **values)


RUNS = make_runs(
    timed("fp32", 10.0, perplexity=20.0, peak_memory_mib=2000.0, baseline=True),
    timed("int8", 25.0, perplexity=20.1, peak_memory_mib=600.0),
    timed("int8_slow", 20.0, perplexity=20.1, peak_memory_mib=500.0),
    timed("int4", 40.0, perplexity=24.0, peak_memory_mib=400.0),
    timed("unscored", 90.0, peak_memory_mib=400.0),
    run("int2", status="FAILED", outcome="failed", reason="no kernel"),
)


def test_the_fastest_within_the_limits_is_recommended():
    answer = recommend(RUNS, Limits(0.01, 2048))
    assert (answer.scenario, answer.run_id) == ("int8", "id-int8")
    assert answer.sentence == (
        "Run int8: the fastest of 5 scenarios that keeps to the limits for packaged:smollm2 on cpu (precision-1), "
        "with 25 tokens/s, 2.5x (2.4 to 2.6) that of fp32, perplexity 20.100 (+0.5 %) and 600 MiB peak memory."
    )
    assert dict(answer.ruled_out) == {
        "int4": "perplexity +20 % is over +1 %",
        "unscored": "no perplexity was scored",
        "int2": "failed: no kernel",
        "int8_slow": "20 tokens/s, 0.80x (0.77 to 0.83)",
        "fp32": "10 tokens/s, 0.40x (0.38 to 0.42)",
    }


@pytest.mark.slow(1)
def test_memory_is_limited_and_without_limits_the_fastest_is_best():
    assert recommend(RUNS, Limits(0.01, 550)).scenario == "int8_slow"
    best = recommend(RUNS, Limits())
    assert best.scenario == "unscored"
    assert "unknown perplexity" in best.sentence
    smallest = recommend(RUNS, Limits(0.01), "peak_memory_mib")
    assert smallest.scenario == "int8_slow"


@pytest.mark.slow(1)
def test_if_nothing_fits_the_nearest_is_named():
    answer = recommend(RUNS, Limits(0.001, 100))
    assert (answer.scenario, answer.run_id) == (None, None)
    assert answer.sentence == (
        "Nothing fits: none of 5 scenarios is within perplexity +0.1 % and 100 MiB of memory; the nearest is fp32 for "
        "packaged:smollm2 on cpu (precision-1) (peak memory 2,000 MiB is over 100 MiB)."
    )
    assert len(answer.ruled_out) == 6


def test_a_scenario_not_significantly_slower_is_named():
    runs = make_runs(
        timed("a", 10.0, share=0.05),
        timed("b", 10.2, share=0.04),
    )
    answer = recommend(runs, Limits())
    assert answer.scenario == "b"
    assert dict(answer.ruled_out) == {"a": "10 tokens/s, no significant difference: 0.98x (0.90 to 1.07)"}


BUSY = "the machine was busy: other programs took 82% of its CPU time: close them and measure again"


@pytest.mark.slow(1)
def test_a_single_baseline_repeat_is_inconclusive_with_the_command_to_measure_more():
    n = 1
    base = timed("torch-float32", 1.3, n, 0.9, perplexity=20.0, baseline=True, warnings=f"noisy: 134%\n{BUSY}")
    runs = make_runs(base, timed("torch-bfloat16", 18.4, perplexity=20.1, experiment="quantization", model="m"))
    answer = recommend(runs, Limits(0.01))
    assert (answer.scenario, answer.run_id) == (None, None)
    assert "14.1" not in answer.sentence
    assert f"(too few repeats, {n} against 8); to settle it run: llmtrack run" in answer.sentence
    assert answer.measure == "llmtrack run quantization -P model=m -P min_repeats=4"
    assert answer.sentence.endswith(f"to settle it run: {answer.measure}")
    assert {f"read with care: torch-float32: {line}" for line in ("noisy: 134%", BUSY)} <= set(answer.notes)


@pytest.mark.slow(1)
def test_an_inconclusive_rival_leaves_the_choice_open():
    runs = make_runs(timed("a", 10.0, baseline=True, perplexity=20.0), timed("b", 20.0), timed("c", 19.0, n=1))
    answer = recommend(runs, Limits())
    assert answer.scenario is None
    assert "min_repeats=" in answer.measure


@pytest.mark.parametrize("values", [{}, {"tokens_per_sec": 0.0}])
def test_single_values_recommend_nothing(values):
    runs = make_runs(timed_once("a", 10.0) | {"baseline": True, **values}, timed_once("b", 20.0, quantization="b"))
    assert recommend(runs, Limits()).scenario is None


@pytest.mark.slow(2)
@pytest.mark.parametrize("objective", ["tokens_per_sec", "load_time_s", "time_to_first_token_ms"])
@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_single_values_and_few_repeats_have_no_winner(objective, n):
    def measured(name, value, **values):
        row = timed_once(name, 10.0, quantization=name, perplexity=20.0, **values) | {objective: value}
        return row | (interval(objective, value, value, value, n) if n else {})

    runs = make_runs(measured("a", 10.0, baseline=True), measured("b", 20.0), measured("c", 400.0))
    for limits in (Limits(), Limits(0.01)):
        assert recommend(runs, limits, objective).scenario is None
        # With a single scenario there is nothing to win; its unknown variation is noted.
    (only,) = [recommend(make_runs(measured("a", 10.0)), Limits(), objective)]
    assert bool(only.notes) == (n < 2)


@pytest.mark.slow(1)
def test_the_nearest_violates_the_fewest_limits_by_the_least():
    runs = make_runs(
        timed("two", 30.0, perplexity=25.0, peak_memory_mib=1100.0),
        timed("one", 20.0, perplexity=20.0, peak_memory_mib=1900.0, baseline=True),
        timed("far", 10.0, perplexity=20.1, peak_memory_mib=2000000.0),
        timed("unscored", 90.0, peak_memory_mib=1.0),
    )
    assert "the nearest is one for packaged:smollm2" in recommend(runs, Limits(0.01, 1000)).sentence
    unscored = recommend(make_runs(timed("unscored", 90.0)), Limits(0.01))
    assert "which is nearest is unknown (no perplexity was scored)" in unscored.sentence


def test_a_scored_baseline_is_the_reference_even_if_not_timed():
    base = {**timed("ppl", 1.0, perplexity=20.0, baseline=True), "tokens_per_sec": None}
    runs = make_runs(base, timed("a", 10.0, perplexity=20.3), timed("b", 20.0, perplexity=19.0))
    assert dict(recommend(runs, Limits(0.01)).ruled_out)["a"] == "perplexity +1.5 % is over +1 %"


def test_the_reference_can_be_named():
    assert recommend(RUNS, Limits(0.2), baseline="int8").scenario == "int4"
    with pytest.raises(UsageError, match="no timed scenario 'nope': use one of fp32"):
        recommend(RUNS, Limits(0.2), baseline="nope")
    with pytest.raises(UsageError, match="no better direction"):
        recommend(RUNS, Limits(), "tokens_scored")


@pytest.mark.parametrize(
    ("text", "mib"),
    [("2GiB", 2048), ("500 MB", 500e6 / 2**20), ("1.5g", 1.5e9 / 2**20), ("64MiB", 64), ("2,048 MiB", 2048)],
)
def test_sizes(text, mib):
    assert parse_size(text) == pytest.approx(mib)


@pytest.mark.parametrize("text", ["2048", "two", "-1GiB", ""])
def test_invalid_sizes(text):
    with pytest.raises(UsageError, match="2GiB"):
        parse_size(text)


def test_percentages():
    assert parse_percent("1%") == parse_percent(" +1 % ") == 0.01
    with pytest.raises(UsageError, match="use 1%"):
        parse_percent("0.01")


@pytest.mark.slow(1)
@pytest.mark.usefixtures("tracked")
def test_the_command():
    arguments = ["recommend", "--max-perplexity-increase", "1%", "--max-memory", "2GiB"]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("Run int8: the fastest of 3 scenarios")
    assert "int4  perplexity +30 % is over +1 %" in result.stdout
    (latest,) = result.stderr.splitlines()
    assert latest == f"latest: {newest_study()} (--study chooses another)"
    as_json = CliRunner().invoke(main, [*arguments, "--format", "json"])
    assert (json.loads(as_json.stdout)["scenario"], as_json.stderr) == ("int8", result.stderr)
    nothing = CliRunner().invoke(main, ["recommend", "--max-memory", "1MiB"])
    assert nothing.exit_code == 1
    assert nothing.stdout.startswith("Nothing fits")
    assert CliRunner().invoke(main, ["recommend", "--max-memory", "1"]).exit_code == 2


@pytest.mark.slow(1)
@pytest.mark.usefixtures("tracked")
def test_the_command_ends_with_the_lines_that_run_the_answer(monkeypatch):
    # The lines themselves are run in tests/run/test_reproduce.py.
    monkeypatch.setattr("llmtrack.run.reproduce.reproduce_command", lambda run: [f"llmtrack generate {run.scenario}"])
    result = CliRunner().invoke(main, ["recommend", "--search", "fp32"]).output
    assert result.endswith("To run it that way:\n  llmtrack generate fp32\nMeasured with weights: abc.\n")
    as_json = CliRunner().invoke(main, ["recommend", "--search", "fp32", "--format", "json"]).output
    assert json.loads(as_json)["scenario"] == "fp32"


@pytest.mark.slow(2)
@pytest.mark.usefixtures("tracked")
def test_the_command_writes_a_comment_and_a_slide(monkeypatch, tmp_path):
    monkeypatch.setattr(
        "llmtrack.run.reproduce.reproduce_command", lambda run: ["llmtrack generate 'it is'", "import llmtrack"]
    )
    arguments = ["recommend", "--max-perplexity-increase", "1%", "--format", "markdown"]
    target = tmp_path / "answer.png"
    result = CliRunner().invoke(main, [*arguments, "--picture", str(target)], catch_exceptions=False)
    assert result.exit_code == 0
    answer, command, measured, table, *_ = result.stdout.split("\n\n")
    assert answer.startswith("**Run int8: the fastest of 3 scenarios")
    assert answer.endswith("**")
    assert command == "Run it: `llmtrack generate 'it is'`"
    assert measured == "Measured with weights: abc."
    assert table.splitlines()[:2] == ["| not | why |", "| --- | --- |"]
    assert "| int4 | perplexity +30 % is over +1 % |" in table
    assert f"Written: {target}" in result.stderr
    assert target.read_bytes().startswith(b"\x89PNG")


@pytest.mark.usefixtures("tracked")
def test_a_study_without_the_objective_names_one_that_has_it():
    result = CliRunner().invoke(main, ["recommend", "--objective", "train_tokens_per_sec"])
    assert result.exit_code == 2
    assert result.stderr.startswith("error: no finished run of ")
    assert result.stderr.endswith(
        "has train_tokens_per_sec: choose a study that measured it, such as --study latest:precision, or measure one: llmtrack run precision\n"
    )


def test_the_sentence_marks_a_disturbed_run():
    common = {"workload_id": "w", "environment_id": "e", "perplexity": 20.0}
    runs = make_runs(
        run("fp32", baseline=True, **interval("tokens_per_sec", 10.0, 9.8, 10.2, 8), **common),
        run("int8", dtype="int8", warnings=BUSY, **interval("tokens_per_sec", 25.0, 24.5, 25.5, 8), **common),
    )
    words = recommend(runs, Limits()).sentence
    assert words.startswith("Run int8 (in doubt: others took 82% of the CPU): the fastest of 2 scenarios")


def of_tune(name, speed, ratio, **values):
    """A candidate that `tune` scored in part, relative to the baseline."""
    return timed(name, speed, reference_perplexity_ratio=ratio, **values)


def test_a_perplexity_that_is_known_relative_to_the_baseline_counts():
    base = of_tune("base", 10.0, 1.0, baseline=True, perplexity=20.0)
    lossy = of_tune("lossy", 30.0, 1.289, quantization="int4", peak_memory_mib=900.0)
    runs = make_runs(base, lossy, of_tune("good", 20.0, 1.004, peak_memory_mib=400.0))
    answer = recommend(runs, Limits(0.01))
    assert (answer.scenario, dict(answer.ruled_out)["lossy"]) == ("good", "perplexity +28.9 % is over +1 %")
    assert "perplexity +0.4 %" in answer.sentence
    assert "perplexity +28.9 %" in recommend(runs, Limits()).sentence, "the fastest, with what it costs"
    elsewhere = of_tune("elsewhere", 40.0, 0.9, study_id="tune-2")
    unrelated = recommend(Runs([*runs, *make_runs(elsewhere)]), Limits(0.01))
    assert dict(unrelated.ruled_out)["elsewhere"] == "no perplexity was scored", "that study's reference is another"
    # 1.004 / 1.289 of another baseline.
    assert "perplexity -22.1 %" in recommend(runs, Limits(memory_mib=500.0), baseline="lossy").sentence


def test_an_unscored_baseline_is_named_and_scored_in_its_recipe():
    lossy = timed("lossy", 30.0, backend="genai", quantization="int4")
    runs = make_runs(timed("base", 10.0, perplexity=20.0), lossy)
    answer = recommend(runs, Limits(0.01), baseline="lossy")
    assert dict(answer.ruled_out)["base"] == "of the baseline lossy no perplexity was scored"
    assert "llmtrack run quantization -P model=packaged:smollm2 -P recipes=genai/int4, then" in answer.sentence
