"""Tests of llmtrack, which run with one thread each: more only cost time with models this small and tests in parallel."""

import os

# Before NumPy or PyTorch is imported: NumPy's would spin beside other tests, and take seven times the CPU time.
os.environ.setdefault("OMP_NUM_THREADS", "1")
