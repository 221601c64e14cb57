"""Every sentence of verdicts, takeaways, recommend and compare, with the condition under which it is printed."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from typing import Any

import pytest

from llmtrack import metrics as schema
from llmtrack.decide.compare import compare_pairs
from llmtrack.decide.gate import Check, GateResult, PairCheck, parse_rules
from llmtrack.decide.noise_floor import with_floors
from llmtrack.decide.recommend import Limits, recommend
from llmtrack.decide.selection import Pair, pair_runs
from llmtrack.decide.verdicts import difference_between
from llmtrack.report.gate import gate_table
from llmtrack.report.sentences.reading import change
from llmtrack.report.sentences.takeaways import takeaways
from llmtrack.report.tables.differences import differences_table
from llmtrack.report.tables.table import shared_conditions
from tests.report.artificial_runs import interval, make_runs, run

BUSY = "the machine was busy: other programs took 82% of its CPU time: close them and measure again"
RATE = "tokens_per_sec"


def timed(name: str, rate: float, n: int = 8, share: float = 0.02, **more: Any) -> dict[str, Any]:
    """Return a run with `n` repeats and an interval of `share` to either side."""
    spread = interval(RATE, rate, (1 - share) * rate, (1 + share) * rate, n)
    return run(name, **{"workload_id": "w", "environment_id": "e", **spread, **more})


def without(row: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in row.items() if key not in keys}


BASE = timed("float32", 10.0, baseline=True)
FAILED = run("int2", workload_id="w", environment_id="e", status="FAILED", outcome="failed", reason="no kernel")

# Condition, metric, candidate (against BASE), verdict, what is said.
VERDICTS: Sequence[tuple[str, str, dict[str, Any], str, str]] = [
    ("known to be better", RATE, timed("b", 20.0), "better", "faster: 2.00x (1.92 to 2.08)"),
    ("known to be worse", RATE, timed("b", 5.0), "worse", "slower: 0.50x (0.48 to 0.52)"),
    (
        "the intervals overlap",
        RATE,
        timed("b", 10.3),
        "same",
        "no significant difference: 1.03x (0.99 to 1.07)",
    ),
    (
        "too few repeats to show anything",
        RATE,
        timed("b", 20.0, n=1),
        "unknown",
        "too few repeats, 8 against 1: measure at least 4 of each",
    ),
    (
        "a single value each",
        "load_time_s",
        timed("b", 20.0, load_time_s=3.0),
        "unknown",
        "1.50x, one value each: noise unknown",
    ),
    (
        "exact, and other",
        "model_size_mib",
        timed("b", 20.0, model_size_mib=50.0),
        "better",
        "lower: 0.50x",
    ),
    (
        "exact, and within its tolerance",
        "perplexity",
        timed("b", 20.0, perplexity=18.0),
        "same",
        "no difference beyond 0.1 %",
    ),
    ("exact, and equal", "model_size_mib", timed("b", 20.0, model_size_mib=100.0), "same", "no difference"),
    (
        "other work",
        RATE,
        timed("b", 20.0, workload_id="x", prompt_tokens=99),
        "not comparable",
        "tokens_per_sec is not comparable: the workloads differ (prompt_tokens: 16 against 99)",
    ),
    (
        "another machine",
        RATE,
        timed("b", 20.0, environment_id="f", **{"env.cpu": "other"}),
        "not comparable",
        "tokens_per_sec is not comparable: measured in different environments (cpu: not given against other)",
    ),
    (
        "scored by another convention",
        "perplexity",
        timed("b", 20.0, perplexity=18.0, max_length=64),
        "not comparable",
        "perplexity is not comparable: scored by different conventions (max_length: not given against 64)",
    ),
    ("it failed", RATE, FAILED, "failed", "failed: no kernel"),
    (
        "it still runs",
        RATE,
        run("b", status="RUNNING", workload_id="w", environment_id="e"),
        "missing",
        "is still running",
    ),
    (
        "it is the same as another",
        RATE,
        run("b", outcome="same_as", same_as="float32", reason="same as float32: float32", workload_id="w"),
        "missing",
        "not measured again: same as float32: float32",
    ),
    ("a side has no figure", "perplexity", timed("b", 20.0), "missing", "no perplexity of the candidate"),
    (
        "a value of 0",
        "pad_share",
        timed("b", 20.0, pad_share=0.5),
        "unknown",
        "the baseline is 0: no ratio",
    ),
]


@pytest.mark.parametrize(
    ("metric", "candidate", "verdict", "words"),
    [case[1:] for case in VERDICTS],
    ids=[case[0] for case in VERDICTS],
)
def test_a_verdict(metric, candidate, verdict, words):
    known = {"load_time_s": 2.0, "model_size_mib": 100.0, "perplexity": 18.001, "pad_share": 0.0}
    base, other = (row for row in make_runs({**known, **BASE}, candidate))
    difference = difference_between(base, other, metric)
    assert (difference.verdict, difference.words) == (verdict, words)


def in_a_suite(*rows: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the same settings in two studies of a suite, 16 % apart, and further runs."""
    repeated = timed("again", 11.6, baseline=True, study_id="b", experiment="baseline")
    return [{**row, "suite_id": "s"} for row in (BASE, repeated, *rows)]


