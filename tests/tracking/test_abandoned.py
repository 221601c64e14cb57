"""Runs that a killed process left RUNNING are closed; those that go on, here or elsewhere, are not."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial

import pytest
from click.testing import CliRunner
from mlflow import MlflowClient

from llmtrack.cli import main
from llmtrack.tracking import owner
from llmtrack.tracking.owner import host_id, is_gone, started, this_process
from llmtrack.tracking.read.query import runs, tracked_runs
from llmtrack.tracking.write.running import close_abandoned
from tests.tracking.samples import ENVIRONMENT


def dead_process() -> str:
    """The tag of a process that has ended and still is a zombie."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    host, boot, _, _ = this_process().split()
    tag = f"{host} {boot} {child.pid} {started(child.pid)}"
    assert not is_gone(tag), "it lives"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_gone(tag), "nobody has asked for its exit code, but it is dead"
    child.communicate()
    assert is_gone(tag)
    return tag


def test_whose_process_is_gone():
    host, boot, pid, since = this_process().split()
    assert not is_gone(this_process())
    assert is_gone(f"{host} {boot} {pid} {since}0"), "the number was given to another process"
    assert not is_gone(f"other {boot} {pid} {since}0"), "another machine"
    for unclear in (
        "",
        "x",
        f"{host} {boot}",
        f"{host} {boot} pid {since}",
        f"{host} {boot} {pid} {since} more",
    ):
        assert not is_gone(unclear)


def test_a_machine_that_was_started_anew_has_none_of_its_processes(monkeypatch):
    host, _, pid, since = this_process().split()
    before = f"{host} earlier {pid} {since}"
    monkeypatch.setattr(owner, "read_text", lambda path: "something")
    monkeypatch.setattr(owner, "host_id", lambda: host)
    monkeypatch.setattr(owner, "boot_id", lambda: "now")
    monkeypatch.setattr(owner, "in_pid_namespace", lambda: False)
    assert is_gone(before)
    monkeypatch.setattr(owner, "in_pid_namespace", lambda: True)
    assert not is_gone(before), "a container of the same name may run elsewhere"


def test_worlds_of_process_ids_are_told_apart(monkeypatch):
    here = host_id()
    monkeypatch.setattr(owner, "pid_namespace", lambda: "pid:[4026539999]")
    assert host_id() != here


@pytest.fixture
def left(tracker, uri):
    """A suite with two studies that a killed process left, one that goes on, and others that are not ours to close."""
    tags = {
        "killed": dead_process(),
        "lives": this_process(),
        "elsewhere": "f00 " + dead_process().partition(" ")[2],
    }
    found = {}
    for name, tag in (*tags.items(), ("old", "")):
        suite = tracker.start_study("suite", "?", {}, ENVIRONMENT)
        studies = [suite, *(tracker.start_study("x", "?", {}, ENVIRONMENT, suite.study_id) for _ in range(2))]
        client = MlflowClient(tracking_uri=uri)
        for study in studies:
            if tag:
                assert client.get_run(study.run_id).data.tags[owner.TAG] == this_process()
                client.set_tag(study.run_id, owner.TAG, tag)
            else:
                client.delete_tag(study.run_id, owner.TAG)
        found[name] = [study.run_id for study in studies]
    return found


@pytest.mark.slow(1)
def test_what_a_killed_process_left_is_closed_and_nothing_else(left, uri):
    assert len(close_abandoned(uri)) == 3
    client = MlflowClient(tracking_uri=uri)
    for name, run_ids in left.items():
        for run_id in run_ids:
            run = client.get_run(run_id)
            assert run.info.status == ("KILLED" if name == "killed" else "RUNNING"), name
            if name == "killed":
                assert run.data.tags["llmtrack.outcome"] == "killed"
                assert "SIGKILL" in run.data.tags["llmtrack.reason"]
                assert run.info.end_time
    assert close_abandoned(uri) == []


@pytest.mark.slow(1)
def test_what_is_read_says_so_before_anything_is_closed(left, uri):
    """Right after a SIGKILL, from a database that is read with MLflow and without."""
    for read in (
        partial(tracked_runs, kind="study"),
        partial(tracked_runs, kind="study", search="attributes.run_name != ''"),
    ):
        found = {run.run_id: run for run in read(tracking_uri=uri)}
        for name, run_ids in left.items():
            for run_id in run_ids:
                run = found[run_id]
                assert run.status == ("KILLED" if name == "killed" else "RUNNING"), name
                if name == "killed":
                    assert "was killed: its process exited without reporting" in run.state
                else:
                    assert run.state == "is still running"


@pytest.mark.slow(1)
def test_doctor_repairs(left, uri):
    said = CliRunner().invoke(main, ["doctor", "--repair", "--tracking-uri", uri])
    assert (said.exit_code, said.output.partition(":")[0]) == (0, "3 runs ended as killed")
    said = CliRunner().invoke(main, ["doctor", "--repair", "--tracking-uri", uri])
    assert said.output == "0 runs ended as killed\n"
    assert set(runs(kind="study", status="KILLED", tracking_uri=uri)["run_id"]) == set(left["killed"])


@pytest.mark.slow(1)
def test_the_next_start_closes_what_is_left(left, uri, capsys):
    from llmtrack.run.main import open_tracker
    from llmtrack.run.settings import RunOptions

    open_tracker(RunOptions(tracking_uri=uri))
    said = capsys.readouterr().err
    assert "left RUNNING by killed processes: suite " in said
    assert said.count("; ") == 2, "names hold commas"
    assert set(runs(kind="study", status="KILLED", tracking_uri=uri)["run_id"]) == set(left["killed"])
