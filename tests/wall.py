"""Enforce the wall between measuring and tracking: each side's programs cannot import the other's libraries."""

from __future__ import annotations

import builtins
import importlib
import importlib._bootstrap
import os
import subprocess
import sys
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import pytest

from tests.forking import Forked, ForkedWorker, work
from tests.search_path import with_folders

FRAMEWORKS = {"torch", "transformers", "tokenizers", "optimum", "onnxruntime"}

# Neither mlflow, nor what transformers imports for seconds if it is installed.
NOT_FOR_WORKERS = {"mlflow", "sklearn", "scipy"}

# Read by every Python process at its start.
FORBID = """
import importlib.machinery
import sys

measures = "llmtrack.worker.process" in sys.orig_argv
FORBIDDEN = NOT_FOR_WORKERS if measures else FRAMEWORKS


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
    (folder / "sitecustomize.py").write_text(
        f"FRAMEWORKS, NOT_FOR_WORKERS = {FRAMEWORKS!r}, {NOT_FOR_WORKERS!r}\n{FORBID}", encoding="utf-8"
    )
    probe = [sys.executable, "-c", "import torch"]
    blocked = os.environ | {"PYTHONPATH": with_folders(folder)}
    assert subprocess.run(probe, env=blocked, capture_output=True).returncode != 0, "the wall is open"


def forbid_here(patch: pytest.MonkeyPatch, forbidden: Set[str]) -> None:
    """Refuse to import these, also those that this process has imported."""

    def refuse(name: str) -> None:
        if name.partition(".")[0] in forbidden:
            raise ImportError(f"{name} has no business here")

    statement, function = builtins.__import__, importlib._bootstrap._gcd_import

    def import_by_statement(name: str, *arguments: Any, **options: Any) -> Any:
        refuse(name)
        return statement(name, *arguments, **options)

    def import_by_function(name: str, *arguments: Any, **options: Any) -> Any:
        refuse(name)
        return function(name, *arguments, **options)

    patch.setattr(builtins, "__import__", import_by_statement)
    patch.setattr(importlib._bootstrap, "_gcd_import", import_by_function)
    name = min(forbidden)
    for attempt in (lambda: importlib.import_module(name), lambda: exec(f"import {name}.x")):
        with pytest.raises(ImportError, match="no business"):
            attempt()


class WalledWorker(ForkedWorker):
    """A forked worker that cannot import what has no business in a worker."""

    def _start(self, environment: Mapping[str, str]) -> Forked:
        return Forked(_work_behind_the_wall, environment=environment)


def _work_behind_the_wall() -> None:
    forbid_here(pytest.MonkeyPatch(), NOT_FOR_WORKERS)
    work()
