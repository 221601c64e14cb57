"""Cache folders that are built once, by one process, atomically.

An entry is built in a temporary folder and renamed to its final place. Its manifest lists every file with size and
sha256, so that damaged or replaced entries are detected and rebuilt.
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
from llmtrack.models.disk import full_disk_message, is_disk_full, room_for

MANIFEST = "llmtrack-manifest.json"
LOCK_SECONDS = 1800.0  # covers a slow download and conversion by another process

_SHA256 = re.compile(r"[0-9a-f]{64}")
# A file can change twice within one tick of the file system clock.
_TICK_NS = 100_000_000

logger = logging.getLogger(__name__)


def cache_root() -> Path:
    """Return the cache folder: `$LLMTRACK_CACHE`, or the user's cache."""
    if setting := os.environ.get("LLMTRACK_CACHE"):
        return Path(os.path.expanduser(setting)).absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("llmtrack"))


def build_once(name: str, build: Callable[[Path], dict[str, Any]], needed: int = 0) -> Path:
    """Return the folder of a cache entry, building it if it is missing or damaged.

    Args:
        name: identifies everything that the content depends on.
        build: fill the given empty folder; return JSON-ready facts for the manifest.
        needed: bytes needed on the disk while building; 0 if unknown.

    Raises:
        ModelLoadError: the cache's disk is full or read-only, or another process holds the lock for too long.
    """
    models = cache_root() / "models"
    entry = models / name
    lock = models / f".{name}.lock"
    try:
        if not describe_damage(entry):
            return entry
        models.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=LOCK_SECONDS):
            if problem := describe_damage(entry):
                if entry.exists():
                    logger.warning("the cached %s is damaged (%s): rebuilding it", name, problem)
                _build(entry, build, needed)
    except ModelLoadError:
        raise
    except Timeout:
        raise ModelLoadError(
            f"another process has held {lock} for {LOCK_SECONDS / 60:.0f} minutes: end it, or set LLMTRACK_CACHE"
        ) from None
    except OSError as error:
        if is_disk_full(error):
            raise ModelLoadError(full_disk_message(models, needed)) from error
        raise ModelLoadError(
            f"the model cache {models} cannot be used ({error.strerror or error}): "
            "free some space or make it writable, or set LLMTRACK_CACHE to another folder"
        ) from error
    return entry


def describe_damage(entry: Path) -> str | None:
    """Describe how a cache entry differs from its manifest; None if it does not.

    Raises:
        OSError: a file is temporarily unreadable (too many open files, no permission).
    """
    try:
        manifest = read_manifest(entry)
        files = manifest["files"]
        if (built_as := manifest.get("entry", entry.name)) != entry.name:
            return f"it was built as {built_as}"
        for name, expected in files.items():
            path = entry / name
            if path.stat().st_size != expected["size"]:
                return f"{name} has another size than when it was built"
            if file_digest(path) != expected["sha256"]:
                return f"{name} has another content than when it was built"
        if added := sorted(_files(entry) - {*files, MANIFEST}):
            return f"{added[0]} was added"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except NotADirectoryError as error:
        return f"{Path(error.filename).name} is not a folder"
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    return None


def _files(entry: Path) -> set[str]:
    """Return an entry's files, except hidden ones (added by file browsers)."""
    names = (path.relative_to(entry).as_posix() for path in entry.rglob("*") if path.is_file())
    return {name for name in names if not name.rpartition("/")[2].startswith(".")}


def read_manifest(entry: Path) -> dict[str, Any]:
    """Return the manifest of a cache entry."""
    manifest = json.loads((entry / MANIFEST).read_text(encoding="utf-8"))
    if not isinstance(manifest, dict):
        raise ValueError("not a JSON object")
    return manifest


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file as hex digits."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def file_digest(path: Path) -> str:
    """Return a file's sha256, cached while its size, inode and times are unchanged.

    Hashing a large model takes as long as loading it, and each worker loads it.
    """
    real = path.resolve()
    state = real.stat()
    identity = f"{real}\0{state.st_size}\0{state.st_ino}\0{state.st_mtime_ns}\0{state.st_ctime_ns}"
    key = hashlib.sha256(identity.encode()).hexdigest()
    note = cache_root() / "digests" / key
    with suppress(OSError, ValueError):
        cached = note.read_text(encoding="ascii")
        if _SHA256.fullmatch(cached):
            return cached
    settled = abs(time.time_ns() - max(state.st_mtime_ns, state.st_ctime_ns)) > _TICK_NS
    digest = sha256_of(real)
    if settled:
        write_note(note, digest)
    return digest


def write_note(path: Path, text: str) -> None:
    """Write a small cache file atomically; a failure is ignored."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_name(f"{path.name}.{os.getpid()}")
        draft.write_text(text, encoding="utf-8")
        os.replace(draft, path)


def safe_name(name: str) -> str:
    """Return a name without special characters, to begin a cache entry's name with."""
    return "".join(char if char.isalnum() or char in "-_" else "-" for char in name)[:60]


def _build(entry: Path, build: Callable[[Path], dict[str, Any]], needed: int) -> None:
    scratch = entry.with_name(f".{entry.name}.new")
    discarded = entry.with_name(f".{entry.name}.old")
    # Left by a killed process: this one holds the lock.
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
                os.replace(entry, discarded)  # a folder cannot be renamed over a non-empty one
            os.replace(scratch, entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(discarded, ignore_errors=True)
