"""Errors keep their kind between processes, and end in one line."""

from __future__ import annotations

import errno
import io
import pickle
from typing import get_args

import pytest
from click.testing import CliRunner
from rich.console import Console

from llmtrack.cli import main as llmtrack
from llmtrack.errors import FailureKind, ScenarioError, actionable, refused_by_system
from llmtrack.run.main import exit_codes


@pytest.mark.parametrize("kind", get_args(FailureKind))
def test_a_pickled_error_keeps_its_kind(kind):
    error = pickle.loads(pickle.dumps(ScenarioError("it is too long", kind=kind)))
    assert (str(error), error.kind) == ("it is too long", kind)


@pytest.mark.parametrize("kind", ["it is too long", "", "oom", None])
def test_swapped_arguments_and_unknown_kinds_are_refused(kind):
    with pytest.raises(TypeError, match="a ScenarioError is one of out_of_memory, unsupported, "):
        ScenarioError("unsupported", kind=kind)


@pytest.mark.parametrize("arguments", [("it is too long", "too_long"), ("too_long", "it is too long")])
def test_the_kind_is_keyword_only(arguments):
    with pytest.raises(TypeError, match="positional argument"):
        ScenarioError(*arguments)


def test_the_default_kind_is_error():
    assert ScenarioError("it failed").kind == "error"


class OutOfMemoryError(RuntimeError):
    """As PyTorch names a card's."""


NO_MEMORY = [MemoryError(), OSError(errno.ENOMEM, "Cannot allocate memory"), OutOfMemoryError("CUDA out of memory.")]


@pytest.mark.parametrize("error", NO_MEMORY)
def test_an_experiment_without_memory_ends_in_one_line(error, capsys):
    with pytest.raises(SystemExit) as ended, exit_codes(Console(file=io.StringIO())):
        raise error
    output = capsys.readouterr()
    assert (ended.value.code, output.out) == (2, "")
    assert output.err.startswith("error: out of memory: free some, raise the limit of the container, job or shell")
    assert output.err.count("\n") == 1


@pytest.mark.parametrize("error", NO_MEMORY)
def test_a_command_without_memory_ends_in_one_line(error, monkeypatch):
    def load_engine(*args: object, **kwargs: object) -> None:
        raise error

    monkeypatch.setattr("llmtrack.engines.registry.load_engine", load_engine)
    result = CliRunner().invoke(llmtrack, ["generate", "a", "--model", "synthetic:tiny"])
    assert result.exit_code == 2, result.exception
    assert result.stderr.startswith("error: out of memory: free some, raise the limit of the container, job or shell")
    assert (result.stdout, result.stderr.count("\n")) == ("", 1)


def test_a_defect_is_no_user_error():
    assert actionable(ValueError("a bug")) is None


def test_a_long_path_does_not_hide_the_reason():
    message = refused_by_system(OSError(errno.ENAMETOOLONG, "File name too long", "/deep" * 2000))
    assert message.startswith("cannot use /deep/deep")
    assert message.endswith(": File name too long")
    assert len(message) < 400
