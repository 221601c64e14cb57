"""Enforce the wall between measuring and tracking: each side's programs cannot import the other's libraries."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.search_path import with_folders

# Read by every Python process at its start. The worker may import neither mlflow nor scikit-learn, which takes seconds
# and which transformers imports if it is installed; the other programs may import no framework.
FORBID = """
import importlib.machinery
import sys

measures = "llmtrack.worker.process" in sys.orig_argv
FORBIDDEN = {"mlflow", "sklearn"} if measures else {"torch", "transformers", "tokenizers", "optimum", "onnxruntime"}


class Wall:
    # Libraries may ask whether others are there; only to import them is forbidden.
    def find_spec(self, name, path=None, target=None):
        if name in FORBIDDEN:
            return importlib.machinery.ModuleSpec(name, self)

    def create_module(self, spec):
        raise ImportError(f"{spec.name} has no business in {sys.orig_argv}")

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Wall())
"""


def forbid_imports(folder: Path) -> None:
    """Forbid the other side's libraries to every process with this folder on PYTHONPATH."""
    (folder / "sitecustomize.py").write_text(FORBID, encoding="utf-8")
    probe = [sys.executable, "-c", "import torch"]
    blocked = os.environ | {"PYTHONPATH": with_folders(folder)}
    assert subprocess.run(probe, env=blocked, capture_output=True).returncode != 0, "the wall is open"
