"""A folder that is built once, by one process, and is either whole or not there.

An entry is built in a temporary folder beside its final place and renamed into it. Its manifest names
every file with its size and sha256, so that a damaged entry is noticed and built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from llmtrack.errors import ModelLoadError

MANIFEST = "llmtrack-manifest.json"
LOCK_SECONDS = 1800.0  # a slow download and a conversion by another process


def cache_root() -> Path:
    """Return the folder of all that is fetched or converted: `$LLMTRACK_CACHE`, or the user's cache."""
    if chosen := os.environ.get("LLMTRACK_CACHE"):
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("llmtrack"))


def build_once(name: str, build: Callable[[Path], dict[str, Any]]) -> Path:
    """Return the folder of a cache entry, building it first if it is not there or is damaged.

    Args:
        name: the entry's name; it says everything that the content depends on.
        build: fills the empty folder it is given, and returns JSON-ready facts for the manifest.

    Returns:
        The whole entry's folder.

    Raises:
        ModelLoadError: the cache cannot be written, or another process holds its lock for too long.
    """
    models = cache_root() / "models"
    entry = models / name
    if not damage(entry):
        return entry
    lock = models / f".{name}.lock"
    try:
        models.mkdir(parents=True, exist_ok=True)
        with FileLock(lock, timeout=LOCK_SECONDS):
            if damage(entry):
                _build(entry, build)
    except Timeout:
        raise ModelLoadError(
            f"another process has held {lock} for {LOCK_SECONDS / 60:.0f} minutes: "
            "end it, or set LLMTRACK_CACHE"
        ) from None
    except OSError as error:
        raise ModelLoadError(
            f"the model cache {models} cannot be used ({error.strerror or error}): "
            "free or permit it, or set LLMTRACK_CACHE to another folder"
        ) from error
    return entry


def damage(entry: Path, full: bool = False) -> str | None:
    """Return what is wrong with a cache entry, or None.

    Args:
        entry: the entry's folder.
        full: compare the sha256 of every file too, not only its size.
    """
    try:
        files = read_manifest(entry)["files"]
        for name, expected in files.items():
            path = entry / name
            if path.stat().st_size != expected["size"]:
                return f"{name} has another size than when it was made"
            if full and sha256_of(path) != expected["sha256"]:
                return f"{name} has another content than when it was made"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} cannot be read ({error})"
    return None


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


def _build(entry: Path, build: Callable[[Path], dict[str, Any]]) -> None:
    scratch = entry.with_name(f".{entry.name}.new")
    discarded = entry.with_name(f".{entry.name}.old")
    # Left by a process that was killed: nobody else is at work here while we hold the lock.
    for leftover in (scratch, discarded):
        shutil.rmtree(leftover, ignore_errors=True)
    scratch.mkdir()
    try:
        facts = build(scratch)
        files = {
            path.relative_to(scratch).as_posix(): {"size": path.stat().st_size, "sha256": sha256_of(path)}
            for path in sorted(scratch.rglob("*"))
            if path.is_file()
        }
        (scratch / MANIFEST).write_text(json.dumps({**facts, "files": files}, indent=1), encoding="utf-8")
        if entry.exists():
            os.replace(entry, discarded)  # a folder cannot be renamed over one that is not empty
        os.replace(scratch, entry)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.rmtree(discarded, ignore_errors=True)
