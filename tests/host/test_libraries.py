"""Libraries send no telemetry unless the user turned it on."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from llmtrack.host.libraries import TELEMETRY_OFF
from llmtrack.host.packages import installed_version

# ONNX Runtime sends nothing on a CI server: without these variables, this is a user's machine.
CI_VARIABLES = ("CI", "TF_BUILD", "GITHUB_ACTIONS", "JENKINS_URL", "ORT_RUNNING_UNIT_TESTS")


def printed_by(code, home, **variables):
    """Return the JSON that a new process prints, with a home of its own and no telemetry settings."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in (*TELEMETRY_OFF, *CI_VARIABLES, "XDG_CACHE_HOME")
    }
    environment |= {"HOME": str(home), "LLMTRACK_CACHE": str(home / "llmtrack"), **variables}
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def test_importing_llmtrack_opts_out_for_this_process_and_its_children(tmp_path):
    code = f"import llmtrack, os, json; print(json.dumps({{name: os.environ[name] for name in {list(TELEMETRY_OFF)}}}))"
    assert printed_by(code, tmp_path) == TELEMETRY_OFF
    assert printed_by(code, tmp_path, ORT_DISABLE_TELEMETRY="0")["ORT_DISABLE_TELEMETRY"] == "0"


@pytest.mark.slow(2)
@pytest.mark.skipif(not installed_version("onnxruntime"), reason="onnxruntime is not installed")
def test_onnx_runtime_writes_no_machine_identifier(tmp_path):
    code = "from llmtrack.onnx.session import onnxruntime; print(len(onnxruntime().get_available_providers()))"
    assert printed_by(code, tmp_path) > 0
    assert not list(tmp_path.rglob("*onnxruntime*"))
