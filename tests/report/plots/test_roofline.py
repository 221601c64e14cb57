"""The roofline plot, for hand-computed numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest

from llmtrack.report.plots.roofline import points, roofline_plots, roofs
from llmtrack.report.sentences import reading
from tests.report.artificial_runs import make_runs, run

GPU = {
    "device": "cuda:0",
    "env.gpu": "H100",
    "arithmetic": "bfloat16",
    "copy_bandwidth_gb_per_s": 3000.0,
    "matrix_tflop_per_s": 750.0,
}


def stage(name, mib, gflop, floor_ms, share, bound="memory"):
    values = {"mib": mib, "gflop": gflop, "floor_ms": floor_ms, "floor_share": share, "bound": bound}
    return {f"{name}_{key}": value for key, value in values.items()}


# 2 GiB in 1 ms at 12 %: 2 GFLOP in 8.33 ms.
ONE = run(
    "one",
    **GPU,
    **stage("decode", 2048.0, 2.0, 1.0, 0.12),
    **stage("prefill", 2048.0, 2e4, 26.7, 0.5, "arithmetic"),
)


def test_a_point_has_the_stages_intensity_and_rate():
    prefill, decode = points(make_runs(ONE))
    assert (decode.run, decode.stage) == ("one", "decode")
    assert decode.intensity == pytest.approx(2e9 / 2**31)
    assert decode.rate == pytest.approx(2e9 / (0.001 / 0.12))
    assert decode.share == 0.12
    assert prefill.rate == pytest.approx(2e13 / (0.0267 / 0.5))


def test_a_roofline_is_the_highest_measured_per_device_and_arithmetic():
    other = {**ONE, "copy_bandwidth_gb_per_s": 3100.0, "matrix_tflop_per_s": 700.0}
    full = {**ONE, "arithmetic": "float32", "matrix_tflop_per_s": 50.0}
    first, second = roofs(make_runs(ONE, other, full))
    assert (first.name, first.bandwidth, first.rate) == ("bfloat16 on H100", 3.1e12, 7.5e14)
    assert (second.name, second.rate) == ("float32 on H100", 5e13)
    assert first.ridge == pytest.approx(7.5e14 / 3.1e12)


@pytest.mark.parametrize("runs", [
    (run("no ceilings", **stage("decode", 1.0, 1.0, 1.0, 0.5)),),
    (run("no stage", **GPU),),
    ({**ONE, "status": "FAILED"},),
])  # fmt: skip
def test_runs_without_a_roofline_are_not_drawn(runs):
    assert roofline_plots(make_runs(*runs)) == {}


@pytest.mark.slow(1)
def test_a_share_has_two_significant_digits():
    shares = {0.0004: "0.0%", 0.004: "0.4%", 0.0994: "9.9%", 0.0996: "10%", 0.62: "62%"}
    runs = make_runs(*(run(str(share), **GPU, **stage("decode", 2048.0, 2.0, 1.0, share)) for share in shares))
    (figure,) = roofline_plots(runs).values()
    assert {f"{share} {text}" for share, text in shares.items()} <= {text.get_text() for text in figure.axes[0].texts}


@pytest.mark.slow(1)
def test_the_plot_has_a_line_per_roofline_and_a_marker_per_stage():
    full = {**ONE, "scenario": "two", "arithmetic": "float32", "matrix_tflop_per_s": 50.0}
    figure = roofline_plots(make_runs(ONE, full))["roofline"]
    (axes,) = figure.axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == [
        "750 TFLOP/s, 3 TB/s: bfloat16 on H100",
        "50 TFLOP/s, 3 TB/s: float32 on H100",
        "prefill",
        "decode",
    ]
    assert {text.get_text() for text in axes.texts} - {""} == {"one 50%", "one 12%", "two 50%", "two 12%"}
    assert axes.get_ylabel() == "rate of computing (TFLOP/s)"
    figure.draw_without_rendering()
    assert axes.get_legend().get_window_extent().y1 < axes.get_window_extent().y0, "it lies on no point"
    for axis in (axes.xaxis, axes.yaxis):
        assert {"1", "2", "5"} <= {text.get_text() for text in axis.get_ticklabels()}, "plain numbers"


@pytest.mark.slow(1)
def test_no_two_numbers_of_an_axis_overlap():
    wide = {**ONE, **stage("score", 10.0, 1.5e5, 200.0, 0.5, "arithmetic")}
    figure = roofline_plots(make_runs(wide))["roofline"]
    figure.draw_without_rendering()
    (axes,) = figure.axes
    for axis, side in ((axes.xaxis, "x"), (axes.yaxis, "y")):
        low, high = axis.get_view_interval()
        ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        boxes = sorted((tick.label1.get_window_extent() for tick in ticks), key=lambda box: getattr(box, f"{side}0"))
        assert len(boxes) > 2
        assert all(getattr(a, f"{side}1") < getattr(b, f"{side}0") for a, b in pairwise(boxes)), side


def test_the_reading_names_the_bound_and_attributes_the_rest_to_overhead():
    prefill, decode = reading.roofline(make_runs(ONE)[0])
    assert prefill == "Prefill takes 2.0 times its floor of 26.7 ms, which arithmetic sets."
    assert decode.startswith(
        "Decoding takes 8.3 times its floor of 1 ms/token, which memory sets: the rest is overhead"
    )
    assert reading.roofline(make_runs(run("plain"))[0]) == []
