"""Repeated scenarios of a suite give its noise floor, below which no difference is claimed."""

from __future__ import annotations

import json

import pytest

from llmtrack.decide import noise_floor, verdicts
from llmtrack.decide.compare import compare_pairs, with_samples_of_pairs
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
from llmtrack.decide.verdicts import differences_from
from llmtrack.report.comparison import differences_table
from llmtrack.report.sentences.takeaways import takeaways
from llmtrack.report.show import Layout, show
from llmtrack.report.tables.summary import summary_table
from llmtrack.spec.outcome import REPLACED
from tests.report.frames import interval, made, run

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


def told(runs, base, other):
    rows = {str(each.scenario): each for each in with_floors(runs)}
    (found,) = differences_from(rows[base], [rows[other]], "tokens_per_sec")
    return found


def test_equal_settings_of_several_studies_of_a_suite_differ_by_their_extremes():
    (known,) = noise_floors(made(*EQUAL)).values()
    seen = known["tokens_per_sec"]
    assert seen.share == pytest.approx(16.7 / 14.4 - 1)
    assert seen.names == ("baseline/base", "precision/float32")
    assert noise_floor_lines(with_floors(made(*EQUAL)), "tokens_per_sec") == [
        "Equal settings differed by 16% in this suite (baseline/base 14.4, precision/float32 16.7 tokens/s): differences "
        "below that are not shown as wins."
    ]


def test_a_difference_up_to_the_floor_is_none_and_one_beyond_it_is_told():
    runs = made(*EQUAL, timed("bf16", 18.5, dtype="bfloat16"), timed("int8", 25.0, quantization="int8"))
    assert told(runs, "float32", "bf16").verdict == "same"
    assert "no more than equal settings differed here, 16%: 1.11x" in told(runs, "float32", "bf16").words
    assert told(runs, "float32", "int8").verdict == "better"


@pytest.mark.parametrize(
    "other",
    [
        {"suite_id": "suite-2"},
        {"environment_id": "elsewhere"},
        {"workload_id": "other work"},
        {"batch_size": 8},
        {"status": "FAILED"},
    ],
)
def test_only_what_is_equal_there_tells_of_the_floor(other):
    runs = made(EQUAL[0], EQUAL[1] | other)
    assert not any(noise_floors(runs).values())
    assert noise_floor_lines(with_floors(runs), "tokens_per_sec") == []


def test_within_a_study_names_tell_settings_apart_that_no_param_does():
    assert not any(noise_floors(made(timed("a", 10.0), timed("b", 20.0))).values())
    again = made(timed("a", 10.0), timed("a", 11.0) | {"run_id": "again"})
    (known,) = noise_floors(again).values()
    assert known["tokens_per_sec"].share == pytest.approx(0.1)


def test_a_run_of_which_nothing_was_measured_twice_has_no_floor():
    rows = with_floors(made(timed("a", 10.0)))
    assert noise_floor_of("tokens_per_sec", rows[0]) == 0.0
    assert noise_floor_of("tokens_per_sec", made(timed("a", 10.0))[0]) == 0.0


def test_takeaways_show_no_win_below_the_floor_and_say_where_it_lies():
    lines = takeaways(made(*EQUAL, timed("bf16", 18.5, dtype="bfloat16")))
    assert lines[0] == "No scenario was significantly faster than the baseline of its experiment."
    assert lines[1].startswith("Equal settings differed by 16% in this suite")


def test_a_recommendation_says_what_the_floor_is():
    found = recommend(with_floors(made(*EQUAL, timed("bf16", 18.5, dtype="bfloat16"))), Limits())
    assert any("Equal settings differed by 16%" in note for note in found.notes)


@pytest.fixture
def suite(monkeypatch):
    """A suite of which a comparison is asked for two runs only: what else was measured there is read back."""
    runs = made(*EQUAL, timed("bf16", 18.5, dtype="bfloat16"), timed("int8", 25.0, quantization="int8"))
    monkeypatch.setattr(noise_floor, "tracked_runs", lambda **asked: runs)
    monkeypatch.setattr(verdicts, "samples_by_run", lambda ids, uri, lenient: {})
    return runs


