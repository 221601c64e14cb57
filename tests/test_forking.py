"""Workers and measuring processes are forks: CUDA is of no use to a fork of a process that has asked for it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.forking import ROOT

# A machine with a GPU, as far as an import can see: the first look at it ends the process with its traceback.
LOOKS_FOR_A_GPU = """
import os, traceback
import torch

def found(*arguments):
    traceback.print_stack()
    os._exit(3)

# What a build for CUDA has, and another asks for once it is taken for one.
for name in ("_cuda_getDeviceCount", "_cuda_init"):
    setattr(torch._C, name, found)
if not hasattr(torch._C, "_cuda_getCurrentRawStream"):
    torch._C._cuda_getCurrentRawStream = found
torch.cuda._lazy_init = torch.cuda._device_count_nvml = found
{program}
"""

WHAT_IS_FORKED_IMPORTS = """
from tests.forking import import_tests

import_tests(["tests"])
import tests.preloaded
"""


def look(program: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LOOKS_FOR_A_GPU.format(program=program)]
    return subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)


@pytest.mark.slow(20)
def test_nothing_that_is_imported_before_a_fork_looks_for_a_gpu():
    done = look(WHAT_IS_FORKED_IMPORTS)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow(3)
@pytest.mark.parametrize(
    "ask", ["torch.cuda.is_available()", "torch.cuda.device_count()", "torch.zeros(1, device='cuda')"]
)
def test_a_look_for_a_gpu_is_noticed(ask):
    done = look(ask)
    assert done.returncode == 3, done.stderr
    assert "found" in done.stderr
