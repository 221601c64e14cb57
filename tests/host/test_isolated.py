"""Separate processes leave no temporary files, even if they or their parents are killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from llmtrack.host.isolated import run_isolated
from llmtrack.host.processes import SCRATCH, child_environment, temporary_folder
from llmtrack.run.executors.worker_process import WorkerProcess

WAITS = """
from llmtrack.host.isolated import run_isolated
run_isolated("waiting", exec, "import tempfile, time; tempfile.mkstemp(); time.sleep(600)")
"""


def wait_until(holds):
    while not holds():
        time.sleep(0.02)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """Return an empty folder for temporary files of this process."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


@pytest.mark.parametrize("own", [None, "glibc.malloc.check=0"])
def test_it_requests_huge_pages_unless_the_user_sets_malloc(monkeypatch, own):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    if own:
        monkeypatch.setenv("GLIBC_TUNABLES", own)
    assert run_isolated("asking", os.getenv, "GLIBC_TUNABLES") == (own or "glibc.malloc.hugetlb=1")


def test_its_own_temporary_files_are_removed(temporary):
    leftover = Path(run_isolated("leaving", tempfile.mkdtemp))
    assert leftover.is_relative_to(temporary)
    assert not list(temporary.iterdir())


def test_its_temporary_files_are_removed_if_its_parent_is_killed(temporary):
    parent = subprocess.Popen([sys.executable, "-c", WAITS], env=child_environment())
    wait_until(lambda: list(temporary.glob("llmtrack-*/tmp*")))
    parent.kill()
    parent.wait()
    wait_until(lambda: not list(temporary.iterdir()))


def test_temporary_files_of_a_killed_workers_children_are_removed(temporary):
    class Builds(WorkerProcess):
        def _start(self, environment):
            assert not list(temporary.iterdir())  # only a process with children creates a folder
            code = "from llmtrack.host.processes import temporary_folder; import time; folder = temporary_folder(); time.sleep(600)"
            return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=environment)

    worker = Builds()
    wait_until(lambda: list(temporary.glob("llmtrack-*/llmtrack-*")))
    worker.end()
    assert not list(temporary.iterdir())


def test_without_a_worker_its_folder_is_among_other_temporary_files(temporary, monkeypatch):
    monkeypatch.delenv(SCRATCH, raising=False)
    with temporary_folder() as folder:
        assert Path(folder).parent == temporary


def test_temporary_files_of_tests_are_where_pytest_removes_them(tmp_path_factory):
    """Or, if that path is too long for a socket, in a folder that is removed after the test run."""
    folders = (tmp_path_factory.getbasetemp() / "t", Path(os.environ["RAY_TMPDIR"]))
    assert Path(tempfile.gettempdir()) in folders
    result = subprocess.run(
        [sys.executable, "-c", "import tempfile; print(tempfile.gettempdir())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(result.stdout.strip()) in folders
