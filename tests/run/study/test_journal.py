"""A journal reuses recorded actions, loses nothing by a failed write, and never ends the work."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from llmtrack.run.study.journal import Journal


def acts(journal):
    return [journal.act(["score", name], lambda name=name: name.upper()) for name in "abc"]


def no_space(*arguments, **named):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_recorded_actions_are_not_repeated(tmp_path):
    path = tmp_path / "tune" / "a.jsonl"
    assert acts(Journal(path, False)) == ["A", "B", "C"]
    path.write_text(path.read_text() + '{"key": ["sco')  # a kill
    second = Journal(path, True)
    assert acts(second) == ["A", "B", "C"]
    assert second.taken_over == 3
    second.done()
    assert not path.exists()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("refused", ["mkdir", "open"])
def test_an_unwritable_journal_is_one_line(tmp_path, monkeypatch, refused, resume):
    messages = []
    monkeypatch.setattr(Path, refused, no_space)
    journal = Journal(tmp_path / "tune" / "a.jsonl", resume, messages.append)
    assert acts(journal) == ["A", "B", "C"]
    journal.done()
    (line,) = messages
    assert "(No space left on device), so that resume=true could not go on from here: free some space" in line


@pytest.fixture
def path(tmp_path):
    journal = Journal(tmp_path / "a.jsonl", False)
    acts(journal)
    return journal.path


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_keeps_earlier_records(path, monkeypatch, step):
    before = path.read_bytes()
    messages = []
    with monkeypatch.context() as patch:
        patch.setattr(os, step, no_space)
        assert acts(Journal(path, True, messages.append)) == ["A", "B", "C"]
    assert len(messages) == 1
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_an_unreadable_journal_is_left_unchanged(path, monkeypatch):
    before = path.read_bytes()
    messages = []
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", no_space)
        second = Journal(path, True, messages.append)
        assert acts(second) == ["A", "B", "C"]
    assert second.taken_over == 0
    assert len(messages) == 1
    assert messages[0].startswith(f"cannot read {path} ")
    assert path.read_bytes() == before


NO_ACTS = [
    b"5",
    b"null",
    b"[]",
    b'"key"',
    b"{}",
    b'{"key": ["score", "b"]}',
    b'{"gave": "B"}',
    b'{"key": "score", "gave": "B"}',
    b'{"key": ["score", "b"], "gave": "B", "more": 1}',
    b"\xff\xfe",
    b"[" * 100_000,
    b"",
]


@pytest.mark.parametrize("line", NO_ACTS, ids=lambda line: repr(line[:30]))
def test_an_invalid_line_ends_the_reuse(path, line):
    first, _, third = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([first, line, third, b""]))
    second = Journal(path, True)
    assert acts(second) == ["A", "B", "C"]
    assert second.taken_over == 1
    assert [json.loads(line)["gave"] for line in path.read_bytes().splitlines()] == ["A", "B", "C"]


def test_an_invalid_result_is_performed_again(path):
    def read(gave):
        if gave == "B":
            raise ValueError("no result")
        return gave.lower()

    second = Journal(path, True)
    assert second.act(["score", "a"], lambda: "not done", read) == "a"
    assert second.act(["score", "b"], lambda: "X", read) == "x"
    assert second.taken_over == 1


def test_actions_in_another_order_replace_the_rest(path):
    second = Journal(path, True)
    assert [second.act(["score", name], lambda: 1) for name in "axc"] == ["A", 1, 1]
    third = Journal(path, True)
    assert [third.act(["score", name], lambda: 2) for name in "axcd"] == ["A", 1, 1, 2]
    assert third.taken_over == 3


def test_an_action_of_another_key_replaces_the_rest(path):
    second = Journal(path, True)
    results = [second.act(["score", name], lambda name=name: f"new {name}") for name in "axc"]
    assert results == ["A", "new x", "new c"]
    assert second.taken_over == 1
    last = Journal(path, True)
    assert [last.act(["score", name], lambda: "not done before") for name in "axc"] == results
