"""A folder that is built once, by one process, and is either whole or not there.

An entry is built in a temporary folder beside its final place and renamed into it. Its manifest names
every file with its size and sha256, so that an entry that was damaged or replaced is noticed and built again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from llmtrack.errors import ModelLoadError
from llmtrack.models.disk import is_full, room_for, why_full

MANIFEST = "llmtrack-manifest.json"
LOCK_SECONDS = 1800.0  # a slow download and a conversion by another process

_SHA256 = re.compile(r"[0-9a-f]{64}")
# A file can change twice within one tick of its file system's clock.
_TICK_NS = 100_000_000

logger = logging.getLogger(__name__)


def cache_root() -> Path:
    """Return the folder of all that is fetched or converted: `$LLMTRACK_CACHE`, or the user's cache."""
    if chosen := os.environ.get("LLMTRACK_CACHE"):
        return Path(os.path.expanduser(chosen)).absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("llmtrack"))


def build_once(name: str, build: Callable[[Path], dict[str, Any]], needed: int = 0) -> Path:
    """Return the folder of a cache entry, building it first if it is not there or is damaged.

    Args:
        name: the entry's name; it says everything that the content depends on.
        build: fills the empty folder it is given, and returns JSON-ready facts for the manifest.
        needed: bytes that building takes on the disk, as far as that is known; 0: it is not.

    Returns:
        The whole entry's folder.

    Raises:
        ModelLoadError: the cache's disk is full or cannot be written, or another process holds its lock for too long.
    """
    models = cache_root() / "models"
    entry = models / name
    lock = models / f".{name}.lock"
    try:
        if not damage(entry):
            return entry
        models.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=LOCK_SECONDS):
            if problem := damage(entry):
                if entry.exists():
                    logger.warning("the cached %s is not as it was made (%s): it is made again", name, problem)
                _build(entry, build, needed)
    except ModelLoadError:
        raise
    except Timeout:
        raise ModelLoadError(
            f"another process has held {lock} for {LOCK_SECONDS / 60:.0f} minutes: end it, or set LLMTRACK_CACHE"
        ) from None
    except OSError as error:
        if is_full(error):
            raise ModelLoadError(why_full(models, needed)) from error
        raise ModelLoadError(
            f"the model cache {models} cannot be used ({error.strerror or error}): "
            "free or permit it, or set LLMTRACK_CACHE to another folder"
        ) from error
    return entry


def damage(entry: Path) -> str | None:
    """Return what is wrong with a cache entry, or None: every file must be there as it was made, and no other.

    Raises:
        OSError: a file cannot be read just now (too many open files, no permission), which says nothing of the entry.
    """
    try:
        manifest = read_manifest(entry)
        files = manifest["files"]
        if (made_as := manifest.get("entry", entry.name)) != entry.name:
            return f"it was made as {made_as}"
        for name, expected in files.items():
            path = entry / name
            if path.stat().st_size != expected["size"]:
                return f"{name} has another size than when it was made"
            if file_digest(path) != expected["sha256"]:
                return f"{name} has another content than when it was made"
        if added := sorted(_files(entry) - {*files, MANIFEST}):
            return f"{added[0]} was added"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except NotADirectoryError as error:
        return f"{Path(error.filename).name} is no folder"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    return None


def _files(entry: Path) -> set[str]:
    """Return the files of an entry; hidden ones are a file browser's."""
    names = (path.relative_to(entry).as_posix() for path in entry.rglob("*") if path.is_file())
    return {name for name in names if not name.rpartition("/")[2].startswith(".")}


def read_manifest(entry: Path) -> dict[str, Any]:
    """Return the manifest of a cache entry."""
    manifest = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(manifest, dict):
        raise ValueError("not a JSON object")
    return manifest


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file's content, as hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """Return a file's sha256, remembering it for as long as the file is not touched.

    Reading the weights of a large model takes as long as loading them, and each worker loads anew. A file counts as
    touched when its size, inode or one of its times (of content, of anything) has changed.
    """
    real = path.resolve()
    state = real.stat()
    known_by = f"{real}\0{state.st_size}\0{state.st_ino}\0{state.st_mtime_ns}\0{state.st_ctime_ns}"
    key = hashlib.sha256(known_by.encode()).hexdigest()
    note = cache_root() / "digests" / key
    with suppress(OSError):
        remembered = note.read_text(encoding="ascii")
        if _SHA256.fullmatch(remembered):
            return remembered
    settled = abs(time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns)) > _TICK_NS
    digest = sha256_of(real)
    if settled:
        keep_note(note, digest)
    return digest


def keep_note(path: Path, text: str) -> None:
    """Write a small file, whole or not at all; a cache that cannot be written costs time only."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)


def entry_stem(name: str) -> str:
    """Return the beginning of the name of a cache entry of what has a name."""
    return "".join(each if each.isalnum() or each in "-_" else "-" for each in name)[:60]


def _build(entry: Path, build: Callable[[Path], dict[str, Any]], needed: int) -> None:
    scratch = entry.with_name(f".{entry.name}.new")
    discarded = entry.with_name(f".{entry.name}.old")
    # Left by a process that was killed: nobody else is at work here while we hold the lock.
    for leftover in (scratch, discarded):
        shutil.rmtree(leftover, ignore_errors=True)
    try:
        with room_for(scratch, needed):
            scratch.mkdir()
            facts = build(scratch)
            files = {
                path.relative_to(scratch).as_posix(): {"size": path.stat().st_size, "sha256": sha256_of(path)}
                for path in sorted(scratch.rglob("*"))
                if path.is_file()
            }
            (scratch / MANIFEST).write_text(
                json.dumps({**facts, "entry": entry.name, "files": files}, indent=1), encoding="utf-8"
            )
            if entry.exists():
                os.replace(entry, discarded)  # a folder cannot be renamed over one that is not empty
            os.replace(scratch, entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(discarded, ignore_errors=True)
