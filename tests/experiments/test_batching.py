"""The batching experiment: every arm does the same work, and the reading names where throughput stops growing."""

from __future__ import annotations

import pytest

from experiments import batching
from llmtrack.tracked.runs import Runs
from tests.report.artificial_runs import interval, make_runs, replace_values, run


def runs(*throughputs: tuple[int, float, float]) -> Runs:
    """Runs of (batch size, tokens/s, half width of its interval)."""
    return make_runs(
        *(
            run(
                f"batch_{size}",
                batch_size=size,
                **interval("tokens_per_sec", rate, rate - half, rate + half, n=8),
                batch_latency_s=32 * size / rate,
                tokens_per_sec_per_sample=rate / size,
                pad_share=0.25,
            )
            for size, rate, half in throughputs
        )
    )


def test_every_arm_processes_the_same_prompts():
    scenarios = batching.build(batching.Config(sizes=(1, 3, 12))).scenarios
    assert [scenario.name for scenario in scenarios] == ["batch_1", "batch_3", "batch_12"]
    assert [scenario.task.batch_size for scenario in scenarios] == [1, 3, 12]
    assert {len(scenario.task.prompts) for scenario in scenarios} == {12}
    assert len({scenario.task.prompts for scenario in scenarios}) == 1
    assert len(set(map(len, scenarios[0].task.prompts))) > 3
    assert [scenario.baseline for scenario in scenarios] == [True, False, False]


@pytest.mark.parametrize(
    ("throughputs", "best"),
    [
        (((1, 10, 0.5), (2, 18, 0.5), (4, 30, 0.5), (8, 31, 2.0)), 4),  # 8 is within the noise of 4
        (((1, 10, 0.5), (2, 18, 0.5), (4, 17, 0.5), (8, 12, 0.5)), 2),
        (((1, 10, 0.5), (2, 9, 0.5)), 1),
        (((1, 10, 5.0), (2, 12, 5.0)), 1),
        # A step within noise does not hide a later one that is beyond it.
        (((1, 10, 1.0), (2, 11, 1.0), (4, 20, 1.0)), 4),
    ],
)
def test_the_knee_is_where_throughput_stops_growing_beyond_noise(throughputs, best):
    assert batching.knee(runs(*throughputs)).params["batch_size"] == best


def test_the_reading_names_the_batch_size_and_its_cost():
    lines = batching.reading(runs((1, 10, 0.1), (2, 16, 0.1), (4, 20, 0.1), (8, 19, 0.1)))
    assert lines == [
        "Throughput grows up to a batch size of 4: 20.0 tokens/s, 2.00x (1.97 to 2.03) the rate of batch size 1.",
        "A sample then waits 6.40 s for its batch instead of 3.20 s, and its text grows by 5.0 tokens/s instead of 10.0.",
        "Padding takes 25% of the prompt positions at batch size 4: sort requests by length to reduce it.",
    ]


def test_the_reading_suggests_larger_sizes_if_the_largest_wins():
    lines = batching.reading(runs((1, 10, 0.1), (2, 16, 0.1)))
    assert "a larger one may do more" in lines[1]


def test_an_arm_that_ran_out_of_memory_is_named():
    lines = replace_values(runs((1, 10, 0.1), (2, 16, 0.1)), status=["FINISHED", "FAILED"])
    assert any("1 of 2 scenarios failed: batch_2" in line for line in batching.reading(lines))
