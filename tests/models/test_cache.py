import errno
import json
import os
import shutil
import subprocess
import sys
import time

import pytest

from llmtrack.errors import ModelLoadError
from llmtrack.models import cache
from llmtrack.models.cache import file_digest
from llmtrack.models.digests import folder_digest
from tests.conftest import HANG_S

pytestmark = pytest.mark.usefixtures("own_cache")


class Builder:
    def __init__(self, text="content"):
        self.calls = 0
        self.text = text

    def __call__(self, folder):
        self.calls += 1
        (folder / "sub").mkdir()
        (folder / "sub" / "file").write_text(self.text)
        return {"made": "here"}


def test_an_entry_is_built_once_with_its_manifest():
    build = Builder()
    entry = cache.build_once("x", build)
    assert cache.build_once("x", build) == entry
    assert build.calls == 1
    manifest = cache.read_manifest(entry)
    assert manifest["made"] == "here"
    assert manifest["files"]["sub/file"]["size"] == len("content")
    assert cache.describe_damage(entry) is None


@pytest.mark.parametrize("harm", ["shorten", "delete", "manifest", "half", "list"])
def test_a_damaged_entry_is_noticed_and_built_again(harm):
    build = Builder()
    entry = cache.build_once("x", build)
    if harm == "shorten":
        (entry / "sub" / "file").write_text("con")
    elif harm == "delete":
        (entry / "sub" / "file").unlink()
    elif harm == "manifest":
        (entry / cache.MANIFEST).unlink()
    elif harm == "half":
        (entry / cache.MANIFEST).write_text('{"files": {')
    else:
        (entry / cache.MANIFEST).write_text("[]")
    assert cache.describe_damage(entry)
    assert cache.build_once("x", build) == entry
    assert build.calls == 2
    assert (entry / "sub" / "file").read_text() == "content"
    assert sorted(path.name for path in entry.parent.iterdir()) == [".x.lock", "x"]


