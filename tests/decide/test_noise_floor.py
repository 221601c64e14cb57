"""Repeated scenarios of a suite give its noise floor, below which no difference is claimed."""

from __future__ import annotations

import json

import pytest

from llmtrack.decide import noise_floor, verdicts
from llmtrack.decide.compare import compare_pairs
from llmtrack.decide.gate import gate
from llmtrack.decide.noise_floor import (
    family_size,
    noise_floor_lines,
    noise_floor_of,
    noise_floors,
    with_context,
    with_floors,
)
from llmtrack.decide.recommend import Limits, recommend
from llmtrack.decide.selection import pair_runs
from llmtrack.decide.verdicts import difference_between, with_samples_of_pairs
from llmtrack.report.sentences.takeaways import takeaways
from llmtrack.report.show import Layout, show
from llmtrack.report.tables.differences import differences_table
from llmtrack.report.tables.summary import summary_table
from llmtrack.spec.outcome import REPLACED
from tests.report.artificial_runs import interval, make_runs, run

SUITE = {"suite_id": "suite-1", "workload_id": "w", "environment_id": "e", "output_digest": "d"}


def timed(scenario, value, experiment="precision", **values):
    place = {"experiment": experiment, "study_id": experiment, "run_id": f"{experiment}-{scenario}"}
    spread = interval("tokens_per_sec", value, value * 0.99, value * 1.01)
    return run(scenario, **spread, **SUITE, **place) | values


EQUAL = (
    timed("base", 14.4, "baseline", baseline=True),
    timed("float32", 16.7, baseline=True),
    timed("base_too", 15.5, "batching", baseline=True),
)


def difference_in(runs, baseline, candidate):
    by_name = {run.scenario: run for run in with_floors(runs)}
    return difference_between(by_name[baseline], by_name[candidate], "tokens_per_sec")


def test_the_floor_of_a_suite_is_the_largest_difference_of_equal_settings():
    (floors,) = noise_floors(make_runs(*EQUAL)).values()
    floor = floors["tokens_per_sec"]
    assert floor.share == pytest.approx(16.7 / 14.4 - 1)
    assert floor.names == ("baseline/base", "precision/float32")
    assert noise_floor_lines(with_floors(make_runs(*EQUAL)), "tokens_per_sec") == [
        "Equal settings differed by 16% in this suite (baseline/base 14.4, precision/float32 16.7 tokens/s): differences "
        "below that are not shown as wins."
    ]


def test_only_a_difference_beyond_the_floor_is_significant():
    runs = make_runs(*EQUAL, timed("bf16", 18.5, dtype="bfloat16"), timed("int8", 25.0, quantization="int8"))
    assert difference_in(runs, "float32", "bf16").verdict == "same"
    assert "no more than equal settings differed here, 16%: 1.11x" in difference_in(runs, "float32", "bf16").words
    assert difference_in(runs, "float32", "int8").verdict == "better"


@pytest.mark.parametrize(
    "changed",
    [
        {"suite_id": "suite-2"},
        {"environment_id": "elsewhere"},
        {"workload_id": "other work"},
        {"batch_size": 8},
        {"status": "FAILED"},
    ],
)
def test_only_equal_settings_of_one_suite_and_environment_give_a_floor(changed):
    runs = make_runs(EQUAL[0], EQUAL[1] | changed)
    assert not any(noise_floors(runs).values())
    assert noise_floor_lines(with_floors(runs), "tokens_per_sec") == []


def test_within_a_study_names_distinguish_settings():
    assert not any(noise_floors(make_runs(timed("a", 10.0), timed("b", 20.0))).values())
    repeated = make_runs(timed("a", 10.0), timed("a", 11.0) | {"run_id": "again"})
    (floors,) = noise_floors(repeated).values()
    assert floors["tokens_per_sec"].share == pytest.approx(0.1)


def test_without_a_second_measurement_there_is_no_floor():
    rows = with_floors(make_runs(timed("a", 10.0)))
    assert noise_floor_of("tokens_per_sec", rows[0]) == 0.0
    assert noise_floor_of("tokens_per_sec", make_runs(timed("a", 10.0))[0]) == 0.0


def test_takeaways_show_no_win_below_the_floor_and_name_it():
    lines = takeaways(make_runs(*EQUAL, timed("bf16", 18.5, dtype="bfloat16")))
    assert lines[0] == "No scenario was significantly faster than the baseline of its experiment."
    assert lines[1].startswith("Equal settings differed by 16% in this suite")


def test_a_recommendation_names_the_floor():
    answer = recommend(with_floors(make_runs(*EQUAL, timed("bf16", 18.5, dtype="bfloat16"))), Limits())
    assert any("Equal settings differed by 16%" in note for note in answer.notes)


@pytest.fixture
def suite(monkeypatch):
    """The runs of a suite, which are read back if some of them are compared."""
    runs = make_runs(*EQUAL, timed("bf16", 18.5, dtype="bfloat16"), timed("int8", 25.0, quantization="int8"))
    monkeypatch.setattr(noise_floor, "tracked_runs", lambda **filters: runs)
    monkeypatch.setattr(verdicts, "samples_by_run", lambda ids, uri, lenient: {})
    return runs


def test_a_comparison_of_two_runs_uses_the_floor_of_their_suite_and_names_it_once(suite, console):
    pairs, _ = pair_runs(suite[1:2], suite[3:])
    pairs = with_samples_of_pairs(pairs, None)
    result = compare_pairs(pairs, ["tokens_per_sec"])
    comparisons = result.comparisons
    assert [comparison.difference.verdict for comparison in comparisons] == ["same", "better"]
    assert comparisons[0].difference.words.startswith("no more than equal settings differed here, 16%: 1.11x")
    table = differences_table(result)
    for style in ("markdown", "html", "latex", "table"):
        show(console, "", table, Layout(style))
        text = " ".join(console.file.getvalue().split())
        assert text.count("Equal settings differed by 16") == 1, style
        console.file.truncate(0)


