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


@pytest.mark.parametrize("damage", ["shorten", "delete", "manifest", "half", "list"])
def test_a_damaged_entry_is_rebuilt(damage):
    build = Builder()
    entry = cache.build_once("x", build)
    if damage == "shorten":
        (entry / "sub" / "file").write_text("con")
    elif damage == "delete":
        (entry / "sub" / "file").unlink()
    elif damage == "manifest":
        (entry / cache.MANIFEST).unlink()
    elif damage == "half":
        (entry / cache.MANIFEST).write_text('{"files": {')
    else:
        (entry / cache.MANIFEST).write_text("[]")
    assert cache.describe_damage(entry)
    assert cache.build_once("x", build) == entry
    assert build.calls == 2
    assert (entry / "sub" / "file").read_text() == "content"
    assert sorted(path.name for path in entry.parent.iterdir()) == [".x.lock", "x"]


def keeping_times(change):
    """Change a file but restore its modification time."""

    def replace(path):
        before = path.stat()
        change(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return replace


def other_file(path):
    twin = path.with_name("twin")
    twin.write_text("c0ntent")
    os.replace(twin, path)


REPLACEMENTS = {
    "a byte": lambda path: path.write_text("c0ntent"),
    "a byte, its time kept": keeping_times(lambda path: path.write_text("c0ntent")),
    "another file": other_file,
    "another file, its time kept": keeping_times(other_file),
    "a file more": lambda path: path.with_name("added_tokens.json").write_text("{}"),
}


@pytest.mark.parametrize("hashed_before", [True, False])
@pytest.mark.parametrize("replace", REPLACEMENTS.values(), ids=REPLACEMENTS)
def test_a_replacement_of_equal_size_is_detected_and_rebuilt(replace, hashed_before, caplog, monkeypatch):
    monkeypatch.setattr(cache, "_TICK_NS", 0)  # cache digests at once
    build = Builder()
    entry = cache.build_once("x", build)
    if hashed_before:
        assert cache.describe_damage(entry) is None
    time.sleep(0.05)  # past the tick of the file system's clock
    replace(entry / "sub" / "file")
    assert cache.build_once("x", build) == entry
    assert build.calls == 2
    assert (entry / "sub" / "file").read_text() == "content"
    assert [path.name for path in (entry / "sub").iterdir()] == ["file"]
    assert "the cached x is damaged" in caplog.text
    assert cache.describe_damage(entry) is None


def test_an_entry_copied_from_another_is_rebuilt():
    build, other = Builder(), Builder("another")
    entry = cache.build_once("x", build)
    shutil.rmtree(entry)
    shutil.copytree(cache.build_once("y", other), entry)
    assert cache.describe_damage(entry) == "it was built as y"
    assert (cache.build_once("x", build) / "sub" / "file").read_text() == "content"


def test_an_unchanged_entry_is_hashed_once(monkeypatch):
    monkeypatch.setattr(cache, "_TICK_NS", 0)
    build = Builder()
    entry = cache.build_once("x", build)
    assert cache.describe_damage(entry) is None
    monkeypatch.setattr(cache, "sha256_of", lambda path: pytest.fail("read again"))
    assert cache.build_once("x", build) == entry


def test_hidden_files_are_no_damage():
    entry = cache.build_once("x", Builder())
    (entry / ".DS_Store").write_text("")
    assert cache.describe_damage(entry) is None


def test_a_first_build_logs_no_damage(caplog):
    cache.build_once("x", Builder())
    assert not caplog.text


def test_a_failed_build_leaves_nothing(own_cache):
    def fail(folder):
        (folder / "half").write_text("x")
        raise ModelLoadError("no luck")

    with pytest.raises(ModelLoadError, match="no luck"):
        cache.build_once("x", fail)
    assert [path.name for path in (own_cache / "models").iterdir()] == [".x.lock"]


def test_leftovers_of_a_killed_build_are_removed(own_cache):
    leftover = own_cache / "models" / ".x.new"
    leftover.mkdir(parents=True)
    (leftover / "half").write_text("x")
    entry = cache.build_once("x", Builder())
    assert not leftover.exists()
    assert "half" not in json.dumps(cache.read_manifest(entry))


def test_an_unwritable_cache_names_the_remedy(tmp_path, monkeypatch):
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


def test_a_file_digest_is_cached_until_the_file_changes(tmp_path, monkeypatch):
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
    keeping_times(lambda file: file.write_bytes(b"two"))(path)
    assert file_digest(path) != first


def test_a_damaged_cached_digest_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "_TICK_NS", 0)
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"one")
    first = file_digest(path)
    (note,) = (cache.cache_root() / "digests").iterdir()
    for damage in (b"\xff\xfe", b"", b"0" * 63):
        note.write_bytes(damage)
        assert file_digest(path) == first


def test_the_digest_of_a_file_changed_just_now_is_not_cached(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"one")
    file_digest(path)
    assert not (cache.cache_root() / "digests").exists()


def test_the_digest_of_several_files_depends_on_content_and_names(tmp_path):
    def digest(**files):
        for name, content in files.items():
            (tmp_path / f"{name}.safetensors").write_text(content)
        parts = {name: f"{name}.safetensors" for name in files}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))
        return folder_digest(tmp_path)

    assert len({digest(a="a", b="b"), digest(a="a", c="b"), digest(a="a", b="c")}) == 3
    assert digest(a="a", b="b") == digest(a="a", b="b")


@pytest.mark.parametrize("name", ["EMFILE", "EIO", "ESTALE", "EACCES"])
def test_a_temporarily_unreadable_entry_is_not_rebuilt(monkeypatch, name):
    build = Builder()
    entry = cache.build_once("x", build)

    def fail(path):
        raise OSError(getattr(errno, name), os.strerror(getattr(errno, name)), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(cache, "read_manifest", fail)
        with pytest.raises(ModelLoadError, match="cannot be used"):
            cache.build_once("x", build)
    assert cache.build_once("x", build) == entry
    assert build.calls == 1
