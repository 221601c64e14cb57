"""The cache and padding experiment: its scenarios, and its reading of artificial runs."""

from __future__ import annotations

from experiments import cache_padding
from tests.report.artificial_runs import interval, make_runs, replace_values


def run(scenario: str, **values: object) -> dict[str, object]:
    plain = {"status": "FINISHED", "prompt_tokens": 30, "batch_size": 1}
    for metric in ("total_latency_s", "tokens_per_sec"):
        if metric in values:
            plain |= interval(metric, values[metric], values[metric], values[metric], 8)
    return {"scenario": scenario, **plain, **values}


def cache_run(on: bool, new: int, latency: float, first: float, last: float) -> dict[str, object]:
    return run(
        f"cache_{'on' if on else 'off'}_{new}",
        use_cache=on,
        max_new_tokens=new,
        total_latency_s=latency,
        inter_token_latency_first_quarter_ms=first,
        inter_token_latency_last_quarter_ms=last,
    )


RUNS = make_runs(
        cache_run(True, 16, 1.6, 90, 91),
        cache_run(False, 16, 4.0, 200, 260),
        cache_run(True, 32, 3.0, 90, 99),
        cache_run(False, 32, 12.0, 200, 500),
        run("pad_none", use_cache=True, max_new_tokens=16, tokens_per_sec=10.0, pad_share=0.0, rows_equal_unpadded=1.0),
        run("pad_left", use_cache=True, max_new_tokens=16, tokens_per_sec=25.0, pad_share=0.4, rows_equal_unpadded=1.0, batch_size=8),
        run("pad_right", use_cache=True, max_new_tokens=16, tokens_per_sec=25.0, pad_share=0.4, rows_equal_unpadded=0.125, batch_size=8),
)  # fmt: skip


def test_each_length_has_both_caches_and_its_own_baseline():
    scenarios = {
        s.name: s
        for s in cache_padding.build(cache_padding.Config(max_new_tokens=5, lengths=(8, 16), multiple=32)).scenarios
    }
    assert list(scenarios) == [
        "cache_on_8", "cache_off_8", "cache_on_16", "cache_off_16",
        "pad_none", "pad_left", "pad_right", "pad_left_to_32",
    ]  # fmt: skip
    assert [name for name, scenario in scenarios.items() if scenario.baseline] == [
        "cache_on_8",
        "cache_on_16",
        "pad_none",
    ]
    assert {name: scenario.task.use_cache for name, scenario in scenarios.items() if not scenario.task.use_cache} == {
        "cache_off_8": False,
        "cache_off_16": False,
    }
    padded = [scenarios[name].task for name in ("pad_none", "pad_left", "pad_right", "pad_left_to_32")]
    assert [task.batch_size for task in padded] == [1, None, None, None]
    assert [task.padding_side for task in padded] == ["left", "left", "right", "left"]
    assert [task.pad_to_multiple for task in padded] == [1, 1, 1, 32]
    assert len({task.prompts for task in padded}) == 1
    assert all(task.compare_unpadded for task in padded)
    assert {task.max_new_tokens for task in padded} == {5}


def test_the_reading_states_the_cost_of_no_cache_and_which_padding_changes_the_text():
    assert cache_padding.reading(RUNS) == [
        "Without the KV cache 32 new tokens behind 30 prompt tokens take 4.0x (4.0 to 4.0) the time (3.00 s to 12.00 s).",
        "From the first to the last quarter of the answer a token takes 90.0 ms to 99.0 ms with the cache (1.10x).",
        "From the first to the last quarter of the answer a token takes 200.0 ms to 500.0 ms without the cache (2.5x).",
        "One batch of 8 prompts, 40% pads, makes 2.5x (2.5 to 2.5) the tokens/s of one prompt at a time.",
        "Rows whose tokens equal the unpadded ones: pad_left 100%, pad_right 12%.",
    ]


def test_the_reading_states_that_nothing_was_measured():
    failed = replace_values(RUNS, status="FAILED")
    assert cache_padding.reading(failed)[0] == "Nothing was measured."


def test_plots_show_what_was_measured():
    figures = cache_padding.plots(replace_values(RUNS, baseline=False), lambda run_id, name: [])
    assert set(figures) == {"cache_latency", "padding_tokens_per_sec"}
    lines = figures["cache_latency"].axes[0].get_legend().get_texts()
    assert {line.get_text() for line in lines} == {"with KV cache", "without"}
    only_cache = cache_padding.plots(replace_values(RUNS[:4], baseline=False), lambda run_id, name: [])
    assert set(only_cache) == {"cache_latency"}
