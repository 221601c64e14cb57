"""The border between measuring and tracking, closed: each side's programs without the other's libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.search_path import with_folders

# Read by every Python process at its start: the worker may not import mlflow, nor scikit-learn, which takes seconds and
# which transformers imports wherever it is there; the others no framework.
FORBID = """
import importlib.machinery
import sys

measures = "llmtrack.worker.process" in sys.orig_argv
FORBIDDEN = {"mlflow", "sklearn"} if measures else {"torch", "transformers", "tokenizers", "optimum", "onnxruntime"}


class Border:
    # Libraries may ask whether others are there; only to import them is forbidden.
    def find_spec(self, name, path=None, target=None):
        if name in FORBIDDEN:
            return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec):
        raise ImportError(f"{spec.name} has no business in {sys.orig_argv}")

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Border())
"""


def close(folder: Path) -> None:
    """Let whatever has a folder on PYTHONPATH have no library that its side has no business with."""
    (folder / "sitecustomize.py").write_text(FORBID, encoding="utf-8")
    probe = [sys.executable, "-c", "import torch"]
    blocked = os.environ | {"PYTHONPATH": with_folders(folder)}
    assert subprocess.run(probe, env=blocked, capture_output=True).returncode != 0, "the border is closed"
