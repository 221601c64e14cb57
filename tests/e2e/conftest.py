"""A checkout in a folder whose name has a space, and `mlflow run` from somewhere else."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from click.testing import Result

from tests import mlproject, wall
from tests.conftest import HANG_S, know_ceilings, made_once

PROJECT = Path(__file__).parents[2]

MlflowRun = Callable[..., "subprocess.CompletedProcess[str]"]
INLINE = {"executor": "inline"}


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the tracked files of this project to a separate git repository, in a folder with a space."""
    return made_once(tmp_path_factory, "check out", commit_tracked_files) / "llm track"


def commit_tracked_files(parent: Path) -> None:
    folder = parent / "llm track"
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, tracked.split("\0")):
        if (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(PROJECT / name, folder / name)
    identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
    for command in (
        ["init", "-q", "-b", "main"],
        ["add", "-A"],
        [*identity, "commit", "-q", "-m", "state under test"],
    ):
        subprocess.run(["git", *command], cwd=folder, check=True)
    for package in ("llmtrack", "experiments"):
        copy_compiled(PROJECT / package, folder / package)


def copy_compiled(source: Path, target: Path) -> None:
    """Copy the compiled files of a package, whose sources have the same content and time in the copy."""
    for compiled in source.rglob("__pycache__/*.pyc"):
        copied = target / compiled.relative_to(source)
        copied.parent.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # written anew by another process
            shutil.copy2(compiled, copied)


@pytest.fixture(scope="session")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a user who has activated this one and set nothing of MLflow's; no program in it crosses the wall."""
    names = [name for name in os.environ if not name.startswith(("MLFLOW_", "LLMTRACK_SPOOL"))]
    return {name: os.environ[name] for name in names} | {
        # --env-manager local takes `python` from PATH.
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(made_once(tmp_path_factory, "wall", wall.forbid_imports)),
    }


@pytest.fixture
def elsewhere(tmp_path, template_database) -> Path:
    """A working directory that is not the project, with a space in its name and MLflow's default store in it."""
    folder = tmp_path / "some where"
    folder.mkdir()
    shutil.copyfile(template_database, folder / "mlflow.db")
    return folder


def arguments(project: str, entry_point: str, parameters: Mapping[str, object]) -> list[str]:
    """Return the arguments of MLflow's command."""
    line = ["run", project, "-e", entry_point, "--env-manager", "local"]
    for name, value in parameters.items():
        line += ["-P", f"{name}={value}"]
    return line


@pytest.fixture
def mlflow_run(checkout, environment, elsewhere) -> MlflowRun:
    """Run an entry point by `mlflow run`, from another working directory."""

    def run(entry_point: str, uri: str | None = None, **parameters: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mlflow", *arguments(uri or str(checkout), entry_point, parameters)]
        return subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=HANG_S)

    return run


@pytest.fixture
def _there(environment, elsewhere, monkeypatch) -> None:
    """Make this process look as if started in the other working directory."""
    for name in [name for name in os.environ if name.startswith(("MLFLOW_", "LLMTRACK_SPOOL"))]:
        monkeypatch.delenv(name)
    for name in ("PATH", "PYTHONPATH"):
        monkeypatch.setenv(name, environment[name])
    monkeypatch.chdir(elsewhere)
    # MLflow's default store is a file of the working directory.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{elsewhere / 'mlflow.db'}")


@pytest.fixture
def run_here(_there, monkeypatch, undrawn) -> Callable[..., Result]:
    """Run an entry point as `mlflow run` would, but in this process, including measuring, without plots."""
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "tested")
    # Beaten nowhere, so that the roofline is drawn.
    know_ceilings(monkeypatch, 1e15, 1e18)

    def run(name: str, **parameters: object) -> Result:
        return mlproject.run_here(name, INLINE | parameters if name != "compare" else parameters)

    return run


@pytest.fixture
def loaded_once(monkeypatch) -> None:
    """Load each variant once: a study loads it to be timed, to be scored, and as the reference of others."""
    from llmtrack.engines import registry

    load, engines = registry.load_variant, {}

    def load_once(variant):
        if variant not in engines:
            engines[variant] = load(variant)
            monkeypatch.setattr(engines[variant], "close", lambda: None)
        return engines[variant]

    monkeypatch.setattr(registry, "load_variant", load_once)


@pytest.fixture
def tracked(elsewhere):
    """Read what was tracked, through llmtrack's query and through MLflow's own client."""
    from mlflow import MlflowClient

    from llmtrack.tracking.read.query import runs

    class Tracked:
        uri = f"sqlite:///{elsewhere / 'mlflow.db'}"

        @property
        def client(self) -> MlflowClient:
            return MlflowClient(self.uri)

        def runs(self, **filters):
            """Return the newest run of each scenario of each study: on a busy machine, a baseline is measured twice."""
            table = runs(tracking_uri=self.uri, **filters)
            return table[(table["kind"] != "scenario") | ~table.duplicated(["study_id", "scenario"])]

        def artifacts(self, run_id: str, folder: str | None = None) -> set[str]:
            return {file.path for file in self.client.list_artifacts(run_id, folder)}

        def text(self, run_id: str, path: str) -> str:
            return Path(self.client.download_artifacts(run_id, path)).read_text(encoding="utf-8")

    return Tracked()
