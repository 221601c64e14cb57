"""Sentences of readings, for hand-computed numbers."""

from __future__ import annotations

import pytest

from llmtrack.decide.noise_floor import with_context
from llmtrack.decide.verdicts import group_warnings
from llmtrack.measure.statistics import Summary
from llmtrack.report.sentences import reading
from llmtrack.report.sentences.reading import outcome_line, outcome_note
from llmtrack.spec.outcome import Failure, Measurement
from tests.report.artificial_runs import interval, make_runs, run
from tests.run.scenarios import generating


def row(**values):
    return make_runs(run("one", **values))[0]


# Before and after (median, low, high, repeats), and the words about the change.
CHANGES = [
    ((1.0, 0.99, 1.01, 5), (2.5, 2.4, 2.6, 5), "2.5x (2.4 to 2.6) the time"),
    ((1.0, 0.99, 1.01, 5), (2.0, 1.9, 2.1, 5), "2.00x (1.88 to 2.12) the time"),
    ((1.0, 0.99, 1.01, 5), (1.125, 1.1, 1.2, 5), "1.12x (1.09 to 1.21) the time"),
    ((1.0, 0.99, 1.01, 5), (0.4, 0.39, 0.41, 5), "0.40x (0.39 to 0.41) the time"),
    ((1.0, 0.9, 1.1, 5), (1.15, 1.1, 1.2, 5), "1.15x (1.00 to 1.33) the time, no significant difference"),
    ((1.0, 0.9, 1.1, 5), (1.15, 1.11, 1.2, 5), "1.15x (1.01 to 1.33) the time"),
    # The intervals overlap, and one may still take four times as long as the other: not alike, only not known.
    ((0.09, 0.05, 0.3, 8), (0.24, 0.1, 0.3, 8), "2.67x (0.33 to 6.00) the time, which is inconclusive"),
    (
        (0.09, 0.08, 0.1, 2),
        (0.24, 0.23, 0.25, 2),
        "2.7x (2.3 to 3.1) the time, which is inconclusive: too few repeats, 2 against 2",
    ),
    (
        (1.0, 1.0, 1.0, 1),
        (2.0, 2.0, 2.0, 1),
        "2.0x the time, which is inconclusive: 2.0x, one value each: noise unknown",
    ),
]


@pytest.mark.parametrize(("before", "after", "words"), CHANGES)
def test_change(before, after, words):
    one, other = (row(**interval("total_latency_s", *figures)) for figures in (before, after))
    assert reading.change(one, other, "total_latency_s") == words


@pytest.mark.parametrize("n", [1, 3])
def test_an_inconclusive_change_is_not_asserted(n):
    one, other = (
        row(**interval("total_latency_s", value, value, value, count)) for value, count in ((1.0, n), (9.0, 3))
    )
    assert "the time, which is inconclusive: too few repeats" in reading.change(one, other, "total_latency_s")


def test_many_comparisons_need_more_repeats():
    def sentence(comparisons):
        rows = [
            run(f"r{number}", workload_id="w", **interval("total_latency_s", value, value, value, 5))
            for number, value in enumerate([1.0, *[9.0] * comparisons])
        ]
        one, other, *_ = with_context(make_runs(*rows))
        return reading.change(one, other, "total_latency_s")

    assert sentence(6) == "9.0x (9.0 to 9.0) the time"
    assert "among 7 comparisons" in sentence(7)


def test_doubts_about_a_run_follow_sentences_that_rest_on_it():
    one, other = (
        row(**interval("total_latency_s", value, value, value, 5), warnings=warning)
        for value, warning in ((1.0, "noisy"), (9.0, None))
    )
    assert (
        reading.change(one, other, "total_latency_s")
        == "9.0x (9.0 to 9.0) the time, in doubt since one carried warnings"
    )


def test_speed_is_stated_with_its_conditions():
    values = interval("total_latency_s", 2.0, 1.9, 2.1, n=7)
    text = reading.speed(row(tokens_per_sec=16.0, avg_latency_per_token_ms=62.5, **values))
    assert text == (
        "packaged:smollm2 on cpu in float32: 16.00 tokens/s, 62.5 ms/token "
        "(16 prompt tokens, 32 new ones, median of 7 repeats)."
    )
    assert "repeats" not in reading.speed(row(tokens_per_sec=16.0, avg_latency_per_token_ms=62.5))


def test_phases():
    values = {"time_to_first_token_ms": 500.0, "total_latency_s": 2.0, "prefill_tokens_per_sec": 32.0}
    assert reading.phases(row(**values, decode_tokens_per_sec=20.6667)) == [
        "Prefill: 500 ms to the first token (25% of the call, 32 prompt tokens/s); decoding: 20.67 tokens/s."
    ]
    assert reading.phases(row(**values)) == [], "one new token has no decoding"


