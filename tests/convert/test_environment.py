"""Build environments are created once, by uv, from pinned requirements; failures are one line."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from llmtrack.convert import environment
from llmtrack.convert.environment import BuildEnvironment, pinned_requirements
from llmtrack.errors import MissingDependencyError, ScenarioError
from llmtrack.host.packages import find_uv

pytestmark = pytest.mark.skipif(find_uv() is None, reason="uv is not installed: only converters need it")


@pytest.fixture(autouse=True)
def offline(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_OFFLINE", "1")


@pytest.fixture
def package(tmp_path: Path) -> str:
    """A requirement that needs no network: a wheel of one module, which writes down the Python that runs it."""
    import zipfile

    wheel = tmp_path / "probe-1.0-py3-none-any.whl"
    info = "probe-1.0.dist-info"
    source = (
        "import sys, pathlib, os\n"
        "pathlib.Path('report').write_text(' '.join([sys.prefix, os.environ.get('PYTHONPATH', ''), *sys.argv[1:]]))\n"
        "if 'fail' in sys.argv: raise ValueError('no such\\nprecision')\n"
        "if 'wait' in sys.argv: __import__('time').sleep(600)\n"
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("probe.py", source)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: probe\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return f"probe @ {wheel.as_uri()}"


@pytest.mark.slow(1)
def test_it_is_created_once_and_runs_its_own_packages(package, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "of-the-user"))
    build = BuildEnvironment("try", (package,))
    assert not build.is_complete
    build.run("trying", ["probe", "one"], tmp_path)
    assert (tmp_path / "report").read_text() == f"{build.folder}  one", "in it, without the user's paths"
    monkeypatch.setattr(environment, "find_uv", lambda: pytest.fail("it exists already"))
    build.run("trying", ["probe", "two"], tmp_path)
    assert (tmp_path / "report").read_text().endswith("two")


def test_its_key_depends_on_packages_and_torch_but_not_on_its_name(package, monkeypatch):
    build = BuildEnvironment("try", (package,))
    assert build.key == BuildEnvironment("other", (package,)).key
    assert build.key != BuildEnvironment("try", ("probe==2.0",)).key
    before = build.key
    monkeypatch.setattr(environment, "installed_version", lambda name: "another torch")
    assert build.key != before


@pytest.mark.slow(1)
def test_pytorch_is_shared_with_the_user(tmp_path):
    build = BuildEnvironment("bare", ())
    code = "import importlib.util as u; print(u.find_spec('torch').origin)"
    result = subprocess.run([build.python(), "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    import torch

    assert result.stdout.strip() == torch.__file__


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    "requirement",
    ["no-such-package-of-llmtrack==1.0", "probe @ file:///nowhere/probe-1.0-py3-none-any.whl"],
)
def test_a_failed_build_is_one_line_and_leaves_nothing(requirement):
    build = BuildEnvironment("try", (requirement,))
    with pytest.raises(MissingDependencyError) as caught:
        build.python()
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("the build environment of try cannot be created (")
    assert "check the network" in message
    assert not build.folder.exists()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_during_creation_is_named(monkeypatch, error):
    def full(*_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(BuildEnvironment, "_fill", full)
    with pytest.raises(
        MissingDependencyError,
        match=r"^the build environment of try cannot be created: the disk of .* is full: .* MiB are free",
    ):
        BuildEnvironment("try", ()).python()


@pytest.mark.slow(1)
def test_leftovers_of_a_killed_process_are_replaced(package):
    build = BuildEnvironment("try", (package,))
    build.folder.mkdir(parents=True)
    (build.folder / "rubbish").touch()
    assert build.python().exists()
    assert not (build.folder / "rubbish").exists()


def test_without_uv_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(environment, "find_uv", lambda: None)
    with pytest.raises(MissingDependencyError, match="pip install uv"):
        BuildEnvironment("try", ()).python()


@pytest.mark.slow(1)
def test_the_failure_of_a_tool_is_one_line(package, tmp_path):
    with pytest.raises(ScenarioError) as caught:
        BuildEnvironment("try", (package,)).run("converting", ["probe", "fail"], tmp_path)
    assert str(caught.value).startswith("converting failed: ")
    assert "\n" not in str(caught.value)
    assert caught.value.kind == "unsupported"


@pytest.mark.slow(1)
def test_a_tool_ends_when_its_caller_is_killed(package, tmp_path):
    """Otherwise it would write into a folder that another process creates again."""
    python = BuildEnvironment("try", (package,)).python()
    guard = str(Path(environment.__file__).with_name("guarded.py"))
    caller = (
        "import subprocess, sys, time\n"
        f"tool = subprocess.Popen([{str(python)!r}, {guard!r}, 'probe', 'wait'], stdin=subprocess.PIPE)\n"
        "print(tool.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", caller], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert parent.stdout is not None
    tool = psutil.Process(int(parent.stdout.readline()))
    while not (tmp_path / "report").exists():
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    tool_ended = threading.Event()
    threading.Thread(target=lambda: (psutil.wait_procs([tool]), tool_ended.set()), daemon=True).start()
    assert tool_ended.wait(3600)


def test_every_requirement_of_a_converter_is_pinned_except_torch():
    for name in sorted(path.stem for path in (Path(environment.__file__).parent / "requirements").iterdir()):
        requirements = pinned_requirements(name)
        assert requirements
        assert all("==" in line and not line.startswith("torch==") for line in requirements), name
