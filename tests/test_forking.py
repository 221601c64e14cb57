"""Test workers and measuring processes are forks, which inherit the state of the process that they are forked from."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys

import pytest
import torch

from tests import forking
from tests.conftest import enable_interrupts

IMPORT_TESTS = """
from tests import forking

forking.import_tests(["tests"])
print(*forking.QUERIES_BEFORE_FORK, sep="")
"""


@pytest.mark.slow(20)  # without xdist or with fewer tests
def test_nothing_imported_before_a_fork_queries_a_gpu():
    queries = forking.QUERIES_BEFORE_FORK
    if queries is None:
        result = subprocess.run([sys.executable, "-c", IMPORT_TESTS], cwd=forking.ROOT, capture_output=True, text=True)
        assert (result.stdout, result.returncode) == ("\n", 0), result.stdout + result.stderr
    else:
        assert queries == []


def use_gpu():
    if torch.cuda.is_initialized():
        pytest.skip("an earlier test of this process has used the GPU, and PyTorch asks once")
    torch.zeros(1, device="cuda")


@pytest.mark.parametrize(
    "query", [torch.cuda.is_available, torch.cuda.device_count, torch.cuda.current_device, use_gpu]
)
def test_a_query_of_a_gpu_is_noticed(query):
    with forking.queries_of_gpus() as queries, contextlib.suppress(AssertionError, RuntimeError):
        query()
    assert "test_a_query_of_a_gpu_is_noticed" in queries[0]


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
