"""What a child process needs: the llmtrack that its parent runs, and a place for temporary files that somebody removes."""

from __future__ import annotations

import contextlib
import os
import tempfile
import uuid

from llmtrack.version import FOLDER

SCRATCH = "LLMTRACK_SCRATCH"
"""Names a worker's folder for those of its own children, which is made when there are any; who started the worker removes it.

A worker that is killed removes nothing, and what is converted or quantized takes gigabytes.
"""

WORKER = "llmtrack.worker.process"
"""The module that a worker process runs."""

OUT_OF_MEMORY = 99
"""Exit code of a worker that the system refused memory."""


def child_environment() -> dict[str, str]:
    """Return this process's environment, with the folder of this llmtrack first on the path of imports."""
    source = str(FOLDER.parent)
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path}


def unused_folder() -> str:
    """Return a path that is not there yet, among other temporary files if they have a place; empty if not."""
    with contextlib.suppress(OSError):
        return os.path.join(tempfile.gettempdir(), f"llmtrack-{uuid.uuid4().hex}")
    return ""


def own_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a folder for a child's temporary files, which goes with all that is there."""
    scratch = os.environ.get(SCRATCH) or None
    if scratch:
        os.makedirs(scratch, mode=0o700, exist_ok=True)
    return tempfile.TemporaryDirectory(prefix="llmtrack-", dir=scratch)
