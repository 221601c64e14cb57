"""A separate process leaves no temporary files, whether it or its parent is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from llmtrack.host.processes import SCRATCH, child_environment, temporary_folder
from llmtrack.quantize.isolated import run_isolated
from llmtrack.run.executors.worker_process import WorkerProcess

WAITS = """
from llmtrack.quantize.isolated import run_isolated
run_isolated("waiting", exec, "import tempfile, time; tempfile.mkstemp(); time.sleep(600)")
"""


def wait_until(holds):
    while not holds():
        time.sleep(0.02)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """The folder for temporary files of this process, empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def test_what_it_leaves_itself_is_removed(temporary):
    left = Path(run_isolated("leaving", tempfile.mkdtemp))
    assert left.is_relative_to(temporary)
    assert not list(temporary.iterdir())


def test_what_it_leaves_is_removed_although_its_parent_is_killed(temporary):
    parent = subprocess.Popen([sys.executable, "-c", WAITS], env=child_environment())
    wait_until(lambda: list(temporary.glob("llmtrack-*/tmp*")))
    parent.kill()
    parent.wait()
    wait_until(lambda: not list(temporary.iterdir()))


def test_what_a_worker_that_is_killed_leaves_of_its_children_is_removed(temporary):
    class Builds(WorkerProcess):
        def _start(self, environment):
            assert not list(temporary.iterdir())  # only what has children makes a folder
            code = "from llmtrack.host.processes import temporary_folder; import time; place = temporary_folder(); time.sleep(600)"
            return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)

    worker = Builds()
    wait_until(lambda: list(temporary.glob("llmtrack-*/llmtrack-*")))
    worker.end()
    assert not list(temporary.iterdir())


def test_without_a_worker_it_is_among_other_temporary_files(temporary, monkeypatch):
    monkeypatch.delenv(SCRATCH, raising=False)
    with temporary_folder() as place:
        assert Path(place).parent == temporary


def test_tests_leave_their_temporary_files_where_pytest_removes_them(tmp_path_factory):
    """Or, where the way to its folder is too long for a socket, in one that goes with the test run."""
    folders = (tmp_path_factory.getbasetemp() / "t", Path(os.environ["RAY_TMPDIR"]))
    assert Path(tempfile.gettempdir()) in folders
    started = subprocess.run(
        [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(started.stdout.strip()) in folders