FLOOR = (
    "Equal settings differed by 16% in this suite (precision/float32 10, baseline/again 11.6 tokens/s): differences below that "
    "are not shown as wins."
)
MORE = "to settle it run: llmtrack run precision"


def test_a_verdict_within_the_noise_floor():
    rows = with_floors(make_runs(*in_a_suite(timed("b", 11.0, n=60, share=0.001, dtype="bfloat16"))))
    difference = difference_between(rows[0], rows[2], RATE)
    assert (difference.verdict, difference.words) == (
        "same",
        "no more than equal settings differed here, 16%: 1.10x (1.08 to 1.12)",
    )


PLACE = "(experiment precision: packaged:smollm2 on cpu, 16 prompt tokens, 32 new ones)"
CALL = {
    "total_latency_s": 2.0,
    "time_to_first_token_ms": 200.0,
    "inter_token_latency_ms": 60.0,
    "copy_bandwidth_gb_per_s": 12.0,
}

# Condition, runs, what is said.
TAKEAWAYS: Sequence[tuple[str, Sequence[dict[str, Any]], Sequence[str]]] = [
    ("nothing is tracked", [], []),
    (
        "a run is known to be faster, its quality is not known",
        [BASE, timed("b", 20.0, dtype="bfloat16")],
        [
            f"Biggest win: bfloat16 instead of float32 gives 2.00x (1.92 to 2.08) the tokens/s {PLACE}.",
            "What it costs: quality was not measured.",
        ],
    ),
    (
        "a run is known to be slower",
        [BASE, timed("b", 5.0, use_cache=False)],
        [
            "No scenario was significantly faster than the baseline of its experiment.",
            f"To avoid: KV cache off instead of on gives 0.50x (0.48 to 0.52) the tokens/s {PLACE}.",
        ],
    ),
    (
        "none is told from its baseline",
        [BASE, timed("b", 10.3)],
        ["No scenario was significantly faster than the baseline of its experiment."],
    ),
    (
        "too few repeats for any",
        [BASE, timed("b", 20.0, n=1)],
        [
            "1 comparison of speed is inconclusive, such as b against float32 (too few repeats, 8 against 1); "
            f"{MORE} -P min_repeats=4"
        ],
    ),
    (
        "what is faster was disturbed",
        [BASE, timed("b", 20.0, warnings=BUSY)],
        [
            "Whether anything beat its baseline is inconclusive: b was disturbed; to settle it run: llmtrack run precision"
        ],
    ),
    (
        "equal settings were measured more than once",
        in_a_suite(timed("b", 11.0, n=60, share=0.001, dtype="bfloat16")),
        ["No scenario was significantly faster than the baseline of its experiment.", FLOOR],
    ),
    (
        "a plain call was timed, and memory is the limit",
        [run("a", baseline=True, **CALL, memory_bandwidth_utilization=0.75)],
        [
            "Where the time goes: with 16 prompt tokens and 32 new ones the prefill is 10% of the call. Decoding moves 75% of the "
            "measured 12.0 GB/s: memory is the limit, so smaller weights (lower precision, quantization) make it faster."
        ],
    ),
    (
        "memory and arithmetic are near each other",
        [run("a", baseline=True, **CALL, memory_bandwidth_utilization=0.5)],
        [
            "Where the time goes: with 16 prompt tokens and 32 new ones the prefill is 10% of the call. Decoding moves 50% of the "
            "measured 12.0 GB/s: both memory and arithmetic count: smaller weights and another backend can each help."
        ],
    ),
    (
        "memory is far from being the limit",
        [run("a", baseline=True, **CALL, memory_bandwidth_utilization=0.2)],
        [
            "Where the time goes: with 16 prompt tokens and 32 new ones the prefill is 10% of the call. Decoding moves 20% of the "
            "measured 12.0 GB/s: far from the limit of memory, so overhead or arithmetic is what takes the time: try another backend."
        ],
    ),
    (
        "the plain call was disturbed",
        [run("a", baseline=True, **CALL, warnings=BUSY)],
        ["Where the time goes is inconclusive: a was disturbed; to settle it run: llmtrack run precision"],
    ),
    ("a scenario failed", [FAILED], ["1 of 1 scenario failed: int2 (precision)."]),
    (
        "scenarios were killed",
        [run("a", status="KILLED"), run("b", status="KILLED")],
        ["2 of 2 scenarios were killed: a (precision), b (precision)."],
    ),
]


