"""A GGUF file, against llama.cpp's own llama-bench: prefill and decoding by its definition, in both."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from benchmarks.llama_bench import PHASES, compare
from benchmarks.results import Findings, Goal, benchmark, row
from llmtrack.host.packages import missing_modules
from llmtrack.models import packaged

BINARY = "LLAMA_BENCH"
"""Environment variable with the program's path, if it is not on PATH."""

AGREES = Goal(0.98, 1.02)
PROMPT, NEW, ROUNDS, WIDTH = 256, 32, 6, 0.04


def measure(small: bool) -> Findings:
    """Measure the same file with both, in turn, until the intervals are narrow."""
    binary = os.environ.get(BINARY) or shutil.which("llama-bench")
    if not binary:
        return Findings(
            left_out=(
                f"llama-bench: it is not there; build it from the source of llama-cpp-python (benchmarks/llama_bench.py) "
                f"and name it in {BINARY}",
            )
        )
    if lacking := missing_modules("llamacpp"):
        return Findings(left_out=(f"llama-bench: {', '.join(lacking)} is not installed",))
    file, prompt, new, rounds = packaged.gguf_file("smollm2"), PROMPT, NEW, ROUNDS
    if small:
        prompt, new, rounds = 16, 4, 1
    rows = []
    for threads in (1,) if small else (1, 2):
        pairs = compare(Path(binary), file, threads, prompt, new, rounds, WIDTH)
        where = f"{file.name}, {prompt} + {new} tokens, threads: {threads}"
        rows += [
            row(
                f"{phase} tokens/s",
                "",
                pairs[phase].ours,
                pairs[phase].theirs,
                where=where,
                peer="llama-bench",
                goal=AGREES,
            )
            for phase in PHASES
        ]
    return Findings(tuple(rows))


main = benchmark("A GGUF file")(measure)

if __name__ == "__main__":
    main()
