"""Plots show the medians and error bars as long as the intervals are."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex

from llmtrack.report.plots import COLOR, OTHER, bar_plot, line_plot, measured, step_plot
from tests.report.frames import frame, interval, run

RUNS = frame(
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
    return [tuple(float(y) for _, y in each) for each in lines.get_segments()]


def test_only_what_was_measured_is_drawn():
    assert list(measured(RUNS, "tokens_per_sec")["scenario"]) == ["b", "a"]
    assert measured(RUNS, "perplexity").empty
    assert measured(RUNS, "no_such_metric").empty


def line(runs):
    return line_plot(
        runs, "prompt_tokens_total", "tokens_per_sec", title="T", x_label="X", y_label="Y", log_x=True
    )


def test_a_line_with_intervals():
    (axes,) = line(RUNS).axes
    (drawn,) = [each for each in axes.get_lines() if each.get_marker() == "o"]
    assert [(float(x), float(y)) for x, y in drawn.get_xydata()] == [(16, 10), (64, 8)]
    assert segments(axes) == [(9.0, 10.25), (7.5, 9.5)]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["16", "64"]
    assert axes.get_ylim()[0] == 0
    assert (axes.get_xlabel(), axes.get_ylabel(), axes.get_title(loc="left")) == ("X", "Y", "T")


def test_bars_with_intervals_values_and_a_grey_baseline():
    (axes,) = bar_plot(RUNS, "dtype", "tokens_per_sec", title="T").axes
    assert axes.get_ylabel() == "tokens/s", "the metric's unit, where nothing else is said"
    (bars,) = [c for c in axes.containers if type(c).__name__ == "BarContainer"]
    assert [bar.get_height() for bar in bars] == [8.0, 10.0]
    assert segments(axes) == [(7.5, 9.5), (9.0, 10.25)]
    assert [to_hex(bar.get_facecolor()) for bar in bars] == [COLOR, OTHER]
    assert {"8", "10"} <= {text.get_text() for text in axes.texts}
    assert [label.get_text() for label in axes.get_xticklabels()] == ["bfloat16", "float32"]


def test_without_intervals_there_are_no_error_bars():
    runs = frame(run("a", tokens_per_sec=10.0, prompt_tokens_total=16))
    (axes,) = line(runs).axes
    (bars,) = axes.containers
    assert not bars.has_yerr


def test_a_run_without_an_interval_among_others_has_a_bar_of_no_length():
    runs = frame(
        run("a", prompt_tokens_total=1, tokens_per_sec=5.0),
        run("b", prompt_tokens_total=2, **interval("tokens_per_sec", 4.0, 3.0, 6.0)),
    )
    assert segments(line(runs).axes[0]) == [(5.0, 5.0), (3.0, 6.0)]


def test_two_runs_of_one_label_are_two_bars():
    """Two fallbacks to one dtype, or two models in one dtype: neither hides behind the other."""
    runs = frame(run("a", tokens_per_sec=10.0), run("b", tokens_per_sec=4.0))
    (axes,) = bar_plot(runs, "dtype", "tokens_per_sec", title="T", y_label="Y").axes
    assert len({round(bar.get_x(), 3) for bar in axes.patches}) == 2


@pytest.mark.parametrize("runs", [frame(run("a", status="FAILED")), frame()])
def test_nothing_measured_is_an_empty_picture(runs, tmp_path):
    for figure in (line(runs), bar_plot(runs, "dtype", "tokens_per_sec", title="T", y_label="Y")):
        figure.savefig(tmp_path / "empty.png")


def test_steps_count_from_one():
    (axes,) = step_plot([3.0, 1.0, 2.0], title="T", x_label="step", y_label="ms").axes
    assert axes.get_lines()[0].get_xydata().tolist() == [[1, 3], [2, 1], [3, 2]]
