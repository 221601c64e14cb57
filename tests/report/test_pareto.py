"""The Pareto front as a table and a plot."""

from __future__ import annotations

import pytest

from llmtrack.decide.candidates import gather_candidates
from llmtrack.decide.pareto import pareto_front
from llmtrack.report.pareto import pareto_plot, pareto_table
from tests.report.artificial_runs import make_runs, repeated, run


@pytest.mark.slow(1)
def test_the_answer_has_a_ring_wherever_it_is():
    runs = make_runs(
        repeated("plain", 10.0, 20.0, n=8), repeated("int8", 20.0, 20.0, n=8), repeated("slow", 5.0, 21.0, n=8)
    )
    for answer in runs:
        figure = pareto_plot(gather_candidates(runs), "tokens_per_sec", "perplexity", answer.run_id)
        (ring,) = figure.axes[0].collections[1].get_offsets()
        assert tuple(ring) == (answer.metrics["tokens_per_sec"], answer.metrics["perplexity"])
        assert "Ring: the answer." in figure.get_supxlabel()
    plain = pareto_plot(gather_candidates(runs), "tokens_per_sec", "perplexity")
    assert len(plain.axes[0].collections) == 1
    assert "Ring" not in plain.get_supxlabel()


@pytest.mark.slow(1)
def test_a_plot_leaves_out_what_all_names_end_with():
    runs = make_runs(repeated("onnx-int8-threads-2", 20.0, 20.0, n=8), repeated("torch-threads-2", 10.0, 20.0, n=8))
    axes = pareto_plot(gather_candidates(runs), "tokens_per_sec", "perplexity").axes[0]
    assert {text.get_text() for text in axes.texts} == {"onnx-int8", "torch"}


def test_the_plot_joins_the_front():
    runs = make_runs(
        repeated("a", 10.0, 20.0, peak_memory_mib=100.0),
        repeated("b", 20.0, 21.0, peak_memory_mib=50.0),
        repeated("c", 15.0, 22.0, peak_memory_mib=400.0),
    )
    figure = pareto_plot(gather_candidates(runs), "tokens_per_sec", "perplexity")
    (axes,) = figure.axes
    (line,) = axes.lines
    assert list(line.get_xdata()) == [10.0, 20.0]
    note = figure.get_supxlabel().replace("\n", " ")
    assert "The line joins the front. Grey: another is better in one and not significantly worse in the other." in note
    assert {text.get_text() for text in axes.texts} - {""} == {"a", "b", "c"}
    assert "50 to 400 MiB" in note
    assert axes.get_xlabel() == "throughput (tokens/s), more is better"


def test_the_warnings_of_the_runs_on_the_front_are_said_with_it():
    runs = make_runs(
        repeated("slow", 5.0, 30.0, warnings="off the front"),
        repeated("fast", 10.0, 20.0, warnings="the machine was busy"),
    )
    table = pareto_table(gather_candidates(runs), ("tokens_per_sec", "perplexity"))
    assert table.notes == ("read with care: fast: the machine was busy",)


def test_the_front_in_the_table_has_the_places_of_the_picture():
    rows = [
        run(
            f"a{n}",
            workload_id="w",
            environment_id="e",
            tokens_per_sec=n + 1.0,
            perplexity=20.0,
            quantization=f"q{n}",
        )
        for n in range(3)
    ]
    points = gather_candidates(make_runs(*rows))
    table = pareto_table(points, ("tokens_per_sec", "perplexity"))
    places = [standing.why for standing in pareto_front(points.runs, ("tokens_per_sec", "perplexity"))]
    assert sorted(row[-1] for row in table.rows) == sorted(places)