@pytest.mark.parametrize(("rows", "lines"), [case[1:] for case in TAKEAWAYS], ids=[case[0] for case in TAKEAWAYS])
def test_takeaways(rows, lines):
    assert takeaways(make_runs(*rows)) == lines


def scored(name: str, rate: float, perplexity: float, memory: float, **more: Any) -> dict[str, Any]:
    row = timed(name, rate, perplexity=perplexity, peak_memory_mib=memory, quantization=name)
    return {**row, **more}


FP32 = scored("fp32", 10.0, 20.0, 2000.0, baseline=True)
INT8 = scored("int8", 25.0, 20.1, 600.0)
INT4 = scored("int4", 40.0, 24.0, 400.0)
OF = "for packaged:smollm2 on cpu (precision-1)"

# Condition, runs, limits, objective, the sentence, and what is said of the others and beside it.
RECOMMENDED: Sequence[tuple[str, Sequence[dict[str, Any]], Limits, str, str, Sequence[str]]] = [
    (
        "one is the best of those that keep to the limits",
        [FP32, INT8, INT4, FAILED],
        Limits(0.01, 2048),
        RATE,
        f"Run int8: the fastest of 3 scenarios that keeps to the limits {OF}, with 25 tokens/s, 2.5x (2.4 to 2.6) that of fp32, "
        "perplexity 20.100 (+0.5 %) and 600 MiB peak memory.",
        [
            "int4: perplexity +20 % is over +1 %",
            "int2: failed: no kernel",
            "fp32: 10 tokens/s, 0.40x (0.38 to 0.42)",
        ],
    ),
    (
        "there are no limits, and nothing is known of quality",
        [BASE, timed("b", 20.0)],
        Limits(),
        RATE,
        f"Run b: the fastest of 2 scenarios {OF}, with 20 tokens/s, 2.00x (1.92 to 2.08) that of float32 and unknown perplexity.",
        ["float32: 10 tokens/s, 0.50x (0.48 to 0.52)"],
    ),
    (
        "there is one only",
        [FP32],
        Limits(),
        RATE,
        f"Run fp32: the only scenario {OF}, with 10 tokens/s, perplexity 20.000 and 2,000 MiB peak memory.",
        [],
    ),
    (
        "the best is not told from the baseline",
        [FP32, scored("int8", 10.3, 20.1, 600.0)],
        Limits(),
        RATE,
        f"Run int8: the fastest of 2 scenarios {OF}, with 10.3 tokens/s, no significant difference from fp32 (1.03x (0.99 to 1.07)), perplexity "
        "20.100 (+0.5 %) and 600 MiB peak memory.",
        ["fp32: 10 tokens/s, no significant difference: 0.97x (0.93 to 1.01)"],
    ),
    (
        "another objective is asked for",
        [FP32, INT8],
        Limits(),
        "peak_memory_mib",
        f"Run int8: the smallest in peak MiB of 2 scenarios {OF}, with 600 MiB, 0.30x that of fp32 and perplexity 20.100 (+0.5 %).",
        ["fp32: 2,000 MiB, 3.3x"],
    ),
    (
        "nothing keeps to the limits",
        [FP32, INT4],
        Limits(0.001, 100.0),
        RATE,
        f"Nothing fits: none of 2 scenarios is within perplexity +0.1 % and 100 MiB of memory; the nearest is fp32 {OF} (peak memory 2,000 MiB "
        "is over 100 MiB).",
        [
            "fp32: peak memory 2,000 MiB is over 100 MiB",
            "int4: perplexity +20 % is over +0.1 %, peak memory 400 MiB is over 100 MiB",
        ],
    ),
    (
        "nothing keeps to the limits, and the nearest is unknown",
        [BASE],
        Limits(0.01),
        RATE,
        "Nothing fits: the only scenario is not within perplexity +1 %; which is nearest is unknown (no perplexity was scored); "
        "to score it run: llmtrack run perplexity -P model=packaged:smollm2, then ask again with "
        "--model packaged:smollm2",
        ["float32: no perplexity was scored"],
    ),
    (
        "it cannot be told which is best",
        [FP32, scored("int8", 25.0, 20.1, 600.0, **{"spread/tokens_per_sec.n": 1.0})],
        Limits(),
        RATE,
        f"Nothing can be recommended yet {OF}: int8 has 25 tokens/s against fp32 10 tokens/s: inconclusive "
        f"(too few repeats, 8 against 1); {MORE} -P min_repeats=4",
        ["fp32: 10 tokens/s, inconclusive: too few repeats, 1 against 8: measure at least 4 of each"],
    ),
    (
        "a run that counts carries warnings",
        [{**FP32, "warnings": BUSY}, INT8],
        Limits(),
        RATE,
        f"Run int8: the fastest of 2 scenarios {OF}, with 25 tokens/s, 2.5x (2.4 to 2.6) that of fp32, perplexity 20.100 (+0.5 %) "
        "and 600 MiB peak memory.",
        ["fp32: 10 tokens/s, 0.40x (0.38 to 0.42)", f"read with care: fp32: {BUSY}"],
    ),
    (
        "a limit on perplexity, and no tracked baseline",
        [{**FP32, "baseline": False}, INT8],
        Limits(0.01),
        RATE,
        f"Run int8: the fastest of 2 scenarios that keeps to the limits {OF}, with 25 tokens/s, 2.5x (2.4 to 2.6) that of fp32, "
        "perplexity 20.100 (+0.5 %) and 600 MiB peak memory.",
        [
            "fp32: 10 tokens/s, 0.40x (0.38 to 0.42)",
            "no tracked baseline is among the runs: perplexity is judged against the lowest, fp32's",
        ],
    ),
    (
        "the only one that fits was measured once",
        [without(FP32, *(key for key in FP32 if key.startswith("spread/")))],
        Limits(),
        RATE,
        f"Run fp32: the only scenario {OF}, with 10 tokens/s, perplexity 20.000 and 2,000 MiB peak memory.",
        ["tokens_per_sec of fp32 is a single value: its variation is unknown"],
    ),
]


