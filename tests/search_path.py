"""Put folders before all else that a new Python finds; what PYTHONPATH has already stays, as the installation may be there."""

from __future__ import annotations

import os
from pathlib import Path


def with_folders(*folders: Path | str) -> str:
    """Return a value of PYTHONPATH that begins with some folders."""
    return os.pathsep.join([*map(str, folders), *filter(None, [os.environ.get("PYTHONPATH")])])
