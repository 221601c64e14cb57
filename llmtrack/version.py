"""Which llmtrack this is, and where: for what stands below the package's own front."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.2.0"
FOLDER = Path(__file__).absolute().parent
