"""Which tests take most CPU: `python -m pytest -p tests.cpu_seconds` prints it at the end, whatever else the machine does.

What a test starts counts, too, once it has ended. What several tests share counts where it is made.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing import forkserver

import psutil
import pytest

SHOWN = 40
SLOW = 0.25
"""From so many CPU seconds on a test wants `@pytest.mark.slow(seconds)`: `make check` leaves it out."""

NAME = "cpu seconds"
_STARTED = pytest.StashKey[float]()
_taken: dict[str, tuple[float, bool]] = {}


def seconds() -> float:
    """Return the CPU seconds of this process and of its children that have ended, its fork server's among them."""
    server = forkserver._forkserver._forkserver_pid
    forked = psutil.Process(server).cpu_times()[:4] if server and psutil.pid_exists(server) else ()
    return sum(os.times()[:4]) + sum(forked)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    item.stash[_STARTED] = seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "teardown":
        # What a report of a pytest-xdist worker says reaches the process that sums up.
        marked = item.get_closest_marker("slow") is not None
        report.user_properties.append((NAME, (seconds() - item.stash[_STARTED], marked)))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == NAME:
            took, marked = value
            _taken[report.nodeid] = took, marked


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    total = sum(took for took, _ in _taken.values())
    terminalreporter.section(f"CPU seconds: {total:.0f} in all; the slowest {SHOWN}")
    for test, (took, marked) in sorted(_taken.items(), key=lambda each: -each[1][0])[:SHOWN]:
        wanted = "" if marked or took < SLOW else "  (not marked slow)"
        terminalreporter.write_line(f"{took:7.1f}  {test}{wanted}")
