"""Workers and measuring processes are forks: what the process that they are forked off has done to itself holds for them."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.conftest import heed_interrupts
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


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL])
def test_tests_that_a_script_runs_in_the_background_heed_ctrl_c(before):
    """Only what is ignored is changed: pytest's own handler, or a debugger's, stays."""
    kept = signal.signal(signal.SIGINT, before)
    try:
        heed_interrupts()
        now = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, kept)
    assert now is (signal.default_int_handler if before is signal.SIG_IGN else before)


def test_this_test_heeds_ctrl_c():
    """Whatever has started it."""
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
