"""Build environments: made once, by uv, from what is pinned; what goes wrong is one line."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from llmtrack.convert import conversion, environment
from llmtrack.convert.conversion import explaining_unsupported
from llmtrack.convert.environment import BuildEnvironment, error_line, pinned_requirements
from llmtrack.convert.openvino import CONVERTER
from llmtrack.errors import MissingDependencyError, ScenarioError
from llmtrack.host.packages import find_uv

pytestmark = pytest.mark.skipif(find_uv() is None, reason="uv is not installed: only converters need it")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_OFFLINE", "1")
    return tmp_path / "cache"


@pytest.fixture
def package(tmp_path: Path) -> str:
    """A requirement that can be had without a network: a wheel of one module that says which Python runs it."""
    import zipfile

    wheel = tmp_path / "saying-1.0-py3-none-any.whl"
    info = "saying-1.0.dist-info"
    source = (
        "import sys, pathlib, os\n"
        "pathlib.Path('said').write_text(' '.join([sys.prefix, os.environ.get('PYTHONPATH', ''), *sys.argv[1:]]))\n"
        "if 'fail' in sys.argv: raise ValueError('no such\\nprecision')\n"
        "if 'wait' in sys.argv: __import__('time').sleep(600)\n"
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("saying.py", source)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: saying\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return f"saying @ {wheel.as_uri()}"


@pytest.mark.slow(1)
def test_it_is_made_once_and_runs_its_own_packages(package, tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "of-the-user"))
    made = BuildEnvironment("try", (package,))
    assert not made.made
    made.run("trying", ["saying", "one"], tmp_path)
    assert (tmp_path / "said").read_text() == f"{made.folder}  one", "in it, without the user's own paths"
    monkeypatch.setattr(environment, "find_uv", lambda: pytest.fail("it is there already"))
    made.run("trying", ["saying", "two"], tmp_path)
    assert (tmp_path / "said").read_text().endswith("two")


def test_what_it_depends_on_tells_it_from_others(package, monkeypatch):
    one = BuildEnvironment("try", (package,))
    assert one.key == BuildEnvironment("other", (package,)).key
    assert one.key != BuildEnvironment("try", ("saying==2.0",)).key
    before = one.key
    monkeypatch.setattr(environment, "installed_version", lambda name: "another torch")
    assert one.key != before


@pytest.mark.slow(1)
def test_pytorch_is_the_users_own(tmp_path):
    made = BuildEnvironment("bare", ())
    code = "import importlib.util as u; print(u.find_spec('torch').origin)"
    said = subprocess.run([made.python(), "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    import torch

    assert said.stdout.strip() == torch.__file__


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    "requirement",
    ["no-such-package-of-llmtrack==1.0", "saying @ file:///nowhere/saying-1.0-py3-none-any.whl"],
)
def test_a_failed_build_is_one_line_and_leaves_nothing(requirement):
    made = BuildEnvironment("try", (requirement,))
    with pytest.raises(MissingDependencyError) as caught:
        made.python()
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("the build environment of try cannot be created (")
    assert "check the network" in message
    assert not made.folder.exists()


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_while_it_is_made(monkeypatch, error):
    def full(*_):
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(BuildEnvironment, "_fill", full)
    with pytest.raises(
        MissingDependencyError,
        match=r"^the build environment of try cannot be created: the disk of .* is full: .* MiB are free",
    ):
        BuildEnvironment("try", ()).python()


@pytest.mark.slow(1)
def test_what_a_killed_process_left_is_made_anew(package):
    made = BuildEnvironment("try", (package,))
    made.folder.mkdir(parents=True)
    (made.folder / "rubbish").touch()
    assert made.python().exists()
    assert not (made.folder / "rubbish").exists()


def test_without_uv_the_remedy_is_named(monkeypatch):
    monkeypatch.setattr(environment, "find_uv", lambda: None)
    with pytest.raises(MissingDependencyError, match="pip install uv"):
        BuildEnvironment("try", ()).python()


@pytest.mark.slow(1)
def test_a_tool_that_fails_says_its_last_line(package, tmp_path):
    with pytest.raises(ScenarioError) as caught:
        BuildEnvironment("try", (package,)).run("converting", ["saying", "fail"], tmp_path)
    assert str(caught.value).startswith("converting failed: ")
    assert "\n" not in str(caught.value)
    assert caught.value.kind == "unsupported"


@pytest.mark.slow(1)
def test_a_tool_ends_when_its_caller_is_killed(package, tmp_path):
    """Or it would go on writing into a folder that somebody else makes anew."""
    python = BuildEnvironment("try", (package,)).python()
    guard = str(Path(environment.__file__).with_name("guarded.py"))
    caller = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([{str(python)!r}, {guard!r}, 'saying', 'wait'], stdin=subprocess.PIPE)\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", caller], stdout=subprocess.PIPE, text=True, cwd=tmp_path)
    assert parent.stdout is not None
    tool = psutil.Process(int(parent.stdout.readline()))
    while not (tmp_path / "said").exists():
        time.sleep(0.05)
    parent.kill()
    parent.wait()
    tool_ended = threading.Event()
    threading.Thread(target=lambda: (psutil.wait_procs([tool]), tool_ended.set()), daemon=True).start()
    assert tool_ended.wait(3600)


def test_the_pins_of_each_converter_are_whole():
    for name in sorted(path.stem for path in (Path(environment.__file__).parent / "requirements").iterdir()):
        found = pinned_requirements(name)
        assert found
        assert all("==" in line and not line.startswith("torch==") for line in found), name


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("  x Error\nerror: no solution\nhint: try", "error: no solution"),
        ("Traceback\nValueError: bad\n", "ValueError: bad"),
        ("10%\r100%\nerror: see https://secret@index/simple", "error: see"),
        ("", "no output"),
    ],
)
def test_the_line_that_says_most(said, line):
    assert error_line(said) == line


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "Maximum required is 5.0, got: 5.5.4",
            "openvino's exporter supports gemma3 only with transformers 5.0 or older, and the environment that it runs in has "
            "5.5.4: use backend=torch or onnx",
        ),
        (
            "Minimum required is 5.10, got: 5.5.4",
            "openvino's exporter supports gemma3 only with transformers 5.10 or newer, and the environment that it runs in "
            "has 5.5.4: use backend=torch or onnx",
        ),
        ("KeyError: 'rope_type'", "openvino's exporter does not support gemma3: use backend=torch or onnx"),
        ("KeyError: 'multi_cache'", "openvino's exporter does not support gemma3: use backend=torch or onnx"),
        ("NotImplementedError: The gemma3 model is not currently supported.", "does not support gemma3"),
        (
            "ValueError: Trying to export a gemma3 model, that is a custom or unsupported architecture",
            "does not support gemma3",
        ),
        (
            "OSError: [Errno 28] No space left on device",
            "openvino's exporter cannot convert this gemma3 model (trying failed: OSError: [Errno 28] No space left on "
            "device): use backend=torch or onnx",
        ),
    ],
)
def test_a_tool_that_does_not_know_a_model_is_told_in_words(tmp_path, monkeypatch, said, told):
    monkeypatch.setattr(conversion, "_onnx_supports", lambda architecture: architecture == "gemma3")
    (tmp_path / "config.json").write_text('{"model_type": "gemma3"}')
    with pytest.raises(ScenarioError) as caught, explaining_unsupported(CONVERTER, tmp_path):
        raise ScenarioError(f"trying failed: {said}", kind="unsupported")
    assert told in str(caught.value)
    assert caught.value.kind == "unsupported"
    assert "\n" not in str(caught.value)


@pytest.mark.slow(9)
def test_only_a_backend_that_supports_the_model_is_offered_instead(tmp_path, monkeypatch):
    def offered(architecture):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": architecture}))
        with pytest.raises(ScenarioError) as caught, explaining_unsupported(CONVERTER, tmp_path):
            raise ScenarioError("NotImplementedError: no such model", kind="unsupported")
        return str(caught.value).rpartition("use backend=")[2]

    known = ("llama", "gemma3_text", "gpt_oss")
    unknown = ("gemma3n", "no_such_model", "?")
    if conversion.available("onnx"):
        assert {offered(each) for each in known} == {"torch or onnx"}
    assert {offered(each) for each in unknown} == {"torch"}
    monkeypatch.setattr(conversion, "available", lambda backend: False)
    assert {offered(each) for each in known} == {"torch"}


def test_a_tool_that_ran_out_of_memory_did_not_stumble_over_a_model(tmp_path):
    with pytest.raises(ScenarioError, match=r"^killed$") as caught, explaining_unsupported(CONVERTER, tmp_path):
        raise ScenarioError("killed", kind="out_of_memory")
    assert caught.value.kind == "out_of_memory"
