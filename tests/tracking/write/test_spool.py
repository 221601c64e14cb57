import contextlib
import dataclasses
import errno
import json
import os
from pathlib import Path

import pytest

from llmtrack.errors import TrackingError
from llmtrack.tracking.write.records import StudyContext, scenario_record
from llmtrack.tracking.write.spool import Entry, NewerEntryError, Spool, Target
from llmtrack.tracking.write.sync import sync
from tests.conftest import HANG_S
from tests.forking import at_once, processes
from tests.tracking.samples import measurement

STUDY = StudyContext("study-1", "precision")
TARGET = Target("http://127.0.0.1:1", "llmtrack")


def entry(name: str = "p64", **changes) -> Entry:
    return dataclasses.replace(Entry(scenario_record(measurement(name), STUDY), TARGET), **changes)


@pytest.fixture
def spool(tmp_path, messages) -> Spool:
    return Spool(tmp_path / "spool", messages.append)


def read(spool: Spool, name: str) -> Entry:
    with spool.claim(name, 1) as claimed:
        assert claimed is not None
        return claimed


def test_an_entry_can_be_read_by_another_process(spool):
    stored = spool.put(entry(), {"plots/a.png": b"png"})
    reopened = Spool(spool.folder)
    assert reopened.names() == [stored.name]
    assert read(reopened, stored.name) == stored
    assert (reopened.files_of(stored) / "plots/a.png").read_bytes() == b"png"


def test_removal_leaves_nothing(spool):
    stored = spool.put(entry(), {"a.txt": b"a"})
    with spool.claim(stored.name, 1) as claimed:
        spool.remove(claimed)
    assert spool.names() == []
    assert [path.name for path in spool.folder.iterdir() if path.name != "lock"] == []


def test_entries_are_sorted_by_start(spool):
    late = spool.put(entry("a"))
    early = spool.put(Entry(dataclasses.replace(late.record, start_ms=5, record_id="zz"), TARGET))
    assert spool.names() == [early.name, late.name]


def test_a_replaced_entry_keeps_its_run_and_files(spool):
    first = spool.put(entry(), {"a.txt": b"a"})
    spool.update(dataclasses.replace(first, attempted=True, run_id="r1"))
    spool.put(dataclasses.replace(entry(), record=dataclasses.replace(first.record, status="KILLED")))
    replaced = read(spool, first.name)
    assert (replaced.record.status, replaced.run_id, replaced.attempted, replaced.has_files) == (
        "KILLED",
        "r1",
        True,
        True,
    )
    assert (spool.files_of(replaced) / "a.txt").exists()


@pytest.mark.parametrize("content", ["", "{", "[]", "5", '{"format": 0}', '{"format": 1, "record": {}}', "\xff\x00"])
def test_a_corrupt_entry_is_moved_aside_and_the_others_stay(spool, messages, content):
    bad, good = spool.put(entry("bad")), spool.put(entry("good"))
    (spool.folder / bad.name / "entry.json").write_text(content, encoding="latin-1")
    with spool.claim(bad.name, 1) as claimed:
        assert claimed is None
    assert spool.names() == [good.name]
    assert list((spool.folder / "corrupt").iterdir())
    assert len(messages) == 1
    assert "moved to" in messages[0]


STORED = {
    "format": 1,
    "record": {
        "record_id": "r",
        "run_name": "p64",
        "status": "FINISHED",
        "start_ms": 5,
        "end_ms": 7,
        "params": {"threads": 2, "target_ci": 0.05, "use_cache": True, "model": "m"},
        "metrics": {"loss": 1.5},
        "series": {"series/val_loss": [2.0, 1.5]},
        "steps": [{"step": 1, "at": 6.0, "values": {"train_loss": 2.0}}],
        "tags": {"llmtrack.kind": "scenario"},
        "texts": {"sample.txt": "Once"},
    },
    "target": {"tracking_uri": "u", "experiment": "e", "experiment_id": ""},
    "run_id": None,
    "attempted": False,
    "has_files": False,
}


