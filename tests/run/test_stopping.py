"""Signals: the first ends the work, and later ones do not cut that short; a launcher's end counts, too."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import time
import weakref
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from experiments import declarations, suite
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.host import signals
from llmtrack.host.processes import kill_tree, launcher_of
from llmtrack.host.signals import (
    REPEAT_SECONDS,
    STOPPING,
    Terminated,
    defer_signals,
    end_on_signal,
    signal_handlers_restored,
)
from llmtrack.run import main as entry
from llmtrack.run.command import command
from llmtrack.run.executors.inline import InlineExecutor
from llmtrack.run.study.study import is_signal, run_study
from llmtrack.run.suite import run_suite
from llmtrack.tracking.read.query import runs, studies
from llmtrack.tracking.write.delivery import Delivery
from llmtrack.tracking.write.tracker import Tracker
from tests.conftest import HANG_S
from tests.run.study.test_study import lengths

pytestmark = pytest.mark.usefixtures("_known_ceilings", "_stays_at_the_terminal")


def storm():
    """Raise every signal that asks to end, twice."""
    for number in STOPPING * 2:
        signal.raise_signal(number)


@pytest.mark.parametrize("number", STOPPING)
def test_only_the_first_signal_ends_the_work(number, capfd):
    done = []

    def work():
        try:
            signal.raise_signal(number)
        finally:
            storm()
            done.append(True)

    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else Terminated), end_on_signal():
        work()
    assert done
    assert "already ending" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize("number", STOPPING)
@pytest.mark.parametrize("fails", [False, True])
def test_a_librarys_signal_handler_is_undone(number, fails):
    before = signal.getsignal(number)
    with contextlib.suppress(ZeroDivisionError), signal_handlers_restored():
        signal.signal(number, lambda number, frame: sys.exit(number))
        assert not fails or 1 / 0
    assert signal.getsignal(number) is before


def test_ignored_signals_stay_ignored():
    """`nohup` ignores SIGHUP, and background jobs of a shell SIGINT."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with end_on_signal(), defer_signals() as should_stop:
            signal.raise_signal(signal.SIGHUP)
            assert not should_stop()
    finally:
        signal.signal(signal.SIGHUP, before)


def test_signals_wait_for_an_orderly_end():
    done = []

    def work():
        with defer_signals() as should_stop:
            storm()
            done.append(should_stop())

    with pytest.raises(KeyboardInterrupt), end_on_signal():
        work()
    assert done == [True]


@pytest.mark.parametrize("delay", [REPEAT_SECONDS, 0.0], ids=["", "repeated while the hook still runs"])
@pytest.mark.parametrize("number", STOPPING)
@pytest.mark.parametrize("kind", ["weak reference", "finalizer"])
def test_a_signal_is_not_lost_in_a_finalizer(number, kind, delay, monkeypatch):
    """Python discards exceptions raised there, as in SQLAlchemy's finalizers at any moment."""
    monkeypatch.setattr(signals, "REPEAT_SECONDS", delay)

    class Collected:
        def __del__(self):
            if kind == "finalizer":
                signal.raise_signal(number)

    def work():
        held = Collected()
        watch = weakref.ref(held, lambda ref: kind == "weak reference" and signal.raise_signal(number))
        del held
        began = time.monotonic()
        while time.monotonic() < began + 5:
            time.sleep(0.01)
        return watch

    expected = KeyboardInterrupt if number == signal.SIGINT else Terminated
    hook = sys.unraisablehook
    with pytest.raises(expected), end_on_signal():
        work()
    assert sys.unraisablehook is hook


def test_a_signal_is_not_lost_with_an_error():
    def work():
        with defer_signals():
            signal.raise_signal(signal.SIGINT)
            raise ValueError

    with pytest.raises(KeyboardInterrupt), end_on_signal():
        work()


def test_an_error_on_the_way_out_does_not_hide_the_signal():
    error = OSError("the terminal is gone")
    assert not is_signal(error)
    error.__context__ = ValueError()
    assert not is_signal(error)
    error.__context__.__context__ = Terminated(signal.SIGHUP)
    assert is_signal(error)


class Struck(InlineExecutor):
    """Receives a signal in its second group, and more while it is closed."""

    def __init__(self, number):
        clock = FakeClock()
        super().__init__(lambda v: ScriptedEngine(clock, Script(0.03, 0.005)), clock)
        self.number = number

    def run(self, scenarios, emit):
        super().run(scenarios, emit)
        signal.raise_signal(self.number)

    def close(self):
        storm()
        super().close()


@pytest.mark.slow(1)
@pytest.mark.parametrize("number", STOPPING)
@pytest.mark.parametrize("together", [False, True], ids=["study", "suite"])
def test_further_signals_leave_no_run_behind(tracker, uri, console, monkeypatch, number, together):
    """In a suite, both the study's run and the suite's are ended."""
    finish = Tracker.finish_study

    def stormy(self, *arguments, **settings):
        storm()
        return finish(self, *arguments, **settings)

    monkeypatch.setattr(Tracker, "finish_study", stormy)
    parts = {"tracker": tracker, "executor": Struck(number), "console": console}

    def work():
        if together:
            run_suite([lengths(4)], question="?", settings={}, **parts)
        else:
            run_study(lengths(4), **parts)

    with pytest.raises(SystemExit) as ended, entry.exit_codes(console):
        work()
    assert ended.value.code == 128 + number
    assert set(studies(tracking_uri=uri)["status"]) == {"KILLED"}
    assert len(studies(tracking_uri=uri)) == 1 + together
    assert list(runs(tracking_uri=uri)["status"]) == ["FINISHED"], "what was measured before is kept"
    assert tracker.spool.names() == []


