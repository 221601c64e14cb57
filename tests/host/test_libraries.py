"""A measured process reports to nobody, unless its user asked for it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from llmtrack.host.libraries import TELEMETRY_OFF
from llmtrack.host.packages import installed_version

# ONNX Runtime sends nothing where it sees a CI server: without these, this is a user's machine.
SERVERS = ("CI", "TF_BUILD", "GITHUB_ACTIONS", "JENKINS_URL", "ORT_RUNNING_UNIT_TESTS")


def told(code, home, **more):
    """What a new process prints, whose home is a folder of its own and in which nobody has decided anything."""
    environment = {
        name: value for name, value in os.environ.items() if name not in (*TELEMETRY_OFF, *SERVERS, "XDG_CACHE_HOME")
    }
    environment |= {"HOME": str(home), "LLMTRACK_CACHE": str(home / "llmtrack"), **more}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def test_what_imports_llmtrack_and_what_it_starts_is_opted_out(tmp_path):
    code = f"import llmtrack, os, json; print(json.dumps({{name: os.environ[name] for name in {list(TELEMETRY_OFF)}}}))"
    assert told(code, tmp_path) == TELEMETRY_OFF
    assert told(code, tmp_path, ORT_DISABLE_TELEMETRY="0")["ORT_DISABLE_TELEMETRY"] == "0"


@pytest.mark.slow(2)
@pytest.mark.skipif(not installed_version("onnxruntime"), reason="onnxruntime is not installed")
def test_onnx_runtime_leaves_no_identifier_of_the_machine(tmp_path):
    code = "from llmtrack.onnx.session import onnxruntime; print(len(onnxruntime().get_available_providers()))"
    assert told(code, tmp_path) > 0
    assert not list(tmp_path.rglob("*onnxruntime*"))
