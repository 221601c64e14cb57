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


def no_space(*given, **named):
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
    said = []
    monkeypatch.setattr(Path, refused, no_space)
    journal = Journal(tmp_path / "tune" / "a.jsonl", resume, said.append)
    assert acts(journal) == ["A", "B", "C"]
    journal.done()
    (line,) = said
    assert "(No space left on device), so that resume=true could not go on from here: free some space" in line


@pytest.fixture
def kept(tmp_path):
    path = tmp_path / "a.jsonl"
    acts(Journal(path, False))
    return path


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_failed_write_keeps_earlier_records(kept, monkeypatch, step):
    before = kept.read_bytes()
    said = []
    with monkeypatch.context() as patch:
        patch.setattr(os, step, no_space)
        assert acts(Journal(kept, True, said.append)) == ["A", "B", "C"]
    assert len(said) == 1
    assert kept.read_bytes() == before
    assert list(kept.parent.iterdir()) == [kept]


def test_an_unreadable_journal_is_left_unchanged(kept, monkeypatch):
    before = kept.read_bytes()
    said = []
    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_bytes", no_space)
        second = Journal(kept, True, said.append)
        assert acts(second) == ["A", "B", "C"]
    assert second.taken_over == 0
    assert len(said) == 1
    assert said[0].startswith(f"cannot read {kept} ")
    assert kept.read_bytes() == before


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
def test_an_invalid_line_ends_the_reuse(kept, line):
    first, _, third = kept.read_bytes().splitlines()
    kept.write_bytes(b"\n".join([first, line, third, b""]))
    second = Journal(kept, True)
    assert acts(second) == ["A", "B", "C"]
    assert second.taken_over == 1
    assert [json.loads(each)["gave"] for each in kept.read_bytes().splitlines()] == ["A", "B", "C"]


def test_an_invalid_result_is_performed_again(kept):
    def read(gave):
        if gave == "B":
            raise ValueError("no result")
        return gave.lower()

    second = Journal(kept, True)
    assert second.act(["score", "a"], lambda: "not done", read) == "a"
    assert second.act(["score", "b"], lambda: "X", read) == "x"
    assert second.taken_over == 1


def test_actions_in_another_order_replace_the_rest(kept):
    second = Journal(kept, True)
    assert [second.act(["score", name], lambda: 1) for name in "axc"] == ["A", 1, 1]
    third = Journal(kept, True)
    assert [third.act(["score", name], lambda: 2) for name in "axcd"] == ["A", 1, 1, 2]
    assert third.taken_over == 3


def test_an_action_of_another_key_replaces_the_rest(kept):
    second = Journal(kept, True)
    results = [second.act(["score", name], lambda name=name: f"new {name}") for name in "axc"]
    assert results == ["A", "new x", "new c"]
    assert second.taken_over == 1
    last = Journal(kept, True)
    assert [last.act(["score", name], lambda: "not done before") for name in "axc"] == results
