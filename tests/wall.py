"""Enforce the wall between measuring and tracking: each side's programs cannot import the other's libraries."""

from __future__ import annotations

import builtins
import importlib
import importlib._bootstrap
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.search_path import with_folders

FRAMEWORKS = {"torch", "transformers", "tokenizers", "optimum", "onnxruntime"}

# Read by every Python process at its start. The worker may import neither mlflow nor scikit-learn, which takes seconds
# and which transformers imports if it is installed; the other programs may import no framework.
FORBID = """
import importlib.machinery
import sys

measures = "llmtrack.worker.process" in sys.orig_argv
FORBIDDEN = {"mlflow", "sklearn"} if measures else FRAMEWORKS


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
    (folder / "sitecustomize.py").write_text(f"FRAMEWORKS = {FRAMEWORKS!r}\n{FORBID}", encoding="utf-8")
    probe = [sys.executable, "-c", "import torch"]
    blocked = os.environ | {"PYTHONPATH": with_folders(folder)}
    assert subprocess.run(probe, env=blocked, capture_output=True).returncode != 0, "the wall is open"


def forbid_frameworks_here(patch: pytest.MonkeyPatch) -> None:
    """Refuse to import a framework, also one that this process has imported: it tracks, and a program measures."""

    def refuse(name: str) -> None:
        if name.partition(".")[0] in FRAMEWORKS:
            raise ImportError(f"{name} has no business in a process that tracks")

    statement, function = builtins.__import__, importlib._bootstrap._gcd_import

    def import_by_statement(name: str, *arguments: Any, **options: Any) -> Any:
        refuse(name)
        return statement(name, *arguments, **options)

    def import_by_function(name: str, *arguments: Any, **options: Any) -> Any:
        refuse(name)
        return function(name, *arguments, **options)

    patch.setattr(builtins, "__import__", import_by_statement)
    patch.setattr(importlib._bootstrap, "_gcd_import", import_by_function)
    for attempt in (lambda: importlib.import_module("torch"), lambda: exec("import torch.nn")):
        with pytest.raises(ImportError, match="no business"):
            attempt()
