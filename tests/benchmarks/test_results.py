"""The format that all benchmarks share: goals, rounds, JSON, and the page that is made of it."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from benchmarks import page, results
from benchmarks.results import Found, Goal, Result, benchmark, estimate, load, rounds, row, section, table
from llmtrack.outcome import Summary


def summary(median: float, low: float, high: float) -> Summary:
    return Summary(n=5, median=median, ci_low=low, ci_high=high, mean=median)


@pytest.mark.parametrize(
    ("goal", "found", "verdict"),
    [
        (Goal(most=50), (-47.0, -60.0, -30.0), "met"),
        (Goal(most=0.5), (0.4, 0.3, 0.45), "met"),
        (Goal(most=0.5), (0.4, 0.3, 0.55), "met within doubt"),
        (Goal(most=0.5), (0.6, 0.4, 0.7), "missed within doubt"),
        (Goal(least=1.7), (1.5, 1.4, 1.6), "missed"),
        (Goal(0.99, 1.01, width=0.01), (1.002, 0.998, 1.004), "met"),
        (Goal(0.99, 1.01, width=0.01), (1.002, 0.98, 1.02), "missed: the interval is too wide"),
    ],
)
def test_a_goal_is_met_by_the_median_and_doubted_where_part_of_the_interval_says_otherwise(
    goal, found, verdict
):
    assert goal.verdict(summary(*found)) == verdict


def test_a_goal_says_its_bounds():
    assert str(Goal(0.99, 1.01, width=0.01)) == "≥ 0.99, ≤ 1.01, interval ≤ 1%"


def test_the_arms_of_a_round_take_turns_at_being_first():
    called = []

    def arm(name, value):
        return lambda: called.append(name) or {"s": value}

    samples = rounds({"a": arm("a", 1.0), "b": arm("b", 2.0), "c": arm("c", 3.0)}, 3)
    assert "".join(called) == "abcbcacab"
    assert samples == {"a": {"s": [1.0] * 3}, "b": {"s": [2.0] * 3}, "c": {"s": [3.0] * 3}}


def test_each_arm_waits_until_the_threads_of_the_one_before_rest(monkeypatch):
    seen = []
    monkeypatch.setattr(results.time, "sleep", lambda seconds: seen.append(("rest", seconds)))
    rounds({name: lambda name=name: seen.append(name) or {"s": 1.0} for name in "ab"}, 1, settle=0.2)
    assert seen == [("rest", 0.2), "a", ("rest", 0.2), "b"]


def test_rounds_end_when_there_is_enough():
    samples = rounds({"a": lambda: {"s": 1.0}}, 9, enough=lambda found: len(found["a"]["s"]) == 4)
    assert samples["a"]["s"] == [1.0] * 4


def test_a_ratio_is_that_of_each_round_and_not_of_the_medians():
    found = row("time", "s", [1.0, 9.0, 3.0], [2.0, 3.0, 6.0], peer="theirs", goal=Goal(most=0.5))
    assert found.ours.median == 3.0
    assert found.ratio.median == 0.5  # of 0.5, 3 and 0.5
    assert found.verdict == "met within doubt"


def test_a_goal_without_a_peer_is_of_our_own_figure():
    found = row("wall time", "s", [2.0, 2.0], goal=Goal(most=3))
    assert (found.ratio, found.verdict) == (None, "met")


def test_the_reason_is_kept_only_where_a_goal_is_missed():
    assert row("x", "", [2.0], goal=Goal(most=3), why="too slow").why == ""
    assert row("x", "", [4.0], goal=Goal(most=3), why="too slow").why == "too slow"


def test_a_figure_whose_interval_is_known_stands_beside_its_goal():
    found = estimate("cost", "%", 1.5, (1.0, 2.5), where="here", goal=Goal(most=2))
    assert (found.goal, found.verdict, found.where) == ("≤ 2", "met within doubt", "here")
    assert "1.500 [1.000, 2.500] %" in table([found])
    assert "| 1.500 % |" in table([estimate("cost", "%", 1.5)])


@pytest.fixture
def kept(tmp_path):
    """A result, made by a command as each benchmark is one."""

    def measure(small: bool) -> Found:
        return Found(
            (row("time", "s", [1.0, 1.25], [2.0, 2.5], peer="theirs"),),
            ("another: not installed",),
            ("A note.",),
        )

    path = tmp_path / "made.json"
    done = CliRunner().invoke(
        benchmark("Made up")(measure), ["--small", "--json", str(path)], catch_exceptions=False
    )
    assert done.exit_code == 0
    return path


def test_a_result_is_read_back_as_it_was_written(kept):
    found = load(kept)
    assert isinstance(found, Result)
    assert (found.title, found.small) == ("Made up", True)
    assert found.machine["version.torch"]
    assert found.found.rows[0].ratio.median == 0.5
    assert found.found.left_out == ("another: not installed",)


def test_a_row_tells_both_sides_with_their_intervals(kept):
    assert table(load(kept).found.rows).splitlines()[-1] == (
        "| time |  | 1.125 [1.000, 1.250] s | theirs: 2.250 [2.000, 2.500] s | 0.5000 [0.5000, 0.5000] |  |  |"
    )


def test_what_was_left_out_and_that_it_was_a_trial_are_said(kept):
    text = section(load(kept))
    assert "- A note.\n- Left out: another: not installed" in text
    assert "A trial: these figures say nothing." in text


def test_a_page_is_made_between_its_markers_and_keeps_the_rest(kept):
    found = {"made": load(kept)}
    given = "\n".join(
        f"{word}\n<!-- made by `make bench`: {name} -->\nold\n<!-- end -->"
        for word, name in [("before", "made"), ("between", "absent"), ("after", "machine")]
    )
    text = page.filled(given + "\n", found)
    assert text.count("old") == 1  # of the result that is not there
    assert "0.5000 [0.5000, 0.5000]" in text
    assert "| version.torch |" in text
    assert page.filled(text, found) == text


def test_a_part_that_was_never_measured_says_so():
    empty = "<!-- made by `make bench`: absent -->\n<!-- end -->\n"
    text = page.filled(empty, {})
    assert "Not measured yet: `python -m benchmarks absent`." in text
    assert page.filled(text, {}) == text


def test_the_page_is_what_the_kept_results_make_of_it():
    text = page.PAGE.read_text(encoding="utf-8")
    found = page.results()
    assert not [name for name, result in found.items() if result.small]
    assert page.filled(text, found) == text, "run python -m benchmarks.page"


def test_each_kept_result_has_its_place_on_the_page():
    text = page.PAGE.read_text(encoding="utf-8")
    for name in page.results():
        assert f"<!-- made by `make bench`: {name} -->" in text


def test_a_kept_result_is_small():
    for path in Path(page.RESULTS).glob("*.json"):
        assert path.stat().st_size < 100_000
        json.loads(path.read_text(encoding="utf-8"))


def test_a_benchmark_is_given_options_of_its_own_and_its_command_names_no_folder_of_this_machine(tmp_path):
    given = []

    def measure(small: bool, model: str | None, text: str) -> Found:
        given.append((small, model, text))
        return Found()

    options = (click.option("--model"), click.option("--text", default="builtin"))
    arguments = ["--model", str(tmp_path / "mine"), "--json", str(tmp_path / "found.json")]
    CliRunner().invoke(benchmark("t", *options)(measure), arguments, catch_exceptions=False)
    assert given == [(False, str(tmp_path / "mine"), "builtin")]
    assert load(tmp_path / "found.json").command.endswith(" --model mine --text builtin")
