"""What an installation of a checkout lets Python find."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow(5)

ROOT = Path(__file__).parents[1]

BUILD = "import sys; from setuptools.build_meta import build_editable; build_editable(sys.argv[1])"
IMPORT = "import site, sys; site.addsitedir(sys.argv[1]); import llmtrack; print(llmtrack.__file__)"


def test_an_editable_install_is_found_from_the_folder_above_the_checkout(tmp_path):
    """There `llmtrack` is a folder without `__init__.py`, which Python takes unless the path of imports has a better one."""
    # Looked for and not imported: it refuses a process that has imported distutils already.
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
    # Without the packages of this environment, in which the real one is.
    command = [sys.executable, "-S", "-c", IMPORT, str(site)]
    done = subprocess.run(command, cwd=tmp_path, env={}, capture_output=True, text=True)
    assert done.stdout.strip() == str(checkout / "llmtrack" / "__init__.py"), done.stderr


WHEEL = "import sys; from setuptools.build_meta import build_wheel; build_wheel(sys.argv[1])"
TRIED = """
import importlib.util, sys
from click.testing import CliRunner
from llmtrack.cli import main
assert importlib.util.find_spec("experiments") is None, "a common name is not taken"
def told(*asked):
    done = CliRunner().invoke(main, asked)
    return done.exit_code, done.output
code, output = told("run", "precision", "-P", "nonsense=1")
assert code == 2 and "precision has no parameter nonsense" in output, output
code, output = told("run", "precison")
assert code == 2 and "did you mean precision" in output, output
code, output = told("init", "project")
assert code == 0 and "mlflow run project -e baseline" in output, output
text = open("project/MLproject").read()
assert "python -m llmtrack.experiments.baseline" in text and "python -m experiments." not in text
assert "llmtrack" in open("project/conda.yaml").read().splitlines()[-1]
from llmtrack.modules import named_experiment
assert named_experiment("suite").__name__ == "llmtrack.experiments.suite"
assert told("init", "project")[0] == 2, "nothing is overwritten"
print("all there")
"""


@pytest.mark.slow(9)
def test_a_wheel_alone_has_the_experiments_and_writes_a_project(tmp_path):
    if importlib.util.find_spec("setuptools") is None:
        pytest.skip("a wheel is built with setuptools, which is not installed")
    checkout, wheels, site = (tmp_path / name for name in ("checkout", "wheels", "site"))
    ignored = shutil.ignore_patterns("__pycache__")
    for folder in ("llmtrack", "experiments"):
        shutil.copytree(ROOT / folder, checkout / folder, ignore=ignored)
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MLproject", "conda.yaml"):
        shutil.copy2(ROOT / name, checkout)
    wheels.mkdir()
    subprocess.run([sys.executable, "-c", WHEEL, str(wheels)], cwd=checkout, check=True, capture_output=True)
    (wheel,) = wheels.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (tmp_path / "elsewhere").mkdir()
    # Its requirements come from this environment, but not the checkout that a .pth file there names.
    paths = [str(site), *(path for path in sys.path if path.endswith("-packages"))]
    done = subprocess.run(
        [sys.executable, "-S", "-c", TRIED],
        cwd=tmp_path / "elsewhere",
        env={"PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "all there", done.stderr
