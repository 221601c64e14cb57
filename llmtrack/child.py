"""What a child process needs in order to import the llmtrack that its parent runs."""

from __future__ import annotations

import os

from llmtrack.version import FOLDER


def child_environment() -> dict[str, str]:
    """Return this process's environment, with the folder of this llmtrack first on the path of imports."""
    source = str(FOLDER.parent)
    path = os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))
    return os.environ | {"PYTHONPATH": path}
