"""Test workers and measuring processes are forks, which inherit the state of the process that they are forked from."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.conftest import enable_interrupts
from tests.forking import ROOT

# Each query of a GPU by a program ends its process with a traceback.
RUN_WITH_STUBS = """
import os, sys, traceback
import torch  # once for all

def queried(*arguments):
    traceback.print_stack()
    os._exit(3)

# Functions of a CUDA build, which another build needs once it is taken for one.
for name in ("_cuda_getDeviceCount", "_cuda_init"):
    setattr(torch._C, name, queried)
if not hasattr(torch._C, "_cuda_getCurrentRawStream"):
    torch._C._cuda_getCurrentRawStream = queried
torch.cuda._lazy_init = torch.cuda._device_count_nvml = queried

for program in {programs!r}:
    pid = os.fork()
    if not pid:
        exec(program, {{}})
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""

IMPORTS_BEFORE_FORKS = """
from tests.forking import import_tests

import_tests(["tests"])
import tests.preloaded
"""
QUERIES = ("torch.cuda.is_available()", "torch.cuda.device_count()", "torch.zeros(1, device='cuda')")


@pytest.mark.slow(20)
def test_nothing_imported_before_a_fork_queries_a_gpu():
    programs = (IMPORTS_BEFORE_FORKS, *(f"import torch; {query}" for query in QUERIES))
    command = [sys.executable, "-c", RUN_WITH_STUBS.format(programs=programs)]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.stdout.split() == ["0", "3", "3", "3"], result.stderr


@pytest.mark.parametrize("before", [signal.SIG_IGN, signal.SIG_DFL])
def test_tests_in_the_background_of_a_script_handle_ctrl_c(before):
    """Another handler, such as pytest's or a debugger's, stays."""
    original = signal.signal(signal.SIGINT, before)
    try:
        enable_interrupts()
        now = signal.getsignal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, original)
    assert now is (signal.default_int_handler if before is signal.SIG_IGN else before)


def test_this_test_handles_ctrl_c():
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