def store(spool: Spool, content: object) -> Path:
    folder = spool.folder / "0000000000005-r"
    folder.mkdir(parents=True)
    (folder / "entry.json").write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("omitted", [(), ("steps",)])
def test_the_stored_format_is_unchanged(spool, omitted):
    record = {key: value for key, value in STORED["record"].items() if key not in omitted}
    folder = store(spool, {**STORED, "record": record})
    before = (folder / "entry.json").read_text()
    stored = read(spool, folder.name)
    assert [type(value) for value in stored.record.params.values()] == [int, float, bool, str]
    spool.update(stored)
    assert (folder / "entry.json").read_text() == before


NEWER = [
    {**STORED, "record": {**STORED["record"], "colour": "red"}},
    {**STORED, "target": {**STORED["target"], "colour": "red"}},
    {**STORED, "colour": "red"},
    {"format": 2, "anything": []},
]


@pytest.mark.parametrize("content", NEWER, ids=["record", "target", "entry", "format"])
def test_an_entry_of_a_newer_version_is_left_for_it(spool, messages, content):
    folder = store(spool, content)
    before = (folder / "entry.json").read_bytes()
    with pytest.raises(NewerEntryError, match=r"written by a newer llmtrack \((.*colour.*|format 2)\)") as caught:
        spool.peek(folder.name)
    assert "\n" not in str(caught.value)
    result = sync(spool.folder)
    assert (result.sent, result.left, result.corrupt, result.problems) == (0, 1, 0, (str(caught.value),))
    assert (folder / "entry.json").read_bytes() == before
    assert messages == []


PASSING = ["EMFILE", "ENFILE", "ESTALE", "EIO", "ENOMEM", "EACCES", "ETIMEDOUT"]


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("step", ["read_bytes", "stat", "listdir"])
def test_a_temporarily_unreadable_entry_stays_and_counts(spool, messages, monkeypatch, name, step):
    names = sorted(spool.put(entry(label)).name for label in "ab")
    (spool.folder / names[0]).touch()
    os.utime(spool.folder / names[0], (0, 0))  # so old that a sweep would take what is not whole

    def fails(path, *args, **options):
        raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)), str(path))

    with monkeypatch.context() as patch:
        if step == "read_bytes":
            patch.setattr(Path, "read_bytes", fails)
            result = sync(spool.folder)
            assert (result.sent, result.left, result.corrupt) == (0, 2, 0)
            assert os.strerror(getattr(errno, name)) in result.problems[0]
            assert spool.waiting(lambda entry: False) == 2
        else:
            patch.setattr(os, step, fails)
            with pytest.raises((TrackingError, OSError)) if step == "listdir" else contextlib.nullcontext():
                spool.check_readable()
                spool.sweep()
                assert spool.names() == names
    assert spool.names() == names
    assert [spool.peek(stored).name for stored in names] == names
    assert not spool.set_aside.exists()
    assert messages == []


@pytest.mark.parametrize("content", ["[" * 100_000, "{", '{"format": true}', '{"format": "2"}'])
def test_set_aside_entries_are_counted_until_they_are_removed(spool, messages, content):
    bad = spool.put(entry("bad"))
    (spool.folder / bad.name / "entry.json").write_text(content)
    for _ in range(2):
        result = sync(spool.folder, notify=messages.append)
        assert (result.sent, result.left, result.corrupt) == (0, 0, 1)
        assert result.problems == (
            f"1 record in {spool.set_aside} cannot be read: look at the entry.json of each, and delete the folder if none is needed",
        )
    assert len(messages) == 1


def test_a_readable_entry_that_was_set_aside_is_restored(spool):
    """Older versions set entries aside when no file could be opened."""
    good = spool.put(entry())
    spool.set_aside.mkdir()
    os.replace(spool.folder / good.name, spool.set_aside / f"{good.name}-abcd1234")
    assert spool.restore() == 1
    assert spool.names() == [good.name]
    assert spool.corrupt() == []


