"""Run each kind of documented command; an unknown kind is an error, so that every command is run."""

from __future__ import annotations

import importlib.metadata
import os
import shlex
import subprocess
from collections.abc import Callable, Iterable
from unittest.mock import patch

import click
import pytest
from click.testing import CliRunner, Result
from packaging.requirements import Requirement

from llmtrack.cli import main as llmtrack_command
from llmtrack.host.packages import missing_modules
from tests.docs.blocks import ROOT
from tests.docs.substitutions import EXIT_CODES, PARAMETERS, UNLESS_GIVEN, WHERE_GIVEN, WITH_IT, WORDS
from tests.mlproject import command_of, declared, run_here

NEEDS_ONNX = "the onnx backend needs "


def run(command: str) -> None:
    """Run a documented command in the working directory, after substitutions.

    Raises:
        AssertionError: it failed, or its kind is unknown.
    """
    words = shlex.split(command)
    for start, handle in KINDS.items():
        if command.startswith(start):
            handle(words[len(start.split()) :])
            return
    raise AssertionError(f"tests/docs/runner.py has no kind for: {command}")


def resolved(command: str) -> str:
    """Return the command that is run for a documented one, after substitutions."""
    if not command.startswith("mlflow run "):
        return command
    try:
        return str(entry_point_of(shlex.split(command)[2:]))
    except (AssertionError, KeyError):  # the test of this command reports it
        return command


def entry_point(words: list[str]) -> None:
    """Run the command of an entry point as `mlflow run` would; tests/e2e runs them by `mlflow run` itself."""
    name, values = entry_point_of(words)
    check(run_here(name, values), EXIT_CODES.get(name, {0}))


def entry_point_of(words: list[str]) -> tuple[str, dict[str, str]]:
    """Return the entry point of an `mlflow run` command, and its parameters."""
    project, *rest = words
    assert project == "." or project.startswith("https://"), f"not this project: {project}"
    flags = options(rest, allowed={"-e", "-P", "--env-manager", "--experiment-name"})
    (name,) = flags.pop("-e")
    assert flags.pop("--env-manager") == ["local"], "MLflow's default needs conda"
    parameters = dict(pair.split("=", 1) for pair in flags.pop("-P", []))
    known = declared(name)
    values = {key: value for key, value in UNLESS_GIVEN.items() if key in known} | parameters
    values |= {key: value for key, value in PARAMETERS.items() if key in known}
    values |= {key: value for key, value in WHERE_GIVEN.items() if key in parameters}
    for key in WITH_IT.keys() & parameters.keys():
        values |= WITH_IT[key]
    if name == "compare":
        values["model"] = known["model"]
    return name, dict(sorted(values.items()))


def module_command(words: list[str]) -> None:
    """Run the command of a module, an experiment with the substituted options set."""
    module, *arguments = words
    command = command_of(module)
    if "--help" not in arguments and module != "llmtrack":
        known = {option for parameter in command.params for option in parameter.opts}
        for name, value in {**UNLESS_GIVEN, **PARAMETERS}.items():
            option = "--" + name.replace("_", "-")
            if option in known and not (name in UNLESS_GIVEN and option in arguments):
                arguments += [option, value]
    invoke(command, arguments)


def llmtrack(words: list[str]) -> None:
    """Run the llmtrack command; RUN_ID is the newest run."""
    words = [newest_run() if word == "RUN_ID" else WORDS.get(word, word) for word in words]
    invoke(llmtrack_command, words, EXIT_CODES.get(words[0], {0}))


def newest_run() -> str:
    """Return the id of the newest scenario run in the reader's store."""
    from llmtrack.tracking.read.query import runs

    return str(runs(columns=["run_id"])["run_id"].iloc[0])


def invoke(command: click.Command, arguments: list[str], codes: Iterable[int] = (0,)) -> None:
    """Run a click command in this process."""
    check(CliRunner().invoke(command, arguments), codes)


def check(result: Result, codes: Iterable[int] = (0,)) -> None:
    """Assert that a command ended with one of these codes, or skip if it reported a missing package."""
    if result.exit_code not in codes and NEEDS_ONNX in result.output:
        skip_without_onnx()
    assert result.exit_code in codes, f"{result.output}\n{result.exception!r}"


def skip_without_onnx() -> None:
    """Skip if ONNX Runtime is reported missing, and assert that it is."""
    if absent := missing_modules("onnx", "any"):
        pytest.skip(f"needs the onnx backend, and {', '.join(absent)} are not installed")


def make(words: list[str]) -> None:
    """Assert that make has the target; CI runs the targets."""
    done = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def pip_install(words: list[str]) -> None:
    """Check pip's arguments: files and extras must exist, requirements must be well-formed."""
    extras = set(importlib.metadata.metadata("llmtrack").get_all("Provides-Extra"))
    rest = iter(words)
    for word in rest:
        if word in ("-c", "-r"):
            assert (ROOT / next(rest)).is_file()
        elif word in ("-e", "."):
            target = next(rest) if word == "-e" else word
            path, _, named = target.partition("[")
            assert path == "."
            assert set(filter(None, named.rstrip("]").split(","))) <= extras
        else:
            requirement = Requirement(word)
            assert requirement.name != "llmtrack" or requirement.extras <= extras


def mlflow_server(words: list[str]) -> None:
    """Run the command up to serving: MLflow checks its options, and opens the reader's store.

    tests/tracking serves the stores that llmtrack writes.
    """
    import mlflow.server
    from mlflow.cli import cli
    from mlflow.server import handlers

    with (
        patch.dict(os.environ),
        patch.object(handlers, "_tracking_store", None),
        patch.object(mlflow.server, "_run_server") as serve,
    ):
        check(CliRunner().invoke(cli, ["server", *words]))
    assert serve.called


def options(words: list[str], allowed: set[str]) -> dict[str, list[str]]:
    """Read `OPTION VALUE` pairs."""
    pairs: dict[str, list[str]] = {}
    for option, value in zip(words[::2], words[1::2], strict=True):
        assert option in allowed, f"tests/docs/runner.py does not know the option {option}"
        pairs.setdefault(option, []).append(value)
    return pairs


KINDS: dict[str, Callable[[list[str]], None]] = {
    "mlflow run ": entry_point,
    "mlflow ui ": mlflow_server,
    "mlflow server ": mlflow_server,
    "python -m ": module_command,
    "llmtrack ": llmtrack,
    "make ": make,
    "pip install ": pip_install,
}
