"""Peer programs, each in an isolated environment, created by uv from pinned requirements and cached."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from llmtrack.convert.environment import BuildEnvironment, isolated_variables, pinned_requirements
from llmtrack.errors import LlmtrackError
from llmtrack.host.packages import error_line

REQUIREMENTS, SCRIPTS = Path(__file__).with_name("requirements"), Path(__file__).with_name("scripts")


class PeerError(LlmtrackError):
    """A peer failed; the message is one line."""


def environment(name: str) -> BuildEnvironment:
    """Return the environment of a peer, possibly not created yet; it shares llmtrack's PyTorch.

    Args:
        name: of its file in `requirements`.
    """
    return BuildEnvironment(name, pinned_requirements(name, REQUIREMENTS))


def program(name: str) -> Path:
    """Return the Python that runs a peer: of its environment if it has one, else our own.

    Raises:
        MissingDependencyError: the environment cannot be created.
    """
    return environment(name).python() if (REQUIREMENTS / f"{name}.txt").is_file() else Path(sys.executable)


def why_unavailable(name: str) -> str:
    """Explain why a peer's environment cannot be created; empty if it can."""
    try:
        environment(name).python()
    except LlmtrackError as error:
        return f"{version(name)}: {error}"
    return ""


def version(name: str) -> str:
    """Format a peer and its pinned version."""
    (line,) = (text for text in environment(name).requirements if text.startswith(f"{name}=="))
    return line.partition(" ")[0].replace("==", " ")


class Worker:
    """A long-running script that answers each input line with a line of JSON.

    Args:
        python: interpreter that runs it.
        script: its path.
        arguments: its arguments.

    Raises:
        PeerError: it exited instead of answering.
    """

    def __init__(self, python: Path, script: Path, arguments: Sequence[str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._process = subprocess.Popen(
            [str(python), str(script), *arguments],
            env=isolated_variables(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, line: str) -> dict[str, float]:
        """Send a line, and return the answer."""
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):
            print(line, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            self._log.seek(0)
            raise PeerError(error_line(self._log.read().decode(errors="replace")))
        figures: dict[str, float] = json.loads(answer)
        return figures

    def close(self) -> None:
        """Kill the script."""
        self._process.kill()
        self._process.communicate()
        self._log.close()