@pytest.mark.parametrize(
    ("rows", "limits", "objective", "sentence", "beside"),
    [case[1:] for case in RECOMMENDED],
    ids=[case[0] for case in RECOMMENDED],
)
def test_a_recommendation(rows, limits, objective, sentence, beside):
    recommendation = recommend(make_runs(*rows), limits, objective)
    assert recommendation.sentence == sentence
    assert [f"{name}: {why}" for name, why in recommendation.ruled_out] + list(recommendation.notes) == list(beside)
    assert (recommendation.scenario is None) == sentence.startswith("Nothing")
    assert dataclasses.asdict(recommendation)["sentence"] == sentence


METRICS = [RATE, "perplexity"]
# Condition, baseline, candidates, what stands above the table and below it.
COMPARED: Sequence[tuple[str, dict[str, Any], Sequence[dict[str, Any]], Sequence[str]]] = [
    (
        "one baseline, and all differ from it in the same",
        BASE,
        [timed("a", 11.0, threads=2), timed("b", 11.0, threads=2)],
        ["baseline: float32 (id-float)", "study: precision-1", "all differ from it in: threads – → 2"],
    ),
    (
        "a run carries warnings",
        BASE,
        [timed("a", 11.0, warnings=BUSY)],
        ["baseline: float32 (id-float)", "study: precision-1", f"read with care: a: {BUSY}"],
    ),
    (
        "other machines",
        {**BASE, "perplexity": 18.0},
        [timed("a", 11.0, environment_id="f", perplexity=18.0)],
        [
            "baseline: float32 (id-float)",
            "study: precision-1",
            "--across-environments compares speed and memory of different machines or versions, too",
        ],
    ),
]


