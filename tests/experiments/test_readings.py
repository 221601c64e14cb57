"""Readings and plots of the experiments, for artificial runs."""

from __future__ import annotations

import pytest

from experiments import baseline, perplexity, precision, prompt_length, training, tune
from tests.report.artificial_runs import interval, make_runs, run

EXPERIMENTS = [baseline, perplexity, precision, prompt_length]


def timed(name, total_s, low, high, **values):
    """Return a run of 32 new tokens."""
    numbers = {"tokens_per_sec": 32 / total_s, "avg_latency_per_token_ms": 1000 * total_s / 32}
    return run(name, **numbers, **interval("total_latency_s", total_s, low, high), **values)


def none(run_id, name):
    return []


@pytest.mark.parametrize("experiment", EXPERIMENTS)
def test_readings_and_plots_work_without_measured_runs(experiment, tmp_path):
    runs = make_runs(run("a", status="FAILED", failure="load", reason="gone", baseline=True))
    assert len(experiment.reading(runs)) >= 1
    for figure in experiment.plots(runs, none).values():
        figure.savefig(tmp_path / "x.png")


def test_baseline():
    runs = make_runs(
        timed(
            "baseline",
            2.0,
            1.9,
            2.1,
            time_to_first_token_ms=500.0,
            prefill_tokens_per_sec=32.0,
            decode_tokens_per_sec=20.0,
            memory_bandwidth_utilization=0.25,
            copy_bandwidth_gb_per_s=20.0,
            peak_memory_mib=1000.0,
            model_size_mib=513.0,
            warnings="noisy",
        )
    )
    lines = baseline.reading(runs)
    assert len(lines) == 5
    for text, line in zip(
        ("16.00 tokens/s, 62.5 ms/token", "500 ms to the first token (25%", "25% of the measured 20.0 GB/s",
         "1,000 MiB", "baseline: noisy"), lines, strict=True,
    ):  # fmt: skip
        assert text in line
    requests = []
    plots = baseline.plots(runs, lambda run_id, name: requests.append((run_id, name)) or [5.0, 1.0])
    assert list(plots) == ["token_latency"]
    assert requests == [("id-baseline", "token_latency_ms")]


def test_prompt_length():
    # 16 to 64 tokens: 48 more cost 240 - 96 = 144 ms, 3 ms each; prefill 0.24 of 1.2 s.
    short = timed("prompt_16", 1.0, 0.99, 1.01, prompt_tokens_total=16, baseline=True, time_to_first_token_ms=96.0)
    long = timed("prompt_64", 1.2, 1.19, 1.21, prompt_tokens_total=64, time_to_first_token_ms=240.0)
    for row, gap in ((short, 29.0), (long, 30.0)):
        row.update(interval("inter_token_latency_ms", gap, gap - 2, gap + 2))
    lines = prompt_length.reading(make_runs(long, short))
    assert lines == [
        "From 16 to 64 prompt tokens the call takes 1.20x (1.18 to 1.22) the time (1.00 s to 1.20 s).",
        "Each further prompt token costs 3.00 ms of the time to the first token.",
        "Per token, decoding behind the longer prompt takes 1.03x (0.90 to 1.19) the time, no significant difference "
        "(29.0 ms to 30.0 ms).",
        "At 64 prompt tokens the prefill is 20% of the call; a longer answer would make that share smaller.",
    ]
    plots = prompt_length.plots(make_runs(long, short), none)
    assert list(plots) == ["latency", "tokens_per_sec"]
    (line,) = [line for line in plots["latency"].axes[0].get_lines() if line.get_marker() == "o"]
    assert line.get_xydata().tolist() == [[16, 1.0], [64, 1.2]]


def test_one_length_is_not_a_comparison():
    runs = make_runs(timed("prompt_16", 1.0, 0.9, 1.1), run("prompt_64", status="FAILED"))
    assert prompt_length.reading(runs) == [
        "Fewer than two lengths were measured: there is nothing to compare.",
        "1 of 2 scenarios failed: prompt_64.",
    ]