@pytest.mark.slow(1)
def test_a_signal_waits_until_the_report_is_stored(tracker, uri, console, monkeypatch):
    write = Delivery.write

    def struck(self, record, **settings):
        if settings.get("last"):
            storm()
        return write(self, record, **settings)

    monkeypatch.setattr(Delivery, "write", struck)
    clock = FakeClock()
    executor = InlineExecutor(lambda v: ScriptedEngine(clock, Script(0.03, 0.005)), clock)
    with pytest.raises(SystemExit) as ended, entry.exit_codes(console):
        run_study(lengths(4), tracker=tracker, executor=executor, console=console)
    assert ended.value.code == 130
    assert list(studies(tracking_uri=uri)["status"]) == ["FINISHED"], "everything was measured and tracked"


@pytest.mark.slow(8)
@pytest.mark.parametrize("make_command", [lambda: command(declarations()["prompt_length"]), lambda: suite.main])
def test_there_is_no_gap_between_two_signal_handlers(monkeypatch, make_command):
    """Ctrl-C ends the command, and SIGTERM arrives as soon as an inner handler is removed."""
    restore = signals._restore

    def gap(before):
        restore(before)
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            signal.raise_signal(signal.SIGTERM)

    @contextmanager
    def struck(settings):
        signal.raise_signal(signal.SIGINT)
        yield

    monkeypatch.setattr(signals, "_restore", gap)
    for module in (entry, suite):
        monkeypatch.setattr(module, "open_executors", struck)
    assert CliRunner().invoke(make_command(), []).exit_code == 130


@pytest.mark.slow(1)
def test_signals_at_exit_do_not_change_the_exit_code():
    code = """
import atexit, os, signal, sys
from llmtrack.report.terminal import make_console
from llmtrack.run.main import exit_codes
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(lambda: os.kill(os.getpid(), signal.SIGTERM))
with exit_codes(make_console()):
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=HANG_S, check=False).returncode == 130


def test_the_last_line_counts_the_records_in_the_spool(console, monkeypatch, tmp_path):
    record = tmp_path / "spool" / "0000000000001-x"
    record.mkdir(parents=True)
    (record / "entry.json").write_text("{}")
    monkeypatch.setenv("LLMTRACK_SPOOL", str(tmp_path / "spool"))
    monkeypatch.setattr(entry.Spool, "names", lambda self: ["0000000000001-x"])
    with pytest.raises(SystemExit), entry.exit_codes(console):
        raise KeyboardInterrupt
    last = console.file.getvalue().splitlines()[-1]
    assert last == f"1 record(s) wait in {tmp_path / 'spool'}; send them with: llmtrack sync"


class Process:
    def __init__(self, name, *cmdline):
        self._name, self._cmdline = name, cmdline

    def name(self):
        return self._name

    def cmdline(self):
        return [self._name, *self._cmdline]


@pytest.mark.parametrize(("above", "watched"), [
    ([Process("mlflow", "run"), Process("bash")], 1),
    ([Process("bash", "-c", "python -m x"), Process("python", "mlflow"), Process("bash")], 2),
    ([Process("sh", "-c", "x"), Process("bash", "-lc", "x"), Process("python"), Process("init")], 3),
    ([Process("bash"), Process("sshd")], 0),  # a person, who may log out
    ([Process("-zsh"), Process("sshd")], 0),
    ([], 0),
])  # fmt: skip
def test_the_launcher_of_a_program_is_found(above, watched):
    program = Process("python")
    program.parents = lambda: above
    assert launcher_of(program) == above[:watched]


LAUNCHER = "import subprocess, sys; subprocess.run(['bash', '-c', sys.argv[1]])"
CHILD = """
import os, signal, sys, time
from llmtrack.host.processes import when_launcher_ends
when_launcher_ends(lambda: os.kill(os.getpid(), signal.SIGTERM))
print(os.getpid(), flush=True)
time.sleep(3600)
"""


@pytest.mark.parametrize("killed", ["launcher", "shell"])
def test_a_program_ends_with_its_launcher(killed, tmp_path):
    """Like `mlflow run`: through a shell that runs one command and waits for it."""
    (tmp_path / "child.py").write_text(CHILD)
    command = f"'{sys.executable}' '{tmp_path / 'child.py'}'; true"
    root = str(Path(__file__).parents[2])
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, command],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": root},
    )
    program = psutil.Process(int(launcher.stdout.readline()))
    try:
        (launcher if killed == "launcher" else program.parent()).kill()
        gone, _ = psutil.wait_procs([program], timeout=HANG_S)
        assert gone
    finally:
        kill_tree(program)
        kill_tree(launcher.pid)
        launcher.communicate()


def test_killing_a_process_kills_its_descendants(tmp_path):
    code = "import subprocess, sys; p = subprocess.Popen(['sleep', '3600']); print(p.pid, flush=True); p.wait()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    descendant = psutil.Process(int(parent.stdout.readline()))
    kill_tree(parent.pid)
    parent.communicate()
    until = time.monotonic() + HANG_S
    while descendant.is_running() and descendant.status() != psutil.STATUS_ZOMBIE and time.monotonic() < until:
        time.sleep(0.01)
    assert not descendant.is_running() or descendant.status() == psutil.STATUS_ZOMBIE


def test_a_system_error_ends_an_experiment_in_one_line(console, capsys):
    with pytest.raises(SystemExit) as ended, entry.exit_codes(console):
        raise OSError(errno.ENOSPC, "No space left on device", "/x/y")
    assert (ended.value.code, console.file.getvalue()) == (2, "")
    assert capsys.readouterr().err == "error: cannot use /x/y: No space left on device\n"
