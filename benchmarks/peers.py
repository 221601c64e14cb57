"""Programs that llmtrack is compared with, each in an environment of its own: made by uv from pinned requirements, in the cache."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from llmtrack.convert.environment import BuildEnvironment, apart, error_line, pinned
from llmtrack.errors import LlmtrackError

REQUIREMENTS, SCRIPTS = Path(__file__).with_name("requirements"), Path(__file__).with_name("scripts")


class PeerError(LlmtrackError):
    """A peer that failed; says why in one line."""


def environment(name: str) -> BuildEnvironment:
    """Return the environment of a peer, which may not have been made yet; PyTorch is the one that llmtrack uses.

    Args:
        name: of its file in `requirements`.
    """
    return BuildEnvironment(name, pinned(name, REQUIREMENTS))


def program(name: str) -> Path:
    """Return the Python that runs a peer: of its environment where it has one, else our own.

    Raises:
        MissingDependencyError: the environment cannot be made.
    """
    return environment(name).python() if (REQUIREMENTS / f"{name}.txt").is_file() else Path(sys.executable)


def version(name: str) -> str:
    """Return a peer and its pinned version, in words."""
    (line,) = (each for each in environment(name).requirements if each.startswith(f"{name}=="))
    return line.partition(" ")[0].replace("==", " ")


class Worker:
    """A script that goes on answering: for each line that it is given, a line of JSON.

    Args:
        python: runs it.
        script: its path.
        arguments: its arguments.

    Raises:
        PeerError: it ended instead of answering.
    """

    def __init__(self, python: Path, script: Path, arguments: Sequence[str]) -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        self._process = subprocess.Popen(
            [str(python), str(script), *arguments],
            env=apart(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )

    def ask(self, line: str) -> dict[str, float]:
        """Give it a line, and return its answer."""
        assert self._process.stdin
        assert self._process.stdout
        with suppress(BrokenPipeError):
            print(line, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            self._log.seek(0)
            raise PeerError(error_line(self._log.read().decode(errors="replace")))
        found: dict[str, float] = json.loads(answer)
        return found

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.communicate()
        self._log.close()