def test_precision():
    reason = "same as float32: float32 (forced on CPU)"
    runs = make_runs(
        timed("float32", 2.0, 1.9, 2.1, baseline=True, model_size_mib=512.0, output_digest="d1"),
        run("float16", outcome="same_as", same_as="float32", reason=reason, dtype="float32 (forced on CPU)"),
        timed("bfloat16", 1.0, 0.9, 1.1, dtype="bfloat16", model_size_mib=256.0, output_digest="d2"),
    )
    lines = precision.reading(runs)
    assert lines[:2] == [
        "Fastest: bfloat16 with 32.00 tokens/s.",
        "bfloat16 against float32: the call takes 0.50x (0.43 to 0.58) the time, the weights take 50% of the memory, "
        "and greedy decoding gives other tokens.",
    ]
    (axes,) = precision.plots(runs, none)["tokens_per_sec"].axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["float32", "bfloat16"]


def test_precision_without_its_baseline_names_no_other_run_as_baseline():
    """Others are compared with the first measured run, by its name."""
    runs = make_runs(
        run("float32", status="FAILED", baseline=True),
        timed("bfloat16", 1.0, 0.9, 1.1, dtype="bfloat16", model_size_mib=256.0, output_digest="d2"),
    )
    assert precision.reading(runs)[0] == "Fastest: bfloat16 with 32.00 tokens/s."
    assert not any("float32:" in line for line in precision.reading(runs))


SCORED = {
    "protocol": "documents",
    "corpus": "builtin",
    "corpus_digest": "abc",
    "max_length": 512,
    "tokens_scored": 6132.0,
    "documents_scored": 12.0,
    "tokens_truncated": 1000.0,
    "score_tokens_per_sec": 350.4,
    "bits_per_byte": 1.0161,
}


def test_perplexity():
    runs = make_runs(
        run("perplexity_float32", baseline=True, loss=2.9308, perplexity=20.0, **SCORED),
        run("perplexity_bfloat16", dtype="bfloat16", loss=2.9357, perplexity=20.1, **SCORED),
    )
    lines = perplexity.reading(runs)
    assert lines[0].endswith("in float32: loss 2.9308 nats per token, perplexity 20.000, 1.0161 bits per byte.")
    for part in ("protocol documents", "corpus builtin (abc)", "at most 512 tokens", "not comparable"):
        assert part in lines[1]
    assert "Scored 6,132 tokens of 12 documents, 1,000 tokens were cut, at 350 tokens/s." in lines[2]
    assert lines[3] == "bfloat16: perplexity +0.5 % against float32."
    plots = perplexity.plots(runs, lambda run_id, name: [3.0, 2.0])
    assert set(plots) == {"batch_loss_perplexity_float32", "batch_loss_perplexity_bfloat16"}
    (axes,) = plots["batch_loss_perplexity_float32"].axes
    assert "2.9308" in axes.get_title(loc="left")


NOISY = "noisy: repeats vary by 72% (coefficient of variation): close other programs or raise repeats"
DRIFTED = (
    "drift: the last repeats took 31% more time than the first: check the cooling and the clock speed, or raise warmup"
)
BUSY = "the machine was busy: other programs took 82% of its CPU time: close them and measure again"


def of_dtypes(*warnings):
    """Return two runs with these warnings, of which float32 is the faster."""
    weights = {"workload_id": "w", "environment_id": "e", "model_size_mib": 100.0}
    return make_runs(
        *(
            timed(dtype, seconds, 0.99 * seconds, 1.01 * seconds, dtype=dtype, warnings=line, **weights)
            for dtype, seconds, line in zip(("float32", "bfloat16"), (1.0, 2.0), warnings, strict=True)
        )
    )


@pytest.mark.parametrize(
    ("warning", "prefix"),
    [
        (NOISY, "varied by 72%"),
        (DRIFTED, "drifted by 31%"),
        (BUSY, "others took 82% of the CPU"),
        (f"random weights\n{NOISY}", "varied by 72%"),
    ],
)
def test_the_headline_begins_with_the_disturbance_of_its_run(warning, prefix):
    first, second, *_ = precision.reading(of_dtypes(warning, None))
    assert first == f"Fastest: float32 (in doubt: {prefix}) with 32.00 tokens/s."
    assert f"takes 2.00x (1.96 to 2.04) the time, in doubt: float32 {prefix}, the weights" in second


