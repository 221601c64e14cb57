"""Environment and temporary folders of child processes."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid

from llmtrack.version import FOLDER

SCRATCH = "LLMTRACK_SCRATCH"
"""Environment variable with a worker's scratch folder for its own children; the parent of the worker removes it.

A killed worker cannot clean up, and conversions take gigabytes.
"""

WORKER = "llmtrack.worker.process"
"""The module that a worker process runs."""

OUT_OF_MEMORY = 99
"""Exit code of a worker that ran out of memory."""


def child_environment() -> dict[str, str]:
    """Return this process's environment with this llmtrack first on PYTHONPATH."""
    source = str(FOLDER.parent)
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path}


def unused_folder() -> str:
    """Return the path of a new temporary folder, or an empty text if there is no place for one."""
    with contextlib.suppress(OSError):
        return os.path.join(tempfile.gettempdir(), f"llmtrack-{uuid.uuid4().hex}")
    return ""


def own_folder() -> tempfile.TemporaryDirectory[str]:
    """Create a temporary folder for a child process; it is removed with its contents."""
    scratch = os.environ.get(SCRATCH) or None
    if scratch:
        os.makedirs(scratch, mode=0o700, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="llmtrack-", dir=scratch)
