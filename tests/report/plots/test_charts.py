"""Plots show medians, with error bars of the length of the intervals."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex

from llmtrack.host.formatting import significant
from llmtrack.report.plots.charts import axis_label, bar_plot, line_plot, scatter_plot, step_plot
from llmtrack.report.plots.drawing import BASELINE, COLOR
from tests.report.artificial_runs import column, interval, make_runs, replace_values, run

RUNS = make_runs(
    run(
        "b",
        baseline=False,
        dtype="bfloat16",
        prompt_tokens_total=64,
        **interval("tokens_per_sec", 8.0, 7.5, 9.5),
    ),
    run(
        "a",
        baseline=True,
        dtype="float32",
        prompt_tokens_total=16,
        **interval("tokens_per_sec", 10.0, 9.0, 10.25),
    ),
    run("c", status="FAILED", prompt_tokens_total=256),
    run("d", outcome="same_as", prompt_tokens_total=16),
)


def segments(axes):
    """The low and high end of each error bar."""
    (bars,) = [c for c in axes.containers if type(c).__name__ == "ErrorbarContainer"]
    (lines,) = bars.lines[2]
    return [tuple(float(y) for _, y in segment) for segment in lines.get_segments()]


def test_only_measured_runs_are_drawn():
    assert list(column(RUNS.measured("tokens_per_sec"), "scenario")) == ["b", "a"]
    assert not RUNS.measured("perplexity")
    assert not RUNS.measured("no_such_metric")


def line(runs):
    return line_plot(runs, "prompt_tokens_total", "tokens_per_sec", title="T", x_label="X", y_label="Y", log_x=True)


def test_a_line_with_intervals():
    (axes,) = line(RUNS).axes
    (drawn,) = [curve for curve in axes.get_lines() if curve.get_marker() == "o"]
    assert [(float(x), float(y)) for x, y in drawn.get_xydata()] == [(16, 10), (64, 8)]
    assert segments(axes) == [(9.0, 10.25), (7.5, 9.5)]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "64"]
    assert axes.get_ylim()[0] == 0
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title(loc="left")) == ("X", "Y", "T")


def test_bars_have_intervals_values_and_a_colored_baseline():
    (axes,) = bar_plot(RUNS, "dtype", "tokens_per_sec", title="T").axes
    assert axes.get_ylabel() == "throughput (tokens/s)", "the metric's name and unit, where nothing else is said"
    (bars,) = [c for c in axes.containers if type(c).__name__ == "BarContainer"]
    assert [bar.get_height() for bar in bars] == [8.0, 10.0]
    assert segments(axes) == [(7.5, 9.5), (9.0, 10.25)]
    assert [to_hex(bar.get_facecolor()) for bar in bars] == [COLOR, BASELINE]
    assert {"8", "10"} <= {text.get_text() for text in axes.texts}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["bfloat16", "float32"]


def test_without_intervals_there_are_no_error_bars():
    runs = make_runs(run("a", tokens_per_sec=10.0, prompt_tokens_total=16))
    (axes,) = line(runs).axes
    (bars,) = axes.containers
    assert not bars.has_yerr


SINGLE = interval("tokens_per_sec", 5.0, 5.0, 5.0, n=1)


@pytest.mark.parametrize("other", [{"tokens_per_sec": 5.0}, SINGLE])
@pytest.mark.parametrize("draw", [line, lambda runs: bar_plot(runs, "scenario", "tokens_per_sec", title="T")])
def test_a_run_without_an_interval_among_others_has_no_whiskers(draw, other):
    runs = make_runs(
        run("a", prompt_tokens_total=1, **other),
        run("b", prompt_tokens_total=2, **interval("tokens_per_sec", 4.0, 3.0, 6.0)),
    )
    figure = draw(runs)
    assert list(filter(None, segments(figure.axes[0]))) == [(3.0, 6.0)]
    assert ("A mark without whiskers is a single repeat." in " ".join(figure.get_supxlabel().split())) == (
        other is SINGLE
    )


@pytest.mark.parametrize("draw", [line, lambda runs: bar_plot(runs, "scenario", "tokens_per_sec", title="T")])
def test_single_repeats_alone_have_no_whiskers(draw):
    """A whisker of zero length would suggest an exact value."""
    figure = draw(make_runs(run("a", **SINGLE), run("b", prompt_tokens_total=2, **SINGLE)))
    assert "whiskers" not in figure.get_supxlabel()
    assert not any(bars.has_yerr for bars in figure.axes[0].containers if hasattr(bars, "has_yerr"))


def test_runs_with_the_same_label_are_separate_bars():
    """Such as two fallbacks to one dtype, or two models in one dtype."""
    runs = make_runs(run("a", tokens_per_sec=10.0), run("b", tokens_per_sec=4.0))
    (axes,) = bar_plot(runs, "dtype", "tokens_per_sec", title="T", y_label="Y").axes
    assert len({round(bar.get_x(), 3) for bar in axes.patches}) == 2


@pytest.mark.parametrize("runs", [make_runs(run("a", status="FAILED")), make_runs()])
def test_without_measured_runs_the_plot_is_empty(runs, tmp_path):
    for figure in (line(runs), bar_plot(runs, "dtype", "tokens_per_sec", title="T", y_label="Y")):
        figure.savefig(tmp_path / "empty.png")


def test_steps_count_from_one():
    (axes,) = step_plot([3.0, 1.0, 2.0], title="T", x_label="step", y_label="ms").axes
    assert axes.get_lines()[0].get_xydata().tolist() == [[1, 3], [2, 1], [3, 2]]


def named(*values, metric="tokens_per_sec"):
    return make_runs(
        *(
            run(f"s{n}", baseline=n == 0, perplexity=20.0 + n, **interval(metric, value, value - 1, value + 1))
            for n, value in enumerate(values)
        )
    )


@pytest.mark.slow(1)
def test_whiskers_and_the_color_of_the_baseline_are_explained_if_drawn():
    bars = bar_plot(named(8.0, 10.0), "scenario", "tokens_per_sec", title="T").get_supxlabel()
    assert "95 % intervals" in bars
    assert "Amber: the baseline." in bars
    one = make_runs(run("a", tokens_per_sec=8.0))
    assert bar_plot(one, "scenario", "tokens_per_sec", title="T").get_supxlabel() == ""


@pytest.mark.slow(1)
def test_a_tiny_difference_does_not_fill_a_plot():
    """Perplexities of 20 and 20.1, 0.5 % apart, take a tenth of an axis of 5 %; 20 and 22 take theirs."""
    runs = make_runs(*(run(f"s{n}", tokens_per_sec=5.0 + n, perplexity=value) for n, value in enumerate((20.0, 20.1))))
    figure = scatter_plot(runs, "tokens_per_sec", "perplexity", title="T", x_label="X", y_label="Y")
    assert figure.axes[0].get_ylim() == pytest.approx((20.05 * 0.975, 20.05 * 1.025))
    runs = replace_values(runs, perplexity=[20.0, 22.0])
    figure = scatter_plot(runs, "tokens_per_sec", "perplexity", title="T", x_label="X", y_label="Y")
    assert figure.axes[0].get_ylim()[1] < 22.5


@pytest.mark.parametrize(
    ("metric", "label"),
    [
        ("total_latency_s", "total latency (s)"),
        ("time_to_first_token_ms", "time to first token (ms)"),
        ("decode_tokens_per_sec", "decode throughput (tokens/s)"),
        ("peak_memory_mib", "peak memory (MiB)"),
        ("perplexity", "perplexity"),
    ],
)
def test_an_axis_has_a_name_and_a_unit(metric, label):
    assert axis_label(metric) == label


@pytest.mark.slow(1)
def test_a_long_title_is_wrapped_and_not_clipped():
    title = step_plot([1.0, 2.0], title="word " * 40, x_label="X", y_label="Y").axes[0].get_title(loc="left")
    assert max(map(len, title.splitlines())) <= 78


def test_large_figures_have_no_exponent():
    assert [significant(value) for value in (12345.6, 9999.6, 9999.4, 1234.56, 0.012345, -54321)] == [
        "12,346", "10,000", "9,999", "1,235", "0.01235", "-54,321",
    ]  # fmt: skip
    (axes,) = bar_plot(named(2018.4, 12.345), "scenario", "tokens_per_sec", title="T").axes
    assert {text.get_text() for text in axes.texts} == {"2,018", "12.3"}


def test_an_axis_from_zero_has_room_above_the_highest_mark():
    runs = make_runs(
        *(run(f"p{n}", prompt_tokens_total=n, tokens_per_sec=value) for n, value in ((1, 100.0), (2, 109.0)))
    )
    (lines,) = line(runs).axes
    (steps,) = step_plot([5.9, 3.6], title="T", x_label="X", y_label="Y", from_zero=True).axes
    assert lines.get_ylim() == pytest.approx((0, 1.06 * 109))
    assert steps.get_ylim() == pytest.approx((0, 1.06 * 5.9))


def test_ticks_of_large_figures_have_separators():
    runs = make_runs(*(run(f"s{n}", tokens_per_sec=40_000.0 + 3000 * n, perplexity=20.0 + n) for n in range(3)))
    figure = scatter_plot(runs, "tokens_per_sec", "perplexity", title="T", x_label="X", y_label="Y")
    figure.draw_without_rendering()
    (axes,) = figure.axes
    assert "42,000" in [tick.get_text() for tick in axes.get_xticklabels()]
    assert not any("," in tick.get_text() for tick in axes.get_yticklabels())