def test_a_comparison_of_two_runs_knows_how_far_equal_settings_differed_in_their_suite_and_says_so_once(suite, console):
    pairs, _ = pair_runs(suite[1:2], suite[3:])
    pairs = with_samples_of_pairs(pairs, None)
    found = compare_pairs(pairs, ["tokens_per_sec"])
    assert [each.difference.verdict for each in found] == ["same", "better"]
    assert found[0].difference.words.startswith("no more than equal settings differed here, 16%: 1.11x")
    table = differences_table(found, pairs)
    for style in ("markdown", "html", "latex", "table"):
        show(console, "", table, Layout(style))
        said = " ".join(console.file.getvalue().split())
        assert said.count("Equal settings differed by 16") == 1, style
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
def test_a_gate_neither_fails_nor_passes_on_what_equal_settings_differ_by_too(suite, monkeypatch, times, outcome, why):
    near = [0.99, 0.995, 0.998, 1.0, 1.001, 1.004, 1.006, 1.01]
    samples = {
        "precision-float32": {"tokens_per_sec": [16.7 * each for each in near]},
        "precision-bf16": {"tokens_per_sec": [16.7 * times * each for each in near]},
    }
    monkeypatch.setattr(verdicts, "samples_by_run", lambda ids, uri, lenient: samples)
    result = gate(suite[1:2], suite[3:4], ["tokens_per_sec < -5%"])
    ((only,), notes) = result.checks, result.notes
    assert only.check.outcome == outcome
    assert why in only.check.why
    assert [note for note in notes if note.startswith("Equal settings differed by 16% in this suite")]


@pytest.mark.slow(1)
def test_a_table_shows_no_change_below_the_floor_and_several_metrics_are_told_in_one_line():
    runs = with_floors(made(*EQUAL, timed("bf16", 18.5, dtype="bfloat16")))
    assert "(no significant difference)" in summary_table(runs).rows[-1][-1]
    two = [each | {"total_latency_s": each["tokens_per_sec"] / 4} for each in EQUAL]
    assert noise_floor_lines(with_floors(made(*two)), "tokens_per_sec", "total_latency_s") == [
        "Equal settings differed by 16% in tokens_per_sec, 16% in total_latency_s in this suite: differences below that "
        "are not shown as wins."
    ]


def test_runs_of_two_suites_are_told_apart_by_the_ids_of_these():
    other = [each | {"suite_id": "suite-2", "run_id": f"{each['run_id']}-2"} for each in EQUAL]
    lines = noise_floor_lines(with_floors(made(*EQUAL, *other)), "tokens_per_sec")
    assert [line.partition(" in ")[2].partition(" (")[0] for line in lines] == [
        "suite suite-1",
        "suite suite-2",
    ]


@pytest.mark.parametrize("study", ["precision", "baseline"])
def test_what_was_replaced_since_it_was_disturbed_is_no_evidence_of_the_floor(study):
    """Neither beside its successor nor beside what another study of the suite measured."""
    first = timed("a", 1.3, study, warnings=f"noisy\n{REPLACED}, and the newer run counts")
    assert not any(noise_floors(made(first, timed("a", 23.0) | {"run_id": "again"})).values())


def test_the_table_marks_what_stayed_disturbed():
    noisy = {"warnings": "noisy: repeats vary by 30%"}
    runs = made(timed("one", 10.0, baseline=True) | noisy, timed("two", 20.0, dtype="bfloat16") | noisy)
    changes = [row[-1] for row in summary_table(runs).rows]
    assert changes[0] == "baseline (in doubt: disturbed)"
    assert changes[1].endswith(" (in doubt: disturbed)")
    assert not any("disturbed" in row[-1] for row in summary_table(made(*EQUAL)).rows)


def test_what_a_suite_pooled_still_tells_how_far_it_differed():
    each = {"baseline/base": {"tokens_per_sec": 14.4}, "precision/float32": {"tokens_per_sec": 16.7}}
    (known,) = noise_floors(made(timed("float32", 15.5, pooled=json.dumps(each)))).values()
    assert known["tokens_per_sec"].share == pytest.approx(16.7 / 14.4 - 1)
    assert known["tokens_per_sec"].names == ("baseline/base", "precision/float32")


def test_a_comparison_is_one_of_those_of_its_study_whatever_else_is_asked():
    names = ("a", "b", "c", "d")
    rows = [run(name, workload_id="w") for name in names] + [run("long", workload_id="x")]
    failed = run("e", workload_id="w", status="FAILED")
    other = [run(name, workload_id="w", study_id="precision-2", run_id=f"2-{name}") for name in ("a", "b")]
    known = with_context(made(*rows, failed, *other))
    a, b, *_, long, _, a2, b2 = known
    assert family_size(a, b) == family_size(b, a) == 3
    assert family_size(a, long) == 4, "other work: one of all in the study"
    assert family_size(a2, b2) == 1
    assert family_size(a, a2) == 4, "each of the larger study with one of the other"
    assert family_size(*made(*rows[:2])) == 1


def test_what_a_search_measured_afresh_is_one_of_its_proofs_whatever_else_it_tried():
    rows = [run(name, workload_id="w", race_proofs=2 if name in "ab" else None) for name in ("a", "b", "c", "d", "e")]
    a, b, c, *_ = with_context(made(*rows))
    assert family_size(a, b) == family_size(b, a) == 2
    assert family_size(a, c) == 4, "a sample of the search is one of all that it tried"
    elsewhere = with_context(made(*rows, run("z", workload_id="w", study_id="tune-2", run_id="z", race_proofs=1)))
    assert family_size(elsewhere[0], elsewhere[-1]) == 5
