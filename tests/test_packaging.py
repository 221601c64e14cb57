"""Python finds an editable install of a checkout, and a wheel works alone."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmtrack.host.packages import find_uv
from llmtrack.tracking.read.query import runs, studies
from tests import wall
from tests.extensions import install_plugins

pytestmark = pytest.mark.slow(5)

ROOT = Path(__file__).parents[1]

BUILD = "import sys; from setuptools.build_meta import build_editable; build_editable(sys.argv[1])"
IMPORT = "import site, sys; site.addsitedir(sys.argv[1]); import llmtrack; print(llmtrack.__file__)"


def test_an_editable_install_is_found_from_the_folder_above_the_checkout(tmp_path):
    """There `llmtrack` is a folder without `__init__.py`, a namespace package unless the path has a better one."""
    # Not imported: setuptools refuses a process that has already imported distutils.
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("an editable install is built with setuptools, which is not installed")
    checkout, wheels, site = (tmp_path / name for name in ("llmtrack", "wheels", "site"))
    (checkout / "llmtrack" / "run").mkdir(parents=True)
    wheels.mkdir()
    for package in ("llmtrack", "llmtrack/run"):
        (checkout / package / "__init__.py").touch()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy2(ROOT / name, checkout)
    subprocess.run([sys.executable, "-c", BUILD, str(wheels)], cwd=checkout, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    # Without this environment's packages, which include the real one.
    command = [sys.executable, "-S", "-c", IMPORT, str(site)]
    result = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert result.stdout.strip() == str(checkout / "llmtrack" / "__init__.py"), result.stderr


WHEEL = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
PROGRAM = """
import importlib.util, os, sys
from click.testing import CliRunner
from llmtrack.cli import main
assert importlib.util.find_spec("experiments") is None, "a common name is not taken"
assert os.path.dirname(importlib.util.find_spec("llmtrack").origin).startswith(sys.prefix)
def invoke(*arguments):
    result = CliRunner().invoke(main, arguments)
    return result.exit_code, result.output
