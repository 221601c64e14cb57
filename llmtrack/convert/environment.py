"""Create isolated environments for tools with conflicting requirements, once, in the cache, by uv.

A converter may need another version of transformers than the measured one. Each gets an environment with exactly its
pinned packages, without a resolver. Only PyTorch is shared with the user's: it is large, and the build for this
machine.
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
from llmtrack.host import libraries
from llmtrack.host.formatting import MIB
from llmtrack.host.packages import error_line, find_uv, installed_version
from llmtrack.models.cache import LOCK_SECONDS, cache_root
from llmtrack.models.disk import disk_full_error, full_disk_message, is_disk_full
from llmtrack.models.durations import timed_step
from llmtrack.spec.serialization import digest

INSTALL_SECONDS = 1200.0
# Converters read a local folder: no downloads and no libraries.
_QUIET = {**libraries.TELEMETRY_OFF, "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1", "CI": "true"}
# transformers copies a model's code there before running it: an impossible folder disables it.
_NO_CODE = {"HF_MODULES_CACHE": os.path.join(os.devnull, "modules")}
_GUARD = Path(__file__).with_name("guarded.py")
_COMPLETE = "llmtrack-made"


@dataclass(frozen=True)
class BuildEnvironment:
    """An environment for one tool.

    Attributes:
        name: the purpose; prefix of its folder.
        requirements: the packages, one pinned requirement each; markers are respected, dependencies are not followed.
        mib: its disk space, unless shared with uv's cache; 0: unknown.
    """

    name: str
    requirements: tuple[str, ...]
    mib: int = 0

    @property
    def key(self) -> str:
        """Digest of its packages, this Python, and the shared PyTorch."""
        shared = [str(_shared_packages()), installed_version("torch")]
        return digest([self.requirements, sys.version_info[:3], sys.base_prefix, shared])

    @property
    def folder(self) -> Path:
        """Its folder, whether it exists or not."""
        return cache_root() / "environments" / f"{self.name}-{self.key}"

    @property
    def is_complete(self) -> bool:
        """Whether it has been created."""
        return (self.folder / _COMPLETE).is_file()

    def python(self) -> Path:
        """Return its Python; create it if necessary.

        Raises:
            MissingDependencyError: uv is missing, or the packages cannot be installed.
        """
        python = self.folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        if self.is_complete:
            return python
        lock = self.folder.with_name(f".{self.folder.name}.lock")
        try:
            lock.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(lock, timeout=LOCK_SECONDS):
                if not self.is_complete:
                    self._make(python)
        except Timeout:
            raise MissingDependencyError(
                f"another process has held {lock} for {LOCK_SECONDS / 60:.0f} minutes: end it, or set LLMTRACK_CACHE"
            ) from None
        except OSError as error:
            if is_disk_full(error):
                raise MissingDependencyError(
                    f"{self._title} cannot be created: {full_disk_message(lock.parent, self.mib * MIB)}"
                ) from error
            raise MissingDependencyError(
                f"{self._title} cannot be created in {lock.parent} ({error.strerror or error}): free some space or make "
                "it writable, or set LLMTRACK_CACHE to another folder"
            ) from error
        return python

    def run(self, action: str, arguments: Sequence[str], folder: Path) -> None:
        """Run its Python with temporary files in the working directory; the child ends with this process.

        Args:
            action: for messages.
            arguments: a module or the path of a script, and its own arguments.
            folder: working directory.

        Raises:
            MissingDependencyError: the environment cannot be created.
            ScenarioError: the program failed.
            OSError: a disk is full.
        """
        command = [str(self.python()), str(_GUARD), *arguments]
        # On the disk whose space was checked, and removed with the working directory.
        with tempfile.TemporaryDirectory(prefix=".", dir=folder) as scratch:
            code, output = _run(command, folder, isolated_variables() | {"TMPDIR": scratch}, timeout=None)
        if code and is_disk_full(output):
            raise disk_full_error()
        if code:
            kind: FailureKind = "out_of_memory" if code < 0 else "unsupported"
            why = "it was killed, most likely out of memory" if code < 0 else error_line(output)
            raise ScenarioError(f"{action} failed: {why}", kind=kind)

    @property
    def _title(self) -> str:
        return f"the build environment of {self.name}"

    def _make(self, python: Path) -> None:
        uv = find_uv()
        if uv is None:
            raise MissingDependencyError(f"{self._title} needs uv, which is not installed: pip install uv")
        with timed_step(f"making {self._title}", self.name):
            self._fill(uv, python)

    def _fill(self, uv: Sequence[str], python: Path) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)  # leftovers of a killed process
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        requirements = self.folder / "requirements.txt"
        try:
            self._run_uv([*uv, "venv", "--no-project", "--python", sys.executable, str(self.folder)])
            requirements.write_text("\n".join((*self.requirements, "")), encoding="utf-8")
            self._run_uv([*uv, "pip", "install", "--no-deps", "--python", str(python), "-r", str(requirements)])
            (site,) = (
                self.folder.glob("lib/python*/site-packages")
                if os.name != "nt"
                else (self.folder / "Lib/site-packages",)
            )
            # Named to come last: pinned packages take precedence over shared ones.
            (site / "zz_shared.pth").write_text(f"{_shared_packages()}\n", encoding="utf-8")
            (self.folder / _COMPLETE).touch()
        except BaseException:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _run_uv(self, command: Sequence[str]) -> None:
        try:
            code, output = _run([*command, "--quiet"], self.folder.parent, _without_paths(), INSTALL_SECONDS)
        except subprocess.TimeoutExpired:
            code, output = 1, f"error: it took over {INSTALL_SECONDS:.0f} s"
        if code and is_disk_full(output):
            raise disk_full_error()
        if code:
            raise MissingDependencyError(
                f"{self._title} cannot be created ({error_line(output)}): check the network or uv's package index "
                "(UV_DEFAULT_INDEX)"
            )


def pinned_requirements(name: str, folder: Path = _GUARD.parent / "requirements") -> tuple[str, ...]:
    """Read the requirements of a tool from its file, one per line."""
    lines = (folder / f"{name}.txt").read_text(encoding="utf-8").splitlines()
    return tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))


def isolated_variables() -> dict[str, str]:
    """Return environment variables for an isolated program: none of our packages, no downloads, no libraries."""
    return {**_without_paths(), **_QUIET, **_NO_CODE}


def _run(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], timeout: float | None
) -> tuple[int, str]:
    """Return a program's exit code and output; its standard input stays open while this process lives."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
        )
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
            process.wait()
        output.seek(0)
        return code, output.read().decode("utf-8", errors="replace")


def _shared_packages() -> Path:
    """Return the site-packages folder with PyTorch."""
    spec = importlib.util.find_spec("torch")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parents[1]


def _without_paths() -> dict[str, str]:
    """Return this process's environment without variables that expose our packages to another Python."""
    hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "CONDA_PREFIX")
    return {name: value for name, value in os.environ.items() if name not in hidden}
