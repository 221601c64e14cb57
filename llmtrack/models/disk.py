"""Check free disk space before writing, and give every failure on a full disk the same message."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from llmtrack.errors import LlmtrackError, ModelLoadError
from llmtrack.host.formatting import MIB

FLOAT_BITS = 32

CACHE = "LLMTRACK_CACHE"
"""Environment variable that moves the cache, for messages."""

_SPARE_BYTES = 64 * MIB
_NEARLY_NONE = MIB  # torch and others fail there without naming the cause
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
# Messages of the system, Rust libraries and installers.
_FULL = (
    "no space left on device",
    "disk quota exceeded",
    "not enough space on the disk",
    "(os error 28)",
    "[errno 28]",
)
_LONGEST_HEADER = 100_000_000
_HALF_BYTES = 2  # per weight, for files whose header is not read
_HEAD = re.compile(r"(^|\.)(lm_head|embed_out|output)\.weight$")
_EMBEDDING = re.compile(r"(^|\.)(embed_tokens|wte|embed_in|word_embeddings|tok_embeddings|embeddings)\.weight$")


def is_disk_full(error: BaseException | str) -> bool:
    """Return whether an error or a program's output reports a full disk or an exhausted quota."""
    if isinstance(error, str):
        return any(message in error.lower() for message in _FULL)
    by_number = isinstance(error, OSError) and error.errno in _NO_SPACE
    return by_number or is_disk_full(str(error)) or (error.__cause__ is not None and is_disk_full(error.__cause__))


def full_disk_message(folder: Path, needed: int = 0, setting: str = CACHE, written: int = 0) -> str:
    """Name the full disk (of a folder or of temporary files), its free and the needed bytes, and the remedy.

    `written` of the needed bytes (0: unknown) exist already; the setting moves the folder.
    """
    free = _free(folder)
    # The folder's disk, if the needed bytes are known not to fit there.
    full = folder if written or needed > free[folder] else min(free, key=free.__getitem__)
    room = free[full] + (written if full == folder else 0)
    amount = (
        f", and {needed / MIB:,.0f} MiB are needed" if needed > room else ", and more are needed" if written else ""
    )
    return (
        f"the disk of {full} is full: {room / MIB:,.0f} MiB are free{amount}: free some space there, or set "
        f"{setting if full == folder else 'TMPDIR'} to a folder on another disk"
    )


@contextmanager
def room_for(folder: Path, needed: int = 0, setting: str = CACHE) -> Iterator[None]:
    """Check that the bytes fit on a folder's disk, and explain later failures caused by a full disk.

    Args:
        folder: the folder to fill; its present content is replaced or reused.
        needed: peak bytes; 0: unknown.
        setting: name of the setting that moves the folder.

    Raises:
        ModelLoadError: the disk is too small, or became full.
    """
    require_room(folder, needed, setting)
    try:
        yield
    except Exception as error:
        if caused_by_full_disk(error, folder):
            raise ModelLoadError(full_disk_message(folder.parent, needed, setting, _size(folder))) from error
        raise


def require_room(folder: Path, needed: int, setting: str = CACHE) -> None:
    """Check that the bytes fit on a folder's disk; see `room_for`."""
    written = _size(folder)
    if needed > _free(folder.parent)[folder.parent] + written:
        raise ModelLoadError(full_disk_message(folder.parent, needed, setting, written))


def caused_by_full_disk(error: BaseException, folder: Path) -> bool:
    """Return whether a full disk, of a folder or of temporary files, caused an error."""
    free = min(_free(folder).values())
    origin = error
    while isinstance(origin, LlmtrackError) and origin.__cause__ is not None:
        origin = origin.__cause__
    if isinstance(origin, (OSError, MemoryError, LlmtrackError)):
        reported = is_disk_full(origin)
    else:
        reported = is_disk_full(origin) or free < _NEARLY_NONE
    # With free space here, keep an error of our own: the full disk is another one, such as the server's.
    return reported and (free < _SPARE_BYTES or not isinstance(error, LlmtrackError))


def disk_full_error() -> OSError:
    """Return the system's error for a full disk, for failures that a program reports as text."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@dataclass(frozen=True)
class Weights:
    """Number of weights of a model, and those of an embedding that is not also the head."""

    count: int
    embedding: int = 0

    def stored(self, bits: int = FLOAT_BITS, embedding_bits: int = FLOAT_BITS) -> int:
        """Return the minimum bytes at these bits, with the embedding at no fewer than its own."""
        return ((self.count - self.embedding) * bits + self.embedding * max(bits, embedding_bits)) // 8


def count_weights(files: Iterable[Path]) -> Weights:
    """Count the weights in a model's files."""
    counts: dict[str, int] = {}
    for path in files:
        counts |= _counts(path)
    # A tied head is stored once, if at all, and then quantized.
    untied = any(_HEAD.search(name) for name in counts)
    return Weights(sum(counts.values()), sum(n for name, n in counts.items() if untied and _EMBEDDING.search(name)))


def _counts(path: Path) -> dict[str, int]:
    """Return the sizes of a file's tensors by name; an estimated total if its header cannot be read."""
    if path.suffix == ".safetensors":
        # A damaged file is reported on loading.
        with suppress(ValueError, KeyError, TypeError, AttributeError), path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, _LONGEST_HEADER)))
            return {name: math.prod(tensor["shape"]) for name, tensor in header.items() if name != "__metadata__"}
    return {path.name: path.stat().st_size // _HALF_BYTES}


def _free(folder: Path) -> dict[Path, int]:
    """Return the free bytes of the disks of a folder and of temporary files."""
    return {path: shutil.disk_usage(_existing_parent(path)).free for path in (folder, Path(tempfile.gettempdir()))}


def _existing_parent(path: Path) -> Path:
    return next(parent for parent in (path, *path.parents) if parent.exists())


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
