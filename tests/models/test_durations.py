"""Long operations report their previous duration."""

from __future__ import annotations

import logging

import pytest

from llmtrack.models import durations


@pytest.fixture(autouse=True)
def _notes(tmp_path, monkeypatch):
    monkeypatch.setattr(durations, "folder", lambda: tmp_path / "notes")


def said(caplog, of="gpt2"):
    caplog.clear()
    with caplog.at_level(logging.INFO, "llmtrack"), durations.timed_step("exporting to ONNX", of):
        pass
    return [record.getMessage() for record in caplog.records]


def test_what_is_made_once_says_how_long_such_a_thing_took_the_last_time(caplog):
    assert said(caplog) == [
        "exporting to ONNX (once, then kept in the cache) ...",
        "exporting to ONNX took 0:00",
    ]
    durations.record_duration("exporting to ONNX", 94.2, "gpt2")
    assert said(caplog)[0] == "exporting to ONNX (once, then kept in the cache; 1:34 the last time) ..."
    durations.record_duration("exporting to ONNX", 94.2, "llama")
    assert said(caplog)[0] == "exporting to ONNX (once, then kept in the cache; 1:34 for llama the last time) ..."


def test_what_fails_leaves_no_note(caplog):
    with pytest.raises(ValueError, match="no"), durations.timed_step("exporting", "m"):
        raise ValueError("no")
    assert durations.last_seconds("exporting") is None


def test_what_is_quick_needs_no_word():
    durations.record_duration("scoring", 2.9)
    assert durations.last_duration_text("scoring") == ""
    assert durations.last_seconds("scoring") == 2.9


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seconds": "long", "of": ""}', "\0"])
def test_a_damaged_note_is_none(text):
    durations.record_duration("scoring", 60.0)
    (kept,) = durations.folder().iterdir()
    kept.write_text(text)
    assert durations.last_duration_text("scoring") == ""


def test_a_cache_that_cannot_be_written_costs_nothing(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(durations, "folder", lambda: tmp_path / "file" / "notes")
    durations.record_duration("scoring", 60.0)
    assert durations.last_duration_text("scoring") == ""
