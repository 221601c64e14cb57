"""Runs that killed processes left RUNNING are closed; runs of live processes, here or elsewhere, are not."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from functools import partial
from itertools import chain

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient

from llmtrack.cli import main
from llmtrack.tracking import owner
from llmtrack.tracking.owner import host_id, is_gone, started, this_process
from llmtrack.tracking.read.query import runs, tracked_runs
from llmtrack.tracking.uri import sqlite_path
from llmtrack.tracking.write.running import close_abandoned
from tests.tracking.samples import ENVIRONMENT


def dead_process() -> str:
    """Return the tag of a process that has exited but is still a zombie."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    host, boot, _, _ = this_process().split()
    tag = f"{host} {boot} {process.pid} {started(process.pid)}"
    assert not is_gone(tag), "it lives"
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(tag), "a zombie is dead"
    process.communicate()
    assert is_gone(tag)
    return tag


def test_a_process_is_gone_only_if_it_ran_here_and_has_exited():
    host, boot, pid, since = this_process().split()
    assert not is_gone(this_process())
    assert is_gone(f"{host} {boot} {pid} {since}0"), "the process id was reused"
    assert not is_gone(f"other {boot} {pid} {since}0"), "another machine"
    for invalid in (
        "",
        "x",
        f"{host} {boot}",
        f"{host} {boot} pid {since}",
        f"{host} {boot} {pid} {since} more",
    ):
        assert not is_gone(invalid)


def test_processes_of_an_earlier_boot_are_gone(monkeypatch):
    host, _, pid, since = this_process().split()
    before = f"{host} earlier {pid} {since}"
    monkeypatch.setattr(owner, "read_text", lambda path: "something")
    monkeypatch.setattr(owner, "host_id", lambda: host)
    monkeypatch.setattr(owner, "boot_id", lambda: "now")
    monkeypatch.setattr(owner, "in_pid_namespace", lambda: False)
    assert is_gone(before)
    monkeypatch.setattr(owner, "in_pid_namespace", lambda: True)
    assert not is_gone(before), "a container of the same name may run elsewhere"


def test_the_host_id_depends_on_the_pid_namespace(monkeypatch):
    own_id = host_id()
    monkeypatch.setattr(owner, "pid_namespace", lambda: "pid:[4026539999]")
    assert host_id() != own_id


@pytest.fixture
def abandoned(filled_once, uri):
    """Run ids of suites of two studies by their process: killed, alive, of another machine, and unknown."""
    run_ids = filled_once("suites", four_suites)
    tags = {
        "killed": dead_process(),
        "lives": this_process(),
        "elsewhere": "f00 " + dead_process().partition(" ")[2],
    }
    with closing(sqlite3.connect(sqlite_path(uri))) as database, database:
        for name, tag in tags.items():
            rows = [(tag, run_id) for run_id in run_ids[name]]
            database.executemany(f"UPDATE tags SET value = ? WHERE key = '{owner.TAG}' AND run_uuid = ?", rows)
        rows = [(run_id,) for run_id in run_ids["old"]]
        database.executemany(f"DELETE FROM tags WHERE key = '{owner.TAG}' AND run_uuid = ?", rows)
    return run_ids


def four_suites(tracker):
    run_ids = {}
    for name in ("killed", "lives", "elsewhere", "old"):
        suite = tracker.start_study("suite", "?", {}, ENVIRONMENT)
        studies = [suite, *(tracker.start_study("x", "?", {}, ENVIRONMENT, suite.study_id) for _ in range(2))]
        run_ids[name] = [study.run_id for study in studies]
    client = MlflowClient(tracking_uri=tracker.tracking_uri)
    for run_id in chain(*run_ids.values()):
        assert client.get_run(run_id).data.tags[owner.TAG] == this_process()
    return run_ids


@pytest.mark.slow(1)
def test_only_runs_of_killed_processes_are_closed(abandoned, uri):
    assert len(close_abandoned(uri)) == 3
    client = MlflowClient(tracking_uri=uri)
    for name, run_ids in abandoned.items():
        for run_id in run_ids:
            run = client.get_run(run_id)
            assert run.info.status == ("KILLED" if name == "killed" else "RUNNING"), name
            if name == "killed":
                assert run.data.tags["llmtrack.outcome"] == "killed"
                assert "SIGKILL" in run.data.tags["llmtrack.reason"]
                assert run.info.end_time
    assert close_abandoned(uri) == []


@pytest.mark.slow(1)
def test_abandoned_runs_are_read_as_killed_before_they_are_closed(abandoned, uri):
    """Both read directly and through MLflow."""
    for read in (
        partial(tracked_runs, kind="study"),
        partial(tracked_runs, kind="study", search="attributes.run_name != ''"),
    ):
        tracked = {run.run_id: run for run in read(tracking_uri=uri)}
        for name, run_ids in abandoned.items():
            for run_id in run_ids:
                run = tracked[run_id]
                assert run.status == ("KILLED" if name == "killed" else "RUNNING"), name
                if name == "killed":
                    assert "was killed: its process exited without reporting" in run.state
                else:
                    assert run.state == "is still running"


@pytest.mark.slow(1)
def test_doctor_repair_closes_abandoned_runs(abandoned, uri):
    result = CliRunner().invoke(main, ["doctor", "--repair", "--tracking-uri", uri])
    assert (result.exit_code, result.output.partition(":")[0]) == (0, "3 runs ended as killed")
    result = CliRunner().invoke(main, ["doctor", "--repair", "--tracking-uri", uri])
    assert result.output == "0 runs ended as killed\n"
    assert set(runs(kind="study", status="KILLED", tracking_uri=uri)["run_id"]) == set(abandoned["killed"])


@pytest.mark.slow(1)
def test_the_next_start_closes_abandoned_runs(abandoned, uri, capsys):
    from llmtrack.run.main import open_tracker
    from llmtrack.run.settings import RunOptions

    open_tracker(RunOptions(tracking_uri=uri))
    printed = capsys.readouterr().err
    assert "left RUNNING by killed processes: suite " in printed
    assert printed.count("; ") == 2, "names contain commas"
    assert set(runs(kind="study", status="KILLED", tracking_uri=uri)["run_id"]) == set(abandoned["killed"])
