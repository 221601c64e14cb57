"""A journal goes through again what was done, and costs nothing but itself where it cannot be written."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from llmtrack.run.journal import Journal


def acts(journal):
    return [journal.act(["score", name], lambda name=name: name.upper()) for name in "abc"]


def no_space(*given, **named):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_what_was_done_is_not_done_again(tmp_path):
    path = tmp_path / "tune" / "a.jsonl"
    assert acts(Journal(path, False)) == ["A", "B", "C"]
    path.write_text(path.read_text() + '{"key": ["sco')  # a kill
    again = Journal(path, True)
    assert acts(again) == ["A", "B", "C"]
    assert again.taken_over == 3
    again.done()
    assert not path.exists()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("refused", ["mkdir", "write_text", "open"])
def test_where_it_cannot_be_written_all_goes_on_and_one_line_says_so(tmp_path, monkeypatch, refused, resume):
    said = []
    monkeypatch.setattr(Path, refused, no_space)
    journal = Journal(tmp_path / "tune" / "a.jsonl", resume, said.append)
    assert acts(journal) == ["A", "B", "C"]
    journal.done()
    (line,) = said
    assert "(No space left on device), so that resume=true could not go on from here: free some space" in line
