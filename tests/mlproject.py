"""Run entry points of MLproject as `mlflow run` would, but in this process: three programs and their imports are saved."""

from __future__ import annotations

import importlib
import shlex
from collections.abc import Mapping
from pathlib import Path

import click
import yaml
from click.testing import CliRunner, Result

import llmtrack.worker.generate  # noqa: F401 - so that `quiet_machine` finds it
from llmtrack.cli import main as llmtrack_command

ROOT = Path(__file__).parents[1]
ENTRY_POINTS = yaml.safe_load((ROOT / "MLproject").read_text(encoding="utf-8"))["entry_points"]


def declared(name: str) -> dict[str, str]:
    """Return the parameters of an entry point with their defaults."""
    return {key: parameter["default"] for key, parameter in ENTRY_POINTS[name]["parameters"].items()}


def run_here(name: str, parameters: Mapping[str, object]) -> Result:
    """Run the command of an entry point with some of its parameters."""
    values = declared(name)
    assert parameters.keys() <= values.keys(), f"{name} has no parameter {parameters.keys() - values.keys()}"
    quoted = {key: shlex.quote(str(value)) for key, value in {**values, **parameters}.items()}
    python, dash_m, module, *arguments = shlex.split(ENTRY_POINTS[name]["command"].format(**quoted))
    assert (python, dash_m) == ("python", "-m")
    return CliRunner().invoke(command_of(module), arguments)


def command_of(module: str) -> click.Command:
    """Return the click command that `python -m MODULE` runs."""
    return llmtrack_command if module == "llmtrack" else importlib.import_module(module).main
