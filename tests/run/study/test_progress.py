"""Progress: the estimated remaining time, and the display on a terminal and in a log."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from llmtrack.host.formatting import clock_text
from llmtrack.run.study.progress import StudyProgress, SuiteProgress, seconds_left, time_text
from llmtrack.spec.events import Progress


class FakeTime:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def printed(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def log() -> Console:
    return Console(file=io.StringIO(), width=300, highlight=False)


def terminal() -> Console:
    return Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None, highlight=False)


@pytest.mark.parametrize(
    ("elapsed", "finished", "total", "left"),
    [
        (30.0, 3, 9, 60.0),
        (30.0, 1.5, 9, 150.0),
        (30.0, 9, 9, 0.0),
        (30.0, 10, 9, 0.0),
        (30.0, 0, 9, None),
        (0.0, 0, 0, None),
    ],
)
def test_seconds_left(elapsed, finished, total, left):
    assert seconds_left(elapsed, finished, total) == left


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0:00"), (5.4, "0:05"), (59.6, "1:00"), (754, "12:34"), (3599.9, "1:00:00"), (3723, "1:02:03")],
)
def test_clock_text(seconds, text):
    assert clock_text(seconds) == text


def test_time_text():
    assert time_text(34, 110) == "0:34, about 1:50 left"
    assert time_text(34, None) == "0:34"


def test_a_log_has_plain_lines_and_no_bar():
    console = log()
    with StudyProgress(console, 2) as progress:
        progress.step(Progress("one", "repeat 1"))
        progress.ended("one", "  one: 1 s [bold]")
        progress.warn("busy")
        progress.warn("busy")
    assert printed(console) == "  one: 1 s [bold]\n    warning: busy\n"


def test_a_terminal_shows_the_scenario_the_step_and_the_time_left():
    console, now = terminal(), FakeTime()
    with StudyProgress(console, 4, clock=now) as progress:
        progress.step(Progress("one", "repeat [1]"))
        now.now += 10
        progress.ended("one", "  one: 1 s")
        progress.step(Progress("two", "batch 1/2", 0.5))
        assert progress.times == "0:10, about 0:17 left"
        progress._bar.refresh()
    shown = printed(console)
    assert "  one: 1 s\n" in shown
    assert "scenario 2/4" in shown
    assert "0:10, about 0:17 left" in shown
    assert "two: batch 1/2" in shown


def test_the_share_of_a_running_scenario_counts():
    now = FakeTime()
    progress = StudyProgress(log(), 2, clock=now)
    now.now += 10
    assert progress.times == "0:10"
    progress.step(Progress("one", "batch 1/4", 0.25))
    assert progress.times == "0:10, about 1:10 left"
    progress.ended("one", "done")
    assert progress.times == "0:10, about 0:10 left"


def test_a_suite_counts_the_scenarios_of_all_studies():
    now = FakeTime()
    suite = SuiteProgress({"baseline": 1, "prompt_length": 3, "precision": 2}, clock=now)
    assert suite.begin("baseline") == "[1/3] baseline: 0 of 6 scenarios done, 0:00"
    with StudyProgress(log(), 1, suite, clock=now) as progress:
        now.now += 20
        progress.ended("baseline", "done")
        assert progress.times == "0:20, about 1:40 left"
    assert suite.begin("prompt_length") == "[2/3] prompt_length: 1 of 6 scenarios done, 0:20, about 1:40 left"
    # It broke after one scenario; the other two of it do not come any more.
    StudyProgress(log(), 3, suite, clock=now).ended("prompt_16", "done")
    assert suite.ended == 2
    now.now += 20
    assert suite.begin("precision") == "[3/3] precision: 4 of 6 scenarios done, 0:40, about 0:20 left"


def test_a_terminal_shows_which_experiment_of_the_suite_it_is():
    console = terminal()
    suite = SuiteProgress({"baseline": 1, "precision": 2})
    suite.begin("precision")
    with StudyProgress(console, 2, suite) as progress:
        progress.step(Progress("float32", "warm-up"))
        progress._bar.refresh()
    assert "[2/2] precision, scenario 1/2" in printed(console)
    assert "float32: warm-up" in printed(console)


def test_a_log_is_never_quiet_for_longer_than_a_minute():
    console, clock = log(), FakeTime()
    progress = StudyProgress(console, 2, clock=clock)
    counts = []
    for _ in range(4):
        progress.tick()
        counts.append(printed(console).count("quiet for"))
        clock.now += 60
    assert counts == [0, 1, 2, 3]
    assert "quiet for 1:00, still at: loading" in printed(console)
    assert "quiet for 3:00, still at: loading" in printed(console)
    for number in range(1, 9):
        progress.step(Progress("one", f"batch {number}/16", number / 16))
        clock.now += 10
        progress.tick()
    # Something is told all the time; in a log nobody sees it.
    assert printed(console).splitlines()[3:] == [
        "    4:10, about 2:09:10 left, at one: batch 1/16",
        "    5:10, about 18:27 left, at one: batch 7/16",
    ]


def test_a_terminal_shows_progress_in_the_bar_only():
    console, clock = terminal(), FakeTime()
    progress = StudyProgress(console, 2, clock=clock)
    for number in range(1, 9):
        progress.step(Progress("one", f"batch {number}/16", number / 16))
        clock.now += 30
        progress.tick()
    assert printed(console) == ""
    clock.now += 30
    progress.tick()
    assert "quiet for 1:00, still at: one: batch 8/16" in printed(console)


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_the_bar_fits_one_line_of_a_narrow_terminal(width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    suite = SuiteProgress({"prompt_length": 24}, {"prompt_length": 5000.0})
    suite.begin("prompt_length")
    with StudyProgress(console, 24, suite) as progress:
        progress.step(Progress("a_scenario_of_a_long_name", "batch 12/40 of the reference", 0.5))
        lines = console.render_lines(progress._bar.get_renderable(), console.options, pad=False)
    assert len(lines) == 1


def test_the_first_estimate_is_the_last_duration():
    now = FakeTime()
    progress = StudyProgress(log(), 2, took=30.0, clock=now)
    now.now += 10
    assert progress.times == "0:10, about 0:20 left"
    progress.ended("one", "done")
    assert progress.times == "0:10, about 0:10 left"


def test_experiments_are_weighted_by_their_last_duration():
    now = FakeTime()
    scenarios = {"baseline": 1, "precision": 3}
    suite = SuiteProgress(scenarios, {"baseline": 10.0, "precision": 90.0}, clock=now)
    assert suite.begin("baseline") == "[1/2] baseline: 0 of 4 scenarios done, 0:00, about 1:40 left"
    now.now += 20
    suite.ended += 1
    # Twice as slow as the last time.
    assert suite.begin("precision") == "[2/2] precision: 1 of 4 scenarios done, 0:20, about 3:00 left"
    now.now += 60
    suite.ended += 1
    assert suite.left() == 80 / 40 * 60
    assert suite.left(shares=0.5) == pytest.approx(80 / 55 * 45)
    assert SuiteProgress(scenarios, {"baseline": 10.0}, clock=now).left() is None


def test_output_resets_the_silence():
    console, clock = log(), FakeTime()
    progress = StudyProgress(console, 2, clock=clock)
    for _ in range(3):
        clock.now += 59
        progress.line("exporting")
        progress.tick()
    assert "quiet" not in printed(console)
