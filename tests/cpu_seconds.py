"""Which tests take most CPU: `python -m pytest -p tests.cpu_seconds` prints it at the end, whatever else the machine does.

What a test starts counts, too, once it has ended. What several tests share counts where it is made; the work of processes that they
share, such as a server, is told apart: it is known when they end, after a worker's last test.
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
SHARED = "processes that tests share"
_STARTED = pytest.StashKey[float]()
_ENDING = pytest.StashKey[float]()
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
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    if nextitem is None:
        item.stash[_ENDING] = seconds()
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    if call.when == "teardown":
        now = seconds()
        ended = item.stash.get(_ENDING, now)
        marked = item.get_closest_marker("slow") is not None
        # What a report of a pytest-xdist worker says reaches the process that sums up.
        report.user_properties.append((NAME, (item.nodeid, ended - item.stash[_STARTED], marked)))
        report.user_properties.append((NAME, (SHARED, now - ended, True)))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == NAME:
            test, took, marked = value
            _taken[test] = _taken.get(test, (0.0, marked))[0] + took, marked


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    total = sum(took for took, _ in _taken.values())
    terminalreporter.section(f"CPU seconds: {total:.0f} in all; the slowest {SHOWN}")
    for test, (took, marked) in sorted(_taken.items(), key=lambda each: -each[1][0])[:SHOWN]:
        wanted = "" if marked or took < SLOW else "  (not marked slow)"
        terminalreporter.write_line(f"{took:7.1f}  {test}{wanted}")