def test_no_ranking_is_claimed_if_all_runs_were_disturbed():
    first, second, *_ = precision.reading(of_dtypes(NOISY, DRIFTED))
    assert first == (
        "Which precision is fastest is inconclusive: both were disturbed (float32: varied by 72%; bfloat16: drifted by 31%); "
        "to settle it run, on a quiet machine: llmtrack run precision"
    )
    assert "in doubt: float32 varied by 72%, bfloat16 drifted by 31%" in second


def test_other_warnings_are_not_called_a_disturbance():
    first, *_ = precision.reading(of_dtypes("random weights: quality is meaningless", None))
    assert first == "Fastest: float32 with 32.00 tokens/s."


def test_each_sentence_about_a_disturbed_run_says_so():
    lines = baseline.reading(
        make_runs(
            timed(
                "baseline",
                2.0,
                1.9,
                2.1,
                warnings=NOISY,
                time_to_first_token_ms=500.0,
                prefill_tokens_per_sec=32.0,
                decode_tokens_per_sec=20.0,
                memory_bandwidth_utilization=0.25,
                copy_bandwidth_gb_per_s=40.0,
                decode_floor_share=0.25,
                decode_floor_ms=5.0,
                decode_bound="memory",
            )
        )
    )
    of_speed = [line for line in lines if not line.startswith(("Peak memory", "Warning"))]
    assert len(of_speed) == 4
    assert all("(in doubt: varied by 72%)" in line for line in of_speed)


@pytest.mark.parametrize("lengths", [(), (16,), (16, 16), (16, 16, 16)])
def test_a_single_length_cannot_be_compared(lengths):
    runs = make_runs(
        *(
            run(f"p{n}", prompt_tokens_total=tokens, total_latency_s=1.0, time_to_first_token_ms=10.0)
            for n, tokens in enumerate(lengths)
        ),
        run("failed", status="FAILED", failure="load", reason="gone"),
    )
    assert prompt_length.reading(runs)[0].startswith("Fewer than two lengths were measured")


@pytest.mark.parametrize(
    ("after", "words", "helped"),
    [
        (18.0, "lower: -10 %", True),
        (19.99, "no difference beyond 0.1 %", False),
        (20.01, "no difference beyond 0.1 %", False),
        (22.0, "higher: +10 %", False),
    ],
)
def test_before_and_after_are_compared_like_any_two_perplexities(after, words, helped):
    figures = dict.fromkeys(("steps_done", "tokens_trained", "train_seconds", "train_tokens_per_sec"), 10.0)
    trained = run(
        "train", loss_before=3.0, perplexity_before=20.0, perplexity=after, best_step=5.0, tokens_scored=100.0,
        train_loss=2.9, corpus="builtin", split="document", max_length=64, **figures,
    )  # fmt: skip
    lines = training.reading(make_runs(trained))
    assert f"20.000 before, {after:.3f} after ({words})" in lines[0]
    assert any(line.startswith("Training did not help") for line in lines) is not helped


def tuned(name, speed, n, price, **values):
    """Return a candidate of a search, in n repeats."""
    figures = interval("decode_tokens_per_sec", speed, 0.99 * speed, 1.01 * speed, n) | {tune.PRICE: price}
    return run(name, tuned_for="decode_tokens_per_sec", **figures, **values)


@pytest.mark.parametrize(
    ("speed", "n", "words"),
    [
        (50.0, 5, "torch-float32, onnx-int8."),
        (
            99.0,
            1,
            "torch-float32; whether onnx-int8 is too, is inconclusive against threads_1 (decode_tokens_per_sec: too",
        ),
        (
            200.0,
            5,
            "torch-float32, threads_1; onnx-int8 is not, as threads_1 is better in one and not significantly worse",
        ),
    ],
)
def test_what_keeps_the_answer_of_a_search_off_the_front_is_named(speed, n, words):
    lines = tune.reading(
        make_runs(
            tuned("torch-float32", 10.0, 5, 1.0, baseline=True),
            tuned("onnx-int8", 100.0, 5, 1.05, race_place="winner"),
            tuned("threads_1", speed, n, 1.05, race_place="dropped"),
        )
    )
    (line,) = [line for line in lines if line.startswith("On the front")]
    assert line.startswith(f"On the front of decode_tokens_per_sec and perplexity: {words}")