code, output = invoke("run", "precision", "-P", "nonsense=1")
assert code == 2 and "precision has no parameter nonsense" in output, output
code, output = invoke("run", "precison")
assert code == 2 and "did you mean precision" in output, output
text = open("a project/MLproject").read()
assert "python -m llmtrack.experiments.baseline" in text and "python -m experiments." not in text
assert "llmtrack" in open("a project/conda.yaml").read().splitlines()[-1]
from llmtrack.host.entry_points import named_experiment
assert named_experiment("suite").__name__ == "llmtrack.experiments.suite"
assert invoke("init", "a project")[0] == 2, "nothing is overwritten"
code, output = invoke("run", "suite", "-P", "experiments=none such")
assert code == 2 and "none such" in output and "edge_prompts" in output, output
from llmtrack.quality.corpora import load_corpus
assert len(load_corpus("a project/texts.jsonl").texts) == 3
sys.meta_path[:] = [finder for finder in sys.meta_path if type(finder).__name__ != "Wall"]
code, output = invoke("run", "plugin_words", "-P", "executor=elsewhere", *sys.argv[1:])
assert code == 0 and "2 words were measured." in output, output
code, output = invoke("run", "perplexity", "-P", "executor=inline", "-P", "max_length=64", *sys.argv[1:5])
assert code == 0, output
listed = CliRunner().invoke(main, ["runs", "--format", "csv", "--columns", "scenario,status"]).stdout
names = ["baseline", "sea", "harbour", "perplexity_float32"]
assert set(listed.splitlines()[1:]) == {f"{name},FINISHED" for name in names}, listed
print("all there")
"""
SMALL = {
    "device": "cpu",
    "model": "synthetic:tiny",
    "max_new_tokens": "2",
    "min_repeats": "2",
    "min_seconds": "0",
    "max_seconds": "0.05",
}


class Installed:
    """An environment with only the wheel.

    As no test may download packages, requirements come from this environment: its folders are last on the import path,
    without the checkout that one of their .pth files names. Whether pyproject.toml requires enough is not tested. Its
    programs can import only libraries of their side of the wall.
    """

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.folder = folder / "environment"
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(self.folder)], check=True)
        uv = find_uv()
        assert uv is not None
        install = ["pip", "install", "--quiet", "--offline", "--no-index", "--no-deps", "--no-cache"]
        subprocess.run([*uv, *install, "--python", str(self.python), str(wheel)], check=True)
        (self.site,) = self.folder.glob("lib/python*/site-packages")
        shared = [path for path in sys.path if path.endswith("-packages")]
        (self.site / "zz_shared.pth").write_text("".join(f"{path}\n" for path in shared), encoding="utf-8")
        self.wall = folder / "wall"
        self.wall.mkdir()
        wall.forbid_imports(self.wall)

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def activated(self, folder: Path) -> dict[str, str]:
        """Return the environment variables of a user who has activated it and works in a folder."""
        names = ("HOME", "TMPDIR", "LLMTRACK_CACHE", "OMP_NUM_THREADS")
        return {name: value for name, value in os.environ.items() if name in names} | {
            "PATH": os.pathsep.join([str(self.folder / "bin"), "/usr/bin", "/bin"]),
            "LLMTRACK_SPOOL": str(folder / "spool"),
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
            "PYTHONPATH": str(self.wall),
        }

    def run(self, folder: Path, *command: str) -> str:
        """Run a command of the activated environment; return its output."""
        program = [self.folder / "bin" / command[0], *command[1:]]
        result = subprocess.run(program, cwd=folder, env=self.activated(folder), capture_output=True, text=True)
        assert result.returncode == 0, result.stdout + result.stderr
        assert "Traceback" not in result.stdout + result.stderr
        return result.stdout

    def mlflow_run(self, folder: Path, project: str, entry_point: str, parameters: Mapping[str, str]) -> None:
        """Run an entry point by MLflow's command in this process, with the environment's programs."""
        from mlflow.cli import cli

        environment = self.activated(folder)
        with pytest.MonkeyPatch.context() as patch:
            for name in os.environ.keys() - environment.keys():
                patch.delenv(name)
            for name, value in environment.items():
                patch.setenv(name, value)
            patch.chdir(folder)
            line = ["run", project, "-e", entry_point, "--env-manager", "local", *parameter_arguments(parameters)]
            result = CliRunner().invoke(cli, line)
        assert result.exit_code == 0, result.output


def parameter_arguments(parameters: Mapping[str, str]) -> list[str]:
    return [word for name, value in parameters.items() for word in ("-P", f"{name}={value}")]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installed:
    if importlib.util.find_spec("setuptools") is None or find_uv() is None:
        pytest.skip("a wheel is built with setuptools and installed by uv, which are not both installed")
    folder = tmp_path_factory.mktemp("wheel")
    checkout, wheels = folder / "checkout", folder / "wheels"
    for name in ("llmtrack", "experiments"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MLproject", "conda.yaml"):
        shutil.copy2(ROOT / name, checkout)
    wheels.mkdir()
    subprocess.run([sys.executable, "-c", WHEEL, str(wheels)], cwd=checkout, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    return Installed(folder, wheel)


@pytest.mark.slow(25)
def test_a_wheel_alone_measures_from_the_project_it_writes_and_has_all_commands(installed, tmp_path, template_database):
    shutil.copyfile(template_database, tmp_path / "mlflow.db")
    assert "-e baseline --env-manager local" in installed.run(tmp_path, "llmtrack", "init", "a project")
    # One program, its worker, and one that measures in itself: each imports for many seconds.
    installed.mlflow_run(tmp_path, "a project", "suite", {"experiments": "baseline", "quick": "true", **SMALL})
    install_plugins(installed.site)
    assert installed.run(tmp_path, "python", "-c", PROGRAM, *parameter_arguments(SMALL)).strip() == "all there"
    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    columns = runs(tracking_uri=store)[
        ["experiment", "scenario", "status", "model_id", "device", "dtype", "env.elsewhere"]
    ].fillna("")
    of_wheel = ("baseline", "baseline", ""), ("perplexity", "perplexity_float32", "")
    of_plugins = ("plugin_words", "sea", "yes"), ("plugin_words", "harbour", "yes")
    # A set: a disturbed run is remeasured.
    assert set(columns.itertuples(index=False, name=None)) == {
        (experiment, scenario, "FINISHED", "synthetic:tiny", "cpu", "float32", elsewhere)
        for experiment, scenario, elsewhere in of_wheel + of_plugins
    }
    assert "suite" in set(studies(tracking_uri=store)["experiment"])
