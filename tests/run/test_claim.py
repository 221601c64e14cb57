"""Two processes at the same work: resuming what a live one measures is refused."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time

import pytest
from mlflow import MlflowClient

from llmtrack.errors import UsageError
from llmtrack.run.study.journal import Journal
from llmtrack.tracking import owner
from llmtrack.tracking.read.query import runs
from llmtrack.tracking.write.running import WORK_TAG, open_claimed
from tests.conftest import HANG_S, draw_nothing, know_ceilings
from tests.forking import Forked

ARGUMENTS = [
    *("--model", "synthetic:tiny", "--executor", "inline", "--device", "cpu", "--max-new-tokens", "2"),
    *("--min-repeats", "1", "--max-seconds", "0.2", "--resume", "true"),
]
WAYS = {"baseline": [], "suite": ["--experiments", "baseline", "--quick", "true"]}


def measure(experiment: str, uri: str, hold: str) -> None:
    """Measure as the command does; a process that is to hold stops in the middle."""
    from importlib import import_module

    from llmtrack.run.executors.inline import InlineExecutor

    os.dup2(1, 2)
    patch = pytest.MonkeyPatch()
    draw_nothing(patch)
    know_ceilings(patch)
    if hold:
        run = InlineExecutor.run

        def held(executor, scenarios, emit):
            print("at it", flush=True)
            time.sleep(HANG_S)
            run(executor, scenarios, emit)

        patch.setattr(InlineExecutor, "run", held)
    import_module(f"experiments.{experiment}").main([*ARGUMENTS, *WAYS[experiment], "--tracking-uri", uri])


@pytest.fixture
def start(tmp_path, template_database, monkeypatch):
    """Start an experiment's command in another process with its own spool."""
    shutil.copyfile(template_database, tmp_path / "mlflow.db")
    monkeypatch.chdir(tmp_path)
    number = 0

    def started(experiment: str, hold: str = "") -> Forked:
        nonlocal number
        number += 1
        environment = os.environ | {"LLMTRACK_SPOOL": str(tmp_path / f"spool{number}")}
        return Forked(measure, experiment, f"sqlite:///{tmp_path / 'mlflow.db'}", hold, environment=environment)

    return started


def line_of(process: Forked, part: str) -> str:
    return next(line for line in process.stdout if part in line)


@pytest.mark.slow(20)
@pytest.mark.parametrize("experiment", WAYS)
def test_work_of_a_live_process_is_not_resumed(start, experiment, tmp_path):
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    first = start(experiment, hold="yes")
    line_of(first, "at it")
    before = len(runs(kind=None, tracking_uri=uri))
    second = start(experiment)
    output = second.stdout.read()
    assert second.wait(HANG_S) == 2, output
    (error,) = (line for line in output.splitlines() if line.startswith("error:"))
    assert f"error: process {first.pid} is already measuring this study (" in error
    assert len(runs(kind=None, tracking_uri=uri)) == before, "nothing was opened"
    os.kill(first.pid, signal.SIGKILL)
    first.wait(HANG_S)
    third = start(experiment)
    output = third.stdout.read()
    assert third.wait(HANG_S) == 0, output
    assert len(runs(status="FINISHED", tracking_uri=uri)) == 1


class Opening:
    """Opens runs as a study does, and counts them."""

    def __init__(self, tracker, uri):
        self.tracker, self.uri, self.said = tracker, uri, []

    def __call__(self, process=None, resume=True, work="w"):
        def start():
            study = self.tracker.start_study("baseline", "?", {}, {}, tags={WORK_TAG: work})
            if process:
                MlflowClient(tracking_uri=self.uri).set_tag(study.run_id, owner.TAG, process)
            return study

        return open_claimed(self.tracker, work, resume, self.said.append, start)


@pytest.fixture
def opening(tracker, uri):
    return Opening(tracker, uri)


def test_a_live_process_of_this_machine_claims_its_work(opening, uri):
    opening()
    with pytest.raises(UsageError, match=rf"process {os.getpid()} is already measuring this study"):
        opening()
    opening(work="other")
    opening(resume=False)
    assert opening.said == []
    assert len(runs(kind="study", tracking_uri=uri)) == 3


def test_work_of_another_machine_is_mentioned_but_not_refused(opening):
    study = opening(process="elsewhere boot 12 34")
    opening()
    (line,) = opening.said
    assert line.startswith(f"  another machine is measuring this study, or was lost while it did ('{study.name}")


def test_ended_runs_and_dead_processes_claim_nothing(opening, tracker):
    tracker.finish_study(opening(), "finished")
    host, boot, pid, since = owner.this_process().split()
    opening(process=f"{host} {boot} {pid} {since}0")
    opening()
    assert opening.said == []


def test_a_journal_is_written_by_one_process(tmp_path):
    path = tmp_path / "a.jsonl"
    code = (
        "import sys, pathlib; from llmtrack.run.study.journal import Journal\n"
        "journal = Journal(pathlib.Path(sys.argv[1]), False)\n"
        "print(journal.act(['a'], lambda: 1), flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        other.stdout.readline()
        content = path.read_bytes()
        for resume in (True, False):
            messages: list[str] = []
            journal = Journal(path, resume, messages.append)
            assert journal.act(["a"], lambda: 2) == 2
            journal.done()
            assert path.read_bytes() == content
            assert messages == [
                f"another process measures the same and writes {path}: this one keeps nothing that resume=true could go on from"
            ]
        other.kill()
    assert Journal(path, True).act(["a"], lambda: 3) == 1, "what a killed process kept is taken over"