@pytest.mark.parametrize(
    ("times", "outcome", "why"),
    [
        (0.90, "inconclusive", "beyond the limit, but no more than equal settings differed here, 16%"),
        (0.70, "broken", "beyond the limit (p"),
        (1.01, "inconclusive", "nearer to it than equal settings differed here, 16%"),
        (1.30, "kept", "within the limit (p"),
    ],
)
def test_a_gate_is_inconclusive_within_the_floor(suite, monkeypatch, times, outcome, why):
    near = [0.99, 0.995, 0.998, 1.0, 1.001, 1.004, 1.006, 1.01]
    samples = {
        "precision-float32": {"tokens_per_sec": [16.7 * factor for factor in near]},
        "precision-bf16": {"tokens_per_sec": [16.7 * times * factor for factor in near]},
    }
    monkeypatch.setattr(verdicts, "samples_by_run", lambda ids, uri, lenient: samples)
    result = gate(suite[1:2], suite[3:4], ["tokens_per_sec < -5%"])
    (checked,) = result.checks
    assert checked.check.outcome == outcome
    assert why in checked.check.why
    assert [note for note in result.notes if note.startswith("Equal settings differed by 16% in this suite")]


@pytest.mark.slow(1)
def test_a_table_shows_no_change_below_the_floor_and_names_several_metrics_in_one_line():
    runs = with_floors(make_runs(*EQUAL, timed("bf16", 18.5, dtype="bfloat16")))
    assert "(no significant difference)" in summary_table(runs).rows[-1][-1]
    rows = [row | {"total_latency_s": row["tokens_per_sec"] / 4} for row in EQUAL]
    assert noise_floor_lines(with_floors(make_runs(*rows)), "tokens_per_sec", "total_latency_s") == [
        "Equal settings differed by 16% in tokens_per_sec, 16% in total_latency_s in this suite: differences below that "
        "are not shown as wins."
    ]


def test_floors_of_several_suites_are_named_by_the_suites_ids():
    second = [row | {"suite_id": "suite-2", "run_id": f"{row['run_id']}-2"} for row in EQUAL]
    lines = noise_floor_lines(with_floors(make_runs(*EQUAL, *second)), "tokens_per_sec")
    assert [line.partition(" in ")[2].partition(" (")[0] for line in lines] == [
        "suite suite-1",
        "suite suite-2",
    ]


@pytest.mark.parametrize("study", ["precision", "baseline"])
def test_a_replaced_disturbed_run_gives_no_floor(study):
    """Neither beside its successor nor beside what another study of the suite measured."""
    first = timed("a", 1.3, study, warnings=f"noisy\n{REPLACED}, and the newer run counts")
    assert not any(noise_floors(make_runs(first, timed("a", 23.0) | {"run_id": "again"})).values())


def test_the_table_marks_disturbed_runs():
    noisy = {"warnings": "noisy: repeats vary by 30%"}
    runs = make_runs(timed("one", 10.0, baseline=True) | noisy, timed("two", 20.0, dtype="bfloat16") | noisy)
    changes = [row[-1] for row in summary_table(runs).rows]
    assert changes[0] == "baseline (in doubt: disturbed)"
    assert changes[1].endswith(" (in doubt: disturbed)")
    assert not any("disturbed" in row[-1] for row in summary_table(make_runs(*EQUAL)).rows)


def test_the_values_pooled_by_a_suite_give_a_floor():
    pooled = {"baseline/base": {"tokens_per_sec": 14.4}, "precision/float32": {"tokens_per_sec": 16.7}}
    (floors,) = noise_floors(make_runs(timed("float32", 15.5, pooled=json.dumps(pooled)))).values()
    assert floors["tokens_per_sec"].share == pytest.approx(16.7 / 14.4 - 1)
    assert floors["tokens_per_sec"].names == ("baseline/base", "precision/float32")


def test_the_family_of_a_comparison_is_its_study():
    names = ("a", "b", "c", "d")
    rows = [run(name, workload_id="w") for name in names] + [run("long", workload_id="x")]
    failed = run("e", workload_id="w", status="FAILED")
    changed = [run(name, workload_id="w", study_id="precision-2", run_id=f"2-{name}") for name in ("a", "b")]
    floors = with_context(make_runs(*rows, failed, *changed))
    a, b, *_, long, _, a2, b2 = floors
    assert family_size(a, b) == family_size(b, a) == 3
    assert family_size(a, long) == 4, "other work: one of all in the study"
    assert family_size(a2, b2) == 1
    assert family_size(a, a2) == 4, "each of the larger study with one of the other"
    assert family_size(*make_runs(*rows[:2])) == 1


def test_the_family_of_a_fresh_comparison_is_the_searchs_proofs():
    rows = [run(name, workload_id="w", race_proofs=2 if name in "ab" else None) for name in ("a", "b", "c", "d", "e")]
    a, b, c, *_ = with_context(make_runs(*rows))
    assert family_size(a, b) == family_size(b, a) == 2
    assert family_size(a, c) == 4, "a sample of the search is one of all that it tried"
    elsewhere = with_context(make_runs(*rows, run("z", workload_id="w", study_id="tune-2", run_id="z", race_proofs=1)))
    assert family_size(elsewhere[0], elsewhere[-1]) == 5