@pytest.mark.parametrize(
    ("baseline", "candidates", "lines"), [case[1:] for case in COMPARED], ids=[case[0] for case in COMPARED]
)
def test_a_comparison(baseline, candidates, lines):
    pairs, unmatched = pair_runs(make_runs(baseline), make_runs(*candidates))
    table = differences_table(compare_pairs(pairs, METRICS, unmatched))
    shared, _ = shared_conditions(make_runs(baseline, *candidates))
    assert [line for line in (*table.conditions, *table.notes) if line not in shared] == lines


def test_a_candidate_without_a_counterpart():
    pairs, unmatched = pair_runs(
        make_runs(BASE, timed("b", 9.0)), make_runs(timed("b", 11.0, run_id="id-new"), timed("new", 11.0))
    )
    table = differences_table(compare_pairs(pairs, [RATE], unmatched))
    assert "new has no counterpart in the baseline" in table.notes


def test_each_comparison_names_the_studies_of_both_sides():
    """So do `compare --baseline` and `gate`, with model and device."""
    pairs, _ = pair_runs(make_runs(BASE), make_runs(timed("a", 11.0, study_id="precision-2")))
    studies = {"study of the baseline: precision-1", "study of the candidate: precision-2"}
    assert studies <= set(differences_table(compare_pairs(pairs, [RATE])).conditions)
    check = Check(parse_rules(["tokens_per_sec < -5%"])[0], "kept")
    table = gate_table(GateResult((PairCheck(pairs[0], check),)))
    assert {"model: packaged:smollm2", "device: cpu", *studies} == set(table.conditions)


def test_a_candidate_equal_to_another_has_one_row_and_no_differences():
    same = run(
        "float16", outcome="same_as", same_as="float32", reason="same as float32: forced", model_id="", device=""
    )
    pairs, _ = pair_runs(make_runs(BASE), make_runs(timed("a", 11.0), same))
    table = differences_table(compare_pairs(pairs, METRICS))
    (row,) = [row for row in table.rows if row[0] == "float16"]
    assert row[-1] == "not measured again: same as float32: forced"
    assert not [note for note in table.notes if "float16 differs" in note]


@pytest.mark.parametrize("name", schema.METRIC_BY_NAME)
@pytest.mark.parametrize(("before", "after"), [(10.0, 20.0), (20.0, 10.0)])
def test_a_sentence_about_any_metric_fits_its_kind_and_direction(name, before, after):
    entry = schema.metric(name)
    base, other = (
        run(scenario, workload_id="w", environment_id="e", baseline=scenario == "a")
        | (interval(name, value, value * 0.99, value * 1.01, 8) if entry.sampled else {name: value})
        for scenario, value in (("a", before), ("b", after))
    )
    runs = make_runs(base, other)
    sentence = change(*runs, name)
    share, timed = entry.of_text, entry.unit in ("s", "ms")
    assert bool(re.match(r"[+-][\d.,]+ % in \w", sentence)) == share, sentence
    assert bool(re.match(r"[\d.,]+x (\([\d., to]+\) )?the \w", sentence)) != share, sentence
    assert ("the time" in sentence) == timed, sentence
    (comparison,) = compare_pairs([Pair(*runs)], [name]).comparisons
    difference = comparison.difference
    if difference.verdict in ("better", "worse", "changed"):
        rate, more = entry.unit == "tokens/s", after > before
        words = ("faster", "slower") if rate else ("longer", "shorter") if timed else ("higher", "lower")
        assert difference.words.startswith(f"{words[not more]}: ")
        good = "changed" if entry.better == "-" else "better" if more == (entry.better == "higher") else "worse"
        assert difference.verdict == good
    if entry.better != "-":
        recommendation = recommend(runs, Limits(), name).sentence
        assert not re.search(r"% (that of|the) ", recommendation), recommendation
        title = entry.shown.title if entry.shown else name
        assert name not in recommendation.replace(title, ""), "a metric is called as in tables"
        assert (
            recommendation.count(f"{after if (after > before) == (entry.better == 'higher') else before:.0f} MiB") <= 1
        )
