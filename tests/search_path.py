"""Put folders first on the import path of a new Python, before those of PYTHONPATH, where the installation may be."""

from __future__ import annotations

import os
from pathlib import Path


def with_folders(*folders: Path | str) -> str:
    """Return a value of PYTHONPATH that begins with some folders."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
