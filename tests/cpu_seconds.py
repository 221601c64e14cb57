"""Print the tests that take most CPU time at the end of `python -m pytest -p tests.cpu_seconds`, on a busy machine, too.

A test's child processes count once they have ended. What several tests share counts for the test that creates it; shared
processes, such as a server, are listed separately, since they end after a worker's last test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from multiprocessing import forkserver

import psutil
import pytest

SHOWN = 40
SLOW = 0.25
"""CPU seconds from which a test needs `@pytest.mark.slow(seconds)`, which `make check` leaves out."""

NAME = "cpu seconds"
SHARED = "processes that tests share"
_STARTED = pytest.StashKey[float]()
_ENDING = pytest.StashKey[float]()
_cpu_seconds: dict[str, tuple[float, bool]] = {}


def seconds() -> float:
    """Return the CPU seconds of this process, its ended children, and its fork server."""
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
        # Properties of a pytest-xdist worker's report reach the main process.
        report.user_properties.append((NAME, (item.nodeid, ended - item.stash[_STARTED], marked)))
        report.user_properties.append((NAME, (SHARED, now - ended, True)))
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == NAME:
            test, cpu, marked = value
            _cpu_seconds[test] = _cpu_seconds.get(test, (0.0, marked))[0] + cpu, marked


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    total = sum(cpu for cpu, _ in _cpu_seconds.values())
    terminalreporter.section(f"CPU seconds: {total:.0f} in all; the slowest {SHOWN}")
    for test, (cpu, marked) in sorted(_cpu_seconds.items(), key=lambda item: -item[1][0])[:SHOWN]:
        note = "" if marked or cpu < SLOW else "  (not marked slow)"
        terminalreporter.write_line(f"{cpu:7.1f}  {test}{note}")
