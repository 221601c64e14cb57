"""Digests of weights, so that a tracked number says exactly which weights it belongs to."""

from __future__ import annotations

import hashlib
import os
import re
from contextlib import suppress
from pathlib import Path

from llmtrack.models.cache import cache_root, sha256_of

_SHA256 = re.compile(r"[0-9a-f]{64}")
_SAFETENSORS, _PICKLE = "*.safetensors", "pytorch_model*.bin"


def weight_files(folder: Path) -> tuple[str, list[Path]]:
    """Return the format and the files of a model folder's weights: safetensors before pickle.

    Returns:
        `safetensors`, `pickle` or `none`, and the files sorted by name.
    """
    for name, pattern in (("safetensors", _SAFETENSORS), ("pickle", _PICKLE)):
        # Adapters are not the model's own weights.
        files = sorted(path for path in folder.glob(pattern) if not path.name.startswith("adapter_"))
        if files:
            return name, files
    return "none", []


def folder_digest(folder: Path) -> str:
    """Return `FORMAT:sha256` of a model folder's weights: of the one file, or of the list of several."""
    kind, files = weight_files(folder)
    if len(files) == 1:
        return f"{kind}:{file_digest(files[0])}"
    listing = "".join(f"{path.name} {file_digest(path)}\n" for path in files)
    return f"{kind}:{hashlib.sha256(listing.encode()).hexdigest()}"


def file_digest(path: Path) -> str:
    """Return a file's sha256, remembering it for as long as size and time of the file do not change.

    Reading the weights of a large model takes as long as loading them, and each worker loads anew.
    """
    real = path.resolve()
    # The hub's cache names a file that is stored by its sha256 after it.
    if _SHA256.fullmatch(real.name):
        return real.name
    state = real.stat()
    key = hashlib.sha256(f"{real}\0{state.st_size}\0{state.st_mtime_ns}".encode()).hexdigest()
    note = cache_root() / "digests" / key
    with suppress(OSError):
        remembered = note.read_text(encoding="ascii")
        if _SHA256.fullmatch(remembered):
            return remembered
    digest = sha256_of(real)
    with suppress(OSError):  # a cache that cannot be written costs time only
        note.parent.mkdir(parents=True, exist_ok=True)
        draft = note.with_name(f"{key}.{os.getpid()}")
        draft.write_text(digest, encoding="ascii")
        os.replace(draft, note)
    return digest