@pytest.mark.parametrize(
    ("used", "advice"),
    [
        (0.6, "memory is the limit"),
        (0.59, "both memory and arithmetic count"),
        (0.31, "both memory and arithmetic count"),
        (0.3, "far from the limit of memory"),
    ],
)
def test_bandwidth_use_comes_with_advice(used, advice):
    (text,) = reading.bandwidth(row(memory_bandwidth_utilization=used, copy_bandwidth_gb_per_s=21.26))
    assert text.startswith(f"Decoding moves {used:.0%} of the measured 21.3 GB/s: {advice}")
    assert reading.bandwidth(row()) == []


def test_memory():
    assert reading.memory(row(peak_memory_mib=2048.4, model_size_mib=513.1)) == [
        "Peak memory 2,048 MiB, of which 513 MiB are weights."
    ]
    assert reading.memory(row()) == []


def test_doubts():
    runs = make_runs(run("a", warnings="noisy"), run("b", status="FAILED"), run("c"), run("d", warnings=""))
    assert reading.doubts(runs) == ["1 of 4 scenarios failed: b.", "Warning: a: noisy"]
    assert reading.doubts(make_runs(run("c"))) == []
    many = make_runs(*(run(name, warnings="noisy") for name in "abcde"), run("f"))
    assert reading.doubts(many) == [
        "Warning: a, b and 3 others: noisy",
        "Warnings run by run: llmtrack compare --study precision-1 --warnings",
    ]


BUSY = "the machine was busy: other programs took {}% of its CPU time: close them and measure again"


def test_warnings_that_differ_in_numbers_only_are_merged():
    """Four busy runs, of which one carries the same line twice, and two whose memory differs."""
    runs = make_runs(
        *(
            run(f"prompt_{share}", warnings="\n".join([BUSY.format(share)] * times))
            for share, times in ((92, 1), (87, 2), (90, 1), (88, 1))
        )
    )
    assert reading.doubts(runs) == [
        f"Warning: all 4 runs: {BUSY.format('87 to 92')}",
        "Warnings run by run: llmtrack compare --study precision-1 --warnings",
    ]


@pytest.mark.parametrize(
    ("lines", "merged"),
    [
        (["took 9.5 s", "took 10.25 s"], ["a, b: took 9.5 to 10.25 s"]),
        (["1,200 MiB", "900 MiB"], ["a, b: 900 to 1,200 MiB"]),
        (["no tokenizer of model-1", "no tokenizer of model-2"], None),
        (["see prompt_16", "see prompt_64"], None),
        (["version 4.57.1", "version 5.0.0"], None),
    ],
)
def test_only_separate_numbers_form_a_range(lines, merged):
    result = group_warnings(list(zip("ab", lines, strict=True)), runs=3)
    assert result == (merged or [f"{name}: {line}" for name, line in zip("ab", lines, strict=True)])


def test_only_the_first_kinds_of_warnings_are_listed():
    runs = make_runs(*(run(name, warnings=f"kind {name}") for name in "abcdef"))
    assert reading.doubts(runs)[-2:] == [
        "Warning: d: kind d",
        "Warnings run by run, with 2 more kinds: llmtrack compare --study precision-1 --warnings",
    ]


def test_one_token_is_singular():
    text = reading.speed(
        row(tokens_per_sec=16.0, avg_latency_per_token_ms=62.5, prompt_tokens_total=1, max_new_tokens=1)
    )
    assert "(1 prompt token, 1 new one)" in text


def test_a_warning_of_some_runs_is_not_attributed_to_all():
    assert group_warnings([("a", "busy: 87%"), ("b", "busy: 92%")], runs=3) == ["a, b: busy: 87 to 92%"]
    assert group_warnings([("a", "busy: 87%"), ("b", "busy: 92%")], runs=2) == ["both runs: busy: 87 to 92%"]


DONE = Measurement(
    generating("one"),
    "w",
    {},
    {"total_latency_s": 1.5, "tokens_per_sec": 21.333, "time_to_first_token_ms": 1234.56, "perplexity": 18.7444},
    {"total_latency_s": Summary(n=7, median=1.5, ci_low=1.4, ci_high=1.6, mean=1.5)},
    warnings=("noisy: *so*",),
)
OUTCOME_TEXT = "1.500 s, 21.33 tokens/s, TTFT 1,234.6 ms, perplexity 18.744 (median of 7)"
FAILED = Failure(generating("one"), "load", "no <model>")


def test_the_line_about_an_outcome():
    assert outcome_line(DONE) == f"  one: {OUTCOME_TEXT}"
    assert outcome_line(FAILED) == "  one: FAILED (load): no <model>"


def test_the_note_on_an_outcome_has_the_figures_first_and_then_the_warnings():
    assert outcome_note(DONE) == f"**{OUTCOME_TEXT}**\n\n- Warning: noisy: \\*so\\*"
    assert outcome_note(FAILED) == "**FAILED (load): no &lt;model&gt;**\n"
