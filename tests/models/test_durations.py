"""Long operations report their previous duration."""

from __future__ import annotations

import logging

import pytest

from llmtrack.models import durations


@pytest.fixture(autouse=True)
def _records(tmp_path, monkeypatch):
    monkeypatch.setattr(durations, "folder", lambda: tmp_path / "records")


def log_of_a_step(caplog, model="gpt2"):
    caplog.clear()
    with caplog.at_level(logging.INFO, "llmtrack"), durations.timed_step("exporting to ONNX", model):
        pass
    return [record.getMessage() for record in caplog.records]


def test_a_step_is_announced_with_its_last_duration(caplog):
    assert log_of_a_step(caplog) == [
        "exporting to ONNX (once, then cached) ...",
        "exporting to ONNX took 0:00",
    ]
    durations.record_duration("exporting to ONNX", 94.2, "gpt2")
    assert log_of_a_step(caplog)[0] == "exporting to ONNX (once, then cached; last time 1:34) ..."
    durations.record_duration("exporting to ONNX", 94.2, "llama")
    assert log_of_a_step(caplog)[0] == "exporting to ONNX (once, then cached; last time 1:34, for llama) ..."


def test_a_failed_step_is_not_recorded(caplog):
    with pytest.raises(ValueError, match="no"), durations.timed_step("exporting", "m"):
        raise ValueError("no")
    assert durations.last_seconds("exporting") is None


def test_a_short_duration_is_not_announced():
    durations.record_duration("scoring", 2.9)
    assert durations.last_duration_text("scoring") == ""
    assert durations.last_seconds("scoring") == 2.9


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"seconds": "long", "of": ""}', "\0"])
def test_a_damaged_record_is_ignored(text):
    durations.record_duration("scoring", 60.0)
    (record,) = durations.folder().iterdir()
    record.write_text(text)
    assert durations.last_duration_text("scoring") == ""


def test_an_unwritable_cache_is_ignored(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(durations, "folder", lambda: tmp_path / "file" / "records")
    durations.record_duration("scoring", 60.0)
    assert durations.last_duration_text("scoring") == ""
