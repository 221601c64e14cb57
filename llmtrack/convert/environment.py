"""Environments of their own for tools that cannot share the user's: made once in the cache, by uv, from pinned requirements.

A converter that needs another transformers than the one that is measured would turn the user's environment into another
one. Each gets an environment that holds exactly the packages that its list pins, with no resolver and nothing beside
them, but for PyTorch: that is the user's own, since it is large, and the build that fits the machine is there already.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from llmtrack.errors import FailureKind, MissingDependencyError, ScenarioError
from llmtrack.host import telemetry
from llmtrack.host.packages import find_uv, installed_version
from llmtrack.host.units import MIB
from llmtrack.models.cache import LOCK_SECONDS, cache_root
from llmtrack.models.disk import is_full, no_space, why_full
from llmtrack.models.durations import making
from llmtrack.spec.serialization import digest

INSTALL_SECONDS = 1200.0
# Converters read the folder that they are given: nothing is fetched, and nobody is told of what is converted.
_QUIET = {**telemetry.OFF, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "CI": "true"}
# Code of a model is copied there before transformers runs it: where there can be no such folder, none is.
_NO_CODE = {"HF_MODULES_CACHE": os.path.join(os.devnull, "modules")}
_GUARD = Path(__file__).with_name("guarded.py")
_MADE = "llmtrack-made"


@dataclass(frozen=True)
class BuildEnvironment:
    """An environment for one tool.

    Attributes:
        name: what it is for; the first word of its folder.
        requirements: the packages, one pinned requirement each; markers are heeded, dependencies are not followed.
        mib: what it takes on the disk, unless uv's cache shares it; 0: unknown.
    """

    name: str
    requirements: tuple[str, ...]
    mib: int = 0

    @property
    def key(self) -> str:
        """What tells it from every other one: its packages, this Python, and the PyTorch that it shares."""
        shared = [str(_shared_packages()), installed_version("torch")]
        return digest([self.requirements, sys.version_info[:3], sys.base_prefix, shared])

    @property
    def folder(self) -> Path:
        """Where it is, or will be."""
        return cache_root() / "environments" / f"{self.name}-{self.key}"

    @property
    def made(self) -> bool:
        """Whether it is there."""
        return (self.folder / _MADE).is_file()

    def python(self) -> Path:
        """Return its Python, after making it if need be.

        Raises:
            MissingDependencyError: there is no uv, or the packages cannot be had.
        """
        python = self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        if self.made:
            return python
        lock = self.folder.with_name(f".{self.folder.name}.lock")
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(lock, timeout=LOCK_SECONDS):
                if not self.made:
                    self._make(python)
        except Timeout:
            raise MissingDependencyError(
                f"another process has held {lock} for {LOCK_SECONDS / 60:.0f} minutes: end it, or set LLMTRACK_CACHE"
            ) from None
        except OSError as error:
            if is_full(error):
                raise MissingDependencyError(
                    f"{self._what} cannot be made: {why_full(lock.parent, self.mib * MIB)}"
                ) from error
            raise MissingDependencyError(
                f"{self._what} cannot be made in {lock.parent} ({error.strerror or error}): free or permit it, or set "
                "LLMTRACK_CACHE to another folder"
            ) from error
        return python

    def run(self, what: str, arguments: Sequence[str], folder: Path) -> None:
        """Run its Python with arguments, and temporary files in the working directory; it ends when this process ends.

        Args:
            what: what is done, in words.
            arguments: a module or the path of a script, and its own arguments.
            folder: working directory.

        Raises:
            MissingDependencyError: the environment cannot be made.
            ScenarioError: what was run failed.
            OSError: a disk is full.
        """
        command = [str(self.python()), str(_GUARD), *arguments]
        # On the disk that was asked for room, and gone with what else is made there.
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as scratch:
            code, said = _run(command, folder, apart() | {"TMPDIR": scratch}, timeout=None)
        if code and is_full(said):
            raise no_space()
        if code:
            kind: FailureKind = "out_of_memory" if code < 0 else "unsupported"
            why = "it was killed, most likely for want of memory" if code < 0 else error_line(said)
            raise ScenarioError(f"{what} failed: {why}", kind=kind)

    @property
    def _what(self) -> str:
        return f"the build environment of {self.name}"

    def _make(self, python: Path) -> None:
        uv = find_uv()
        if uv is None:
            raise MissingDependencyError(f"{self._what} is made by uv, which is not there: pip install uv")
        with making(f"making {self._what}", self.name):
            self._fill(uv, python)

    def _fill(self, uv: Sequence[str], python: Path) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)  # of a process that was killed while it was at work
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        pinned = self.folder / "requirements.txt"
        environment = _without_paths()
        steps = (
            ["venv", "--quiet", "--no-project", "--python", sys.executable, str(self.folder)],
            ["pip", "install", "--quiet", "--no-deps", "--python", str(python), "-r", str(pinned)],
        )
        try:
            for step in steps:
                if self.folder.exists():
                    pinned.write_text("\n".join((*self.requirements, "")), encoding="utf-8")
                try:
                    code, said = _run([*uv, *step], self.folder.parent, environment, INSTALL_SECONDS)
                except subprocess.TimeoutExpired:
                    code, said = 1, f"error: it took over {INSTALL_SECONDS:.0f} s"
                if code and is_full(said):
                    raise no_space()
                if code:
                    raise MissingDependencyError(
                        f"{self._what} cannot be made ({error_line(said)}): check the network or uv's package index "
                        "(UV_DEFAULT_INDEX)"
                    )
            (site,) = (
                self.folder.glob("lib/python*/site-packages")
                if os.name != "nt"
                else (self.folder / "Lib/site-packages",)
            )
            # Named so that it comes last: what is pinned comes before what is shared.
            (site / "zz_shared.pth").write_text(f"{_shared_packages()}\n", encoding="utf-8")
            (self.folder / _MADE).touch()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise


def pinned(name: str, folder: Path = _GUARD.parent / "requirements") -> tuple[str, ...]:
    """Return the requirements of a tool from its file in a folder: of requirements, one a line."""
    lines = (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def error_line(said: str) -> str:
    """Return the line of a program's output that says most, without addresses."""
    lines = [line.strip() for line in said.replace("\r", "\n").splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "×", "╰─▶", "cause:"))]
    chosen = " ".join(errors[-2:]) if errors else (lines or ["it said nothing"])[-1]
    return " ".join(word for word in chosen.split() if "://" not in word)[:300]


def apart() -> dict[str, str]:
    """Return the environment variables of a program that imports none of our packages, fetches nothing, and tells nobody."""
    return {**_without_paths(), **_QUIET, **_NO_CODE}


def _run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float | None
) -> tuple[int, str]:
    """Return a program's exit code and what it said; its standard input stays open for as long as we live."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(
            list(command),
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
        try:
            code = child.wait(timeout)
        finally:
            child.kill()
            child.wait()
        output.seek(0)
        return code, output.read().decode("utf-8", errors="replace")


def _shared_packages() -> Path:
    """Return the folder that PyTorch is installed in."""
    found = importlib.util.find_spec("torch")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parents[1]


def _without_paths() -> dict[str, str]:
    """Return this process's environment without what would make another Python import our packages."""
    ours = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")
    return {name: value for name, value in os.environ.items() if name not in ours}
