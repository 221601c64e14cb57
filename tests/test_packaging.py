"""What an installation of a checkout lets Python find."""

from __future__ import annotations

import importlib.util
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
