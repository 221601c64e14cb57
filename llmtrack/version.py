"""Version and location of llmtrack, importable from any layer."""

from __future__ import annotations

from pathlib import Path

__version__ = "0.2.0"
FOLDER = Path(__file__).absolute().parent
