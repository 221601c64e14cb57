"""Takeaways of artificial runs: exact sentences, and no claim within noise."""

from __future__ import annotations

from dataclasses import fields

import pytest

from llmtrack import metrics as schema
from llmtrack.decide.differences import ratio_text
from llmtrack.decide.significance import Ratio
from llmtrack.report.sentences.takeaways import CHOICES, gains, headline, plain_call, takeaways
from llmtrack.spec.task import TrainTask
from tests.report.artificial_runs import interval, make_runs, run


def timed(scenario, value, low, high, n=5, **values):
    values = {"workload_id": "w", "output_digest": "d0", **values}
    return run(scenario, **interval("tokens_per_sec", value, low, high, n), **values)


BASE = timed("float32", 10.0, 9.8, 10.2, baseline=True)


FASTER = timed("bfloat16", 20.0, 19.0, 21.0, dtype="bfloat16", output_digest="d1")


def scored(dtype, perplexity, **values):
    conventional = {"experiment": "perplexity", "study_id": "p", "workload_id": "corpus"}
    return run(f"perplexity_{dtype}", dtype=dtype, perplexity=perplexity, **conventional, **values)


def test_the_biggest_win_is_stated_with_size_conditions_and_cost():
    runs = make_runs(
        BASE,
        timed("half", 15.0, 14.9, 15.1, dtype="float16"),
        FASTER,
        scored("float32", 18.0, baseline=True),
        scored("bfloat16", 18.09),
    )
    assert takeaways(runs) == [
        "Biggest win: bfloat16 instead of float32 gives 2.00x (1.86 to 2.14) the tokens/s "
        "(experiment precision: packaged:smollm2 on cpu, 16 prompt tokens, 32 new ones).",
        "What it costs: perplexity goes from 18.000 to 18.090 (+0.5 %), and the generated tokens are other than the "
        "baseline's.",
    ]


def test_the_interval_of_the_ratio_is_the_widest_that_both_intervals_allow():
    (gain,) = gains(make_runs(BASE, FASTER))
    assert gain.ratio == Ratio(2.0, 19.0 / 10.2, 21.0 / 9.8)


def test_perplexities_of_another_convention_are_not_compared():
    runs = make_runs(BASE, FASTER, scored("float32", 18.0), scored("bfloat16", 9.0) | {"workload_id": "other"})
    assert takeaways(runs)[1] == "What it costs: the generated tokens are other than the baseline's."


def test_perplexities_of_other_tokens_are_not_compared():
    other = scored("bfloat16", 9.0, scored_tokens_digest="k2")
    runs = make_runs(BASE, FASTER, scored("float32", 18.0, scored_tokens_digest="k1"), other)
    assert takeaways(runs)[1] == "What it costs: the generated tokens are other than the baseline's."


def test_a_larger_batch_costs_waiting_time():
    runs = make_runs(
        timed("batch_1", 10.0, 9.8, 10.2, baseline=True, experiment="batching", batch_latency_s=1.0),
        timed("batch_8", 40.0, 39.0, 41.0, experiment="batching", batch_size=8, batch_latency_s=2.0),
    )
    assert takeaways(runs) == [
        "Biggest win: batch size 8 instead of 1 gives 4.0x (3.8 to 4.2) the tokens/s "
        "(experiment batching: packaged:smollm2 on cpu, 16 prompt tokens, 32 new ones).",
        "What it costs: a sample waits 2.00 s for its batch instead of 1.00 s; "
        "the generated tokens are equal to the baseline's.",
    ]


def test_of_equal_wins_the_one_with_unchanged_tokens_is_preferred():
    runs = make_runs(
        BASE,
        timed("right", 20.1, 19.5, 20.5, padding_side="right", batch_size=8, output_digest="other"),
        timed("left", 20.0, 19.4, 20.4, batch_size=8),
    )
    assert takeaways(runs)[0].startswith("Biggest win: batch size 8 instead of 1 gives 2.00x")


def test_a_significantly_smaller_win_is_not_preferred():
    """Regardless of the intervals of their gains, which the noise of the baseline widens."""
    base = timed("float32", 10.0, 8.0, 12.0, baseline=True)
    runs = make_runs(
        base,
        timed("right", 24.0, 23.9, 24.1, padding_side="right", output_digest="other"),
        timed("left", 20.0, 19.9, 20.1, batch_size=8),
    )
    assert takeaways(runs)[0].startswith("Biggest win: right padding")


def test_a_single_repeat_is_not_a_win():
    once = timed("once", 20.0, 20.0, 20.0, n=1, dtype="bfloat16")
    assert [gain.difference.verdict for gain in gains(make_runs(BASE, once))] == ["unknown"]
    assert takeaways(make_runs(BASE, once)) == [
        "1 comparison of speed is inconclusive, such as once against float32 (too few repeats, 5 against 1); "
        "to settle it run: llmtrack run precision -P min_repeats=4"
    ]


def test_a_win_over_a_run_with_warnings_is_in_doubt():
    (line, *_) = takeaways(make_runs({**BASE, "warnings": "random weights: quality is meaningless"}, FASTER))
    assert line.startswith("Biggest win")
    assert line.endswith(", in doubt since float32 carried warnings.")


def test_different_work_is_not_a_win():
    assert gains(make_runs(BASE, timed("shorter", 50.0, 49.0, 51.0, workload_id="less"))) == []


