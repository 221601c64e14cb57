"""MLproject and the commands say the same: parameters, options and defaults."""

from __future__ import annotations

import importlib
import itertools
import re
import shlex
from pathlib import Path

import click
import pytest
import yaml

from llmtrack.cli import main as llmtrack_command

ROOT = Path(__file__).resolve().parents[2]
PROJECT = yaml.safe_load((ROOT / "MLproject").read_text(encoding="utf-8"))
ENTRY_POINTS = PROJECT["entry_points"]

# `mlflow run` itself decides where runs go.
NOT_PARAMETERS = {"tracking_uri", "experiment_name"}


def words(name: str) -> list[str]:
    return shlex.split(ENTRY_POINTS[name]["command"])


def command_of(name: str) -> click.Command:
    python, dash_m, module, *rest = words(name)
    assert (python, dash_m) == ("python", "-m")
    if module == "llmtrack":
        return llmtrack_command.commands[rest[0]]
    return importlib.import_module(module).main


def options_of(name: str) -> dict[str, click.Parameter]:
    """Options of the command by their names on the command line, `-` as `_`."""
    return {
        option.removeprefix("--").replace("-", "_"): parameter
        for parameter in command_of(name).params
        for option in parameter.opts
        if option.startswith("--")
    }


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_the_command_line_uses_exactly_the_parameters(name):
    used = re.findall(r"\{(\w+)\}", ENTRY_POINTS[name]["command"])
    assert sorted(used) == sorted(ENTRY_POINTS[name]["parameters"])


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_each_parameter_is_the_option_of_its_name_and_unquoted(name):
    line = words(name)
    pairs = dict(itertools.pairwise(line))
    for parameter in ENTRY_POINTS[name]["parameters"]:
        assert pairs["--" + parameter.replace("_", "-")] == f"{{{parameter}}}"
        assert parameter in options_of(name)
    command = ENTRY_POINTS[name]["command"]
    assert not re.search(r"""['"]\{|\}['"]""", command), (
        "MLflow quotes safely; other quotes can be broken out of"
    )


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_defaults_are_those_of_the_command(name):
    options = options_of(name)
    for parameter, declared in ENTRY_POINTS[name]["parameters"].items():
        default = options[parameter].default
        # Only a command without any default may be given MLflow's word for nothing.
        expected = "none" if not isinstance(default, (str, int, float, bool)) else str(default)
        expected = expected.lower() if isinstance(default, bool) else expected
        assert declared == {"type": "string", "default": expected}, parameter


@pytest.mark.parametrize("name", [name for name in ENTRY_POINTS if name != "compare"])
def test_every_option_of_an_experiment_is_a_parameter(name):
    given = set(ENTRY_POINTS[name]["parameters"])
    assert set(options_of(name)) - {"help"} - NOT_PARAMETERS == given


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_the_defaults_are_accepted_by_the_command(name):
    """As MLflow would call it with nothing given."""
    values = {key: each["default"] for key, each in ENTRY_POINTS[name]["parameters"].items()}
    line = shlex.split(ENTRY_POINTS[name]["command"].format(**{k: shlex.quote(v) for k, v in values.items()}))
    arguments = line[4:] if line[2] == "llmtrack" else line[3:]
    command = command_of(name)
    context = command.make_context(name, arguments)
    assert set(context.params) >= {options_of(name)[key].name for key in values}


def test_every_experiment_is_an_entry_point():
    files = {path.stem for path in (ROOT / "experiments").glob("*.py")} - {"__init__", "prompts"}
    assert files | {"compare"} == set(ENTRY_POINTS)


def test_the_environment_file_is_there():
    assert (ROOT / PROJECT["conda_env"]).is_file()