def test_a_crash_while_writing_leaves_no_entry(spool):
    half = spool.folder / "new-abc"
    half.mkdir(parents=True)
    (half / "entry.part").write_text("{")
    assert spool.names() == []


@pytest.mark.slow(1)
def test_an_entry_is_held_by_one_process_at_a_time(spool):
    stored = spool.put(entry())
    with spool.claim(stored.name, 1):
        process = processes().Process(target=_exit_by_claim, args=(spool.folder, stored.name))
        process.start()
        process.join(HANG_S)
    assert process.exitcode == 7


def test_an_entry_in_transit_does_not_block_others(spool, monkeypatch):
    monkeypatch.setattr("llmtrack.tracking.write.spool._PUT_TIMEOUT_S", 0.2)
    slow = spool.put(entry("slow"), {"checkpoint.bin": b"1"})
    other = Spool(spool.folder)
    with spool.claim(slow.name, 1):
        quick = other.put(entry("quick"))
        with other.claim(quick.name, 0.1) as claimed:
            assert claimed == quick
            other.remove(claimed)
        with other.claim(slow.name, 0.1) as claimed:
            assert claimed is None
        # The same record anew has to wait for it, and says so when it cannot.
        with pytest.raises(TrackingError, match="another process has held it"):
            other.put(entry("slow"))
        spool.remove(slow)
    assert spool.names() == []
    anew = other.put(entry("slow"))
    assert read(spool, anew.name) == anew


def test_the_remains_of_a_removal_block_nothing(spool):
    stored = spool.put(entry(), {"a.txt": b"a"})
    (spool.folder / stored.name / "entry.json").unlink()
    assert spool.names() == []
    with spool.claim(stored.name, 1) as claimed:
        assert claimed is None
    anew = spool.put(entry())
    assert read(spool, anew.name) == anew
    assert not (spool.files_of(anew) / "a.txt").exists()


@pytest.mark.slow(1)
def test_processes_may_store_the_same_record_at_once(spool):
    at_once(_put_often, spool.folder)
    assert len(spool.names()) == 1
    assert not list(spool.folder.glob("new-*"))


def test_a_record_may_be_sent_while_another_of_its_identity_is_stored(spool, monkeypatch):
    """It blocks the move, and is gone before it can be locked."""
    in_the_way = iter([OSError(errno.ENOTEMPTY, "Directory not empty")])
    replace = os.replace

    def replace_late(source, target):
        for error in in_the_way if Path(source).is_dir() else ():
            raise error
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_late)
    stored = spool.put(entry())
    assert next(in_the_way, None) is None
    assert spool.names() == [stored.name]


def _put_often(folder: Path) -> None:
    spool = Spool(folder)
    for _ in range(20):
        stored = spool.put(entry())
        with spool.claim(stored.name, 5) as claimed:
            if claimed is not None:
                spool.remove(claimed)
    spool.put(entry())


def _exit_by_claim(folder: Path, name: str) -> None:
    with Spool(folder).claim(name, 0.1) as claimed:
        raise SystemExit(7 if claimed is None else 0)


def test_an_unwritable_folder_is_a_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrackingError, match="LLMTRACK_SPOOL"):
        Spool(tmp_path / "file" / "spool").put(entry())


@pytest.mark.parametrize("unreadable", ["file", "a" * 5_000], ids=["a file", "too long a name"])
def test_an_unreadable_folder_is_not_taken_for_empty(tmp_path, unreadable):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrackingError, match=r"cannot list the records in .*LLMTRACK_SPOOL"):
        sync(tmp_path / unreadable)
    # What is tracked meanwhile goes on.
    assert Spool(tmp_path / unreadable).names() == []


def test_the_folder_comes_from_the_environment(tmp_path, monkeypatch):
    assert Spool().folder == tmp_path / ".llmtrack" / "spool"
    monkeypatch.setenv("LLMTRACK_SPOOL", str(tmp_path / "mine"))
    assert Spool().folder == tmp_path / "mine"