def keeping_times(change):
    """Change a file, and give it back the time of its content that it had."""

    def harm(path):
        before = path.stat()
        change(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return harm


def other_file(path):
    twin = path.with_name("twin")
    twin.write_text("c0ntent")
    os.replace(twin, path)


HARMS = {
    "a byte": lambda path: path.write_text("c0ntent"),
    "a byte, its time kept": keeping_times(lambda path: path.write_text("c0ntent")),
    "another file": other_file,
    "another file, its time kept": keeping_times(other_file),
    "a file more": lambda path: path.with_name("added_tokens.json").write_text("{}"),
}


@pytest.mark.parametrize("looked_at_before", [True, False])
@pytest.mark.parametrize("harm", HARMS.values(), ids=HARMS)
def test_what_was_replaced_at_equal_size_is_made_again_and_said(harm, looked_at_before, caplog, monkeypatch):
    monkeypatch.setattr(cache, "_TICK_NS", 0)  # so that digests are remembered at once
    build = Builder()
    entry = cache.build_once("x", build)
    if looked_at_before:
        assert cache.describe_damage(entry) is None
    time.sleep(0.05)  # past the tick of the file system's clock
    harm(entry / "sub" / "file")
    assert cache.build_once("x", build) == entry
    assert build.calls == 2
    assert (entry / "sub" / "file").read_text() == "content"
    assert [path.name for path in (entry / "sub").iterdir()] == ["file"]
    assert "the cached x is damaged" in caplog.text
    assert cache.describe_damage(entry) is None


def test_an_entry_in_the_place_of_another_is_made_again(own_cache):
    right, other = Builder(), Builder("another")
    entry = cache.build_once("x", right)
    shutil.rmtree(entry)
    shutil.copytree(cache.build_once("y", other), entry)
    assert cache.describe_damage(entry) == "it was built as y"
    assert (cache.build_once("x", right) / "sub" / "file").read_text() == "content"


def test_a_whole_entry_is_read_once_and_not_at_every_start(monkeypatch):
    monkeypatch.setattr(cache, "_TICK_NS", 0)
    build = Builder()
    entry = cache.build_once("x", build)
    assert cache.describe_damage(entry) is None
    monkeypatch.setattr(cache, "sha256_of", lambda path: pytest.fail("read again"))
    assert cache.build_once("x", build) == entry


def test_what_a_file_browser_leaves_is_no_damage():
    entry = cache.build_once("x", Builder())
    (entry / ".DS_Store").write_text("")
    assert cache.describe_damage(entry) is None


def test_a_first_build_is_no_damage_to_speak_of(caplog):
    cache.build_once("x", Builder())
    assert not caplog.text


def test_a_build_that_fails_leaves_nothing_behind(own_cache):
    def fail(folder):
        (folder / "half").write_text("x")
        raise ModelLoadError("no luck")

    with pytest.raises(ModelLoadError, match="no luck"):
        cache.build_once("x", fail)
    assert [path.name for path in (own_cache / "models").iterdir()] == [".x.lock"]


def test_what_a_killed_build_left_is_removed(own_cache):
    leftover = own_cache / "models" / ".x.new"
    leftover.mkdir(parents=True)
    (leftover / "half").write_text("x")
    entry = cache.build_once("x", Builder())
    assert not leftover.exists()
    assert "half" not in json.dumps(cache.read_manifest(entry))


def test_a_cache_that_cannot_be_written_says_what_to_do(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelLoadError, match="set LLMTRACK_CACHE"):
        cache.build_once("x", Builder())


@pytest.mark.slow(1)
def test_two_processes_build_an_entry_once(own_cache):
    code = """
import time
from llmtrack.models.cache import build_once
def build(folder):
    print("built", flush=True)
    (folder / "file").write_text("x")
    time.sleep(0.5)
    return {}
print(build_once("x", build).name)
"""
    processes = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    output = "".join(process.communicate(timeout=HANG_S)[0] for process in processes)
    assert output.split().count("built") == 1
    assert output.split().count("x") == 2


def test_a_file_digest_is_remembered_until_the_file_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_TICK_NS", 0)
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"one")
    first = file_digest(path)
    assert first == cache.sha256_of(path)
    assert folder_digest(tmp_path) == f"safetensors:{first}"
    with monkeypatch.context() as patch:
        patch.setattr(cache, "sha256_of", lambda _: pytest.fail("read again"))
        assert file_digest(path) == first
    time.sleep(0.05)  # past the tick of the file system's clock
    keeping_times(lambda at: at.write_bytes(b"two"))(path)
    assert file_digest(path) != first


def test_a_remembered_digest_that_is_none_is_taken_anew(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_TICK_NS", 0)
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"one")
    first = file_digest(path)
    (note,) = (cache.cache_root() / "digests").iterdir()
    for damage in (b"\xff\xfe", b"", b"0" * 63):
        note.write_bytes(damage)
        assert file_digest(path) == first


def test_a_file_that_has_just_changed_is_not_remembered(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"one")
    file_digest(path)
    assert not (cache.cache_root() / "digests").exists()


def test_the_digest_of_several_files_depends_on_each_and_on_their_names(tmp_path):
    def digest(**files):
        for name, content in files.items():
            (tmp_path / f"{name}.safetensors").write_text(content)
        parts = {name: f"{name}.safetensors" for name in files}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
        return folder_digest(tmp_path)

    assert len({digest(a="a", b="b"), digest(a="a", c="b"), digest(a="a", b="c")}) == 3
    assert digest(a="a", b="b") == digest(a="a", b="b")


@pytest.mark.parametrize("name", ["EMFILE", "EIO", "ESTALE", "EACCES"])
def test_an_entry_that_cannot_be_read_just_now_is_not_made_again(monkeypatch, name):
    build = Builder()
    entry = cache.build_once("x", build)

    def fails(path):
        raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(cache, "read_manifest", fails)
        with pytest.raises(ModelLoadError, match="cannot be used"):
            cache.build_once("x", build)
    assert cache.build_once("x", build) == entry
    assert build.calls == 1
