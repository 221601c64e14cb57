"""Wording of changes, counts and recommendations."""

from __future__ import annotations

import pytest

from experiments import batching, precision
from llmtrack.decide.compare import compare_pairs
from llmtrack.decide.recommend import Limits, recommend
from llmtrack.decide.selection import pair_runs
from llmtrack.host.formatting import plural
from llmtrack.report.sentences.takeaways import takeaways
from llmtrack.report.tables.differences import differences_table
from tests.report.artificial_runs import interval, make_runs, run


@pytest.mark.parametrize(("count", "words"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs"), (12345, "12,345 runs")])
def test_one_is_singular(count, words):
    assert plural(count, "run") == words


@pytest.mark.slow(1)
def test_one_scenario_is_singular():
    failed = make_runs(run("a", status="FAILED", reason="gone"))
    assert failed.unfinished() == ["1 of 1 scenario failed: a."]
    assert "1 comparison of speed is inconclusive" in " ".join(
        takeaways(
            make_runs(
                *(run(n, workload_id="w", tokens_per_sec=v, baseline=n == "a") for n, v in (("a", 1.0), ("b", 2.0)))
            )
        )
    )


def batch(size: int, rate: float, spread: float = 0.01):
    return run(
        f"batch_{size}",
        batch_size=size,
        workload_id="w",
        **interval("tokens_per_sec", rate, rate - spread, rate + spread, 12),
    )


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        (
            (10.0, 20.0),
            "Throughput grows up to a batch size of 4: 20.0 tokens/s, 2.00x (2.00 to 2.00) the rate of batch size 1.",
        ),
        ((10.0, 9.0), "No larger batch is known to make more than batch size 1: 10.0 tokens/s."),
    ],
)
def test_how_throughput_grows(rates, words):
    runs = make_runs(batch(1, rates[0]), batch(4, rates[1]))
    assert batching.reading(runs)[0] == words


def test_a_run_equal_to_another_is_mentioned_once():
    same = run("float16", outcome="same_as", same_as="float32", reason="same as float32: forced")
    runs = make_runs(run("float32", tokens_per_sec=10.0, baseline=True), same)
    assert not any("not measured" in line for line in precision.reading(runs))


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("tokens_per_sec", "Run b: the fastest of 2 scenarios"),
        ("decode_tokens_per_sec", "Run b: the fastest in decode tokens/s of 2 scenarios"),
        ("peak_memory_mib", "Run a: the smallest in peak MiB of 2 scenarios"),
    ],
)
def test_a_recommendation_is_a_plain_sentence(metric, words):
    rows = [
        run(name, workload_id="w", environment_id="e", **interval("tokens_per_sec", rate, rate, rate, 12))
        | interval("decode_tokens_per_sec", rate, rate, rate, 12)
        | {"peak_memory_mib": 100 * rate}
        for name, rate in (("a", 1.0), ("b", 2.0))
    ]
    assert recommend(make_runs(*rows), Limits(), objective=metric).sentence.startswith(words)


def test_common_differences_are_listed_once_and_long_ones_below_the_table():
    base = run("float32", baseline=True, workload_id="w", environment_id="e", threads=1, tokens_per_sec=10.0)
    arms = [
        run(
            name,
            workload_id="w",
            environment_id="e",
            threads=2,
            dtype=dtype,
            block_size=size,
            tokens_per_sec=11.0,
        )
        for name, dtype, size in (
            ("a", "bfloat16", 32),
            ("b", "float16 " + "(asked for another one) " * 3, 64),
        )
    ]
    pairs, _ = pair_runs(make_runs(base), make_runs(*arms))
    table = differences_table(compare_pairs(pairs, ["tokens_per_sec"]))
    assert any(line.startswith("all differ from it in: ") and "threads 1 → 2" in line for line in table.conditions)
    cells = [row[table.keys.index("differs_in")] for row in table.rows]
    assert "threads" not in "".join(cells)
    assert cells[1] == "see below"
    assert any(line.startswith("b differs in: ") for line in table.notes)