def test_a_study_with_several_baselines_compares_within_each_work():
    runs = make_runs(
        BASE,
        FASTER,
        timed("long", 5.0, 4.9, 5.1, baseline=True, workload_id="long"),
        timed("long_off", 4.0, 3.9, 4.1, use_cache=False, workload_id="long"),
    )
    assert [gain.base.scenario for gain in gains(runs)] == ["float32", "long"]


CALL = {
    "experiment": "baseline",
    "baseline": True,
    "total_latency_s": 2.0,
    "time_to_first_token_ms": 200.0,
    "inter_token_latency_ms": 60.0,
}


def test_a_plain_call_has_one_prompt_and_a_cache():
    assert plain_call(make_runs(run("batch", **CALL | {"batch_size": 4}))) is None
    assert plain_call(make_runs(run("list", **CALL, prompt_tokens_total=160))) is None
    assert plain_call(make_runs(run("off", **CALL | {"use_cache": False}))) is None
    assert plain_call(make_runs(run("failed", **CALL, status="FAILED"))) is None
    chosen = plain_call(make_runs(run("other", **CALL | {"experiment": "x", "baseline": False}), run("plain", **CALL)))
    assert chosen is not None
    assert chosen.scenario == "plain"


def test_at_most_five_lines():
    runs = make_runs(
        BASE,
        FASTER,
        timed("no_cache", 2.0, 1.9, 2.1, use_cache=False),
        run("baseline", **CALL, study_id="b"),
        run("lost", status="FAILED"),
    )
    assert len(takeaways(runs)) == 5


def test_a_study_has_headline_metrics():
    fast = timed("bfloat16", 20.0, 19.9, 20.1, dtype="bfloat16")
    same = run("float16", outcome="same_as", same_as="float32")
    failed = run("big", status="FAILED", reason="no memory")
    assert headline(make_runs(BASE, fast, same, failed)) == {
        "scenarios_measured": 2.0,
        "scenarios_failed": 1.0,
        "best_tokens_per_sec": 20.0,
        "best_gain": 2.0,
    }
    assert headline(make_runs(failed)) == {"scenarios_measured": 0.0, "scenarios_failed": 1.0}
    noisy = timed("noisy", 10.1, 9.0, 11.0)
    assert "best_gain" not in headline(make_runs(BASE, noisy)), "no gain that noise may explain"


def steady(scenario, value, **values):
    """A timed run whose interval reaches 1 % to both sides."""
    return timed(scenario, value, 0.99 * value, 1.01 * value, **values)


@pytest.mark.slow(1)
@pytest.mark.parametrize(("factor", "start"), [(4.0, "Biggest win"), (0.25, "To avoid")])
@pytest.mark.parametrize(
    ("besides", "before", "after"),
    [
        ("pad_to_multiple", 1, 64),
        ("threads", 2, 1),
        ("compile", "none", "default"),
        ("graph_optimization", "all", "basic"),
        ("use_cache", True, False),
    ],
)
def test_takeaways_prefer_runs_that_differ_in_one_choice(factor, start, besides, before, after):
    base = steady("one", 10.0, baseline=True, **{besides: before})
    both = steady("both", 10.0 * factor * (1.002 if factor > 1 else 0.998), batch_size=8, **{besides: after})
    alone = steady("alone", 10.0 * factor, batch_size=8, **{besides: before})
    (line,) = [line for line in takeaways(make_runs(base, both, alone)) if line.startswith(start)]
    assert line.startswith(f"{start}: batch size 8 instead of 1 gives {ratio_text(factor)}")


def test_every_param_of_a_configuration_is_a_choice_or_describes_the_model():
    of_model = {
        *("model_id", "reference", "reference_tokens", "tokenizer_tokens", "architecture", "parameters"),
        *("context_length", "vocab_size", "linear_layers", "trust_remote_code", "provider", "arithmetic"),
        *("weight_bits", "calibration", "calibration_digest", "calibration_tokens", "calibration_method"),
        # Of the texts of a prompt, and of the only decoding that there is.
        *("empty_prompt", "overlong_prompt", "decoding"),
    }
    trained = {field.name for field in fields(TrainTask)}
    assert {*schema.params_with("configuration")} - trained == ({*dict(CHOICES)} | of_model) - trained


@pytest.mark.slow(1)
@pytest.mark.parametrize("warning", ["noisy: repeats vary", "drift: the last", "the machine was busy: other programs"])
def test_disturbed_runs_give_no_takeaways(warning):
    base = steady("one", 10.0, baseline=True)
    wild, calm = steady("wild", 90.0, dtype="float16", warnings=warning), steady("calm", 20.0, dtype="bfloat16")
    assert takeaways(make_runs(base, wild, calm))[0].startswith("Biggest win: bfloat16")
    assert takeaways(make_runs(base, wild))[0].startswith(
        "Whether anything beat its baseline is inconclusive: wild was disturbed;"
    )
    assert takeaways(make_runs(base | {"warnings": warning}, calm))[0].startswith(
        "Whether anything beat its baseline is inconclusive: one was disturbed;"
    )
    assert "best_gain" not in headline(make_runs(base, wild))
    slow = steady("slow", 1.0, dtype="float16", warnings=warning)
    assert not any("To avoid" in line for line in takeaways(make_runs(base, slow, calm)))
