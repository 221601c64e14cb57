"""Bytecode is cached even if the environment forbids it beside the sources."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from llmtrack.worker import bytecode

PROGRAM = """
import importlib.util, os, sys
import llmtrack.cli.commands
llmtrack.cli.commands.main(["init", "--help"], standalone_mode=False)
import colorsys
print(os.path.exists(importlib.util.cache_from_source(colorsys.__file__)), sys.pycache_prefix)
"""


@pytest.fixture
def _image(monkeypatch, tmp_path):
    """An environment like a container image's, without any bytecode."""
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path))
    monkeypatch.setattr(bytecode, "cache_from_source", lambda path: str(tmp_path / "absent.pyc"))


@pytest.mark.usefixtures("_image")
def test_children_cache_bytecode(tmp_path):
    variables = bytecode.bytecode_environment()
    assert variables["PYTHONPYCACHEPREFIX"] == str(tmp_path / "bytecode")
    assert variables["PYTHONDONTWRITEBYTECODE"] == ""
    assert os.environ["PYTHONDONTWRITEBYTECODE"] == "1"


@pytest.mark.usefixtures("_image")
@pytest.mark.parametrize("case", ["compiled", "a folder was chosen", "writes"])
def test_nothing_changes_if_python_caches_bytecode_already(monkeypatch, case):
    if case == "compiled":
        monkeypatch.setattr(bytecode, "cache_from_source", lambda path: path)
    elif case == "a folder was chosen":
        monkeypatch.setattr(sys, "pycache_prefix", "elsewhere")
    else:
        monkeypatch.setattr(sys, "dont_write_bytecode", False)
    assert bytecode.bytecode_environment() == {}


@pytest.mark.slow(1)
def test_the_command_caches_bytecode(tmp_path):
    """The standard library may be compiled: what counts is where the program looks and writes."""
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "LLMTRACK_CACHE": str(tmp_path)}
    environment.pop("PYTHONPYCACHEPREFIX", None)
    never = "import llmtrack.worker.bytecode as b; b.cache_from_source = lambda path: 'absent'"
    process = subprocess.run(
        [sys.executable, "-c", f"{never}\n{PROGRAM}"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert process.stdout.splitlines()[-1] == f"True {tmp_path / 'bytecode'}"
