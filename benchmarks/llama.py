"""A GGUF file, against llama.cpp's own llama-bench: prefill and decoding by its definition, in both.

Its binary is built from the source that llama-cpp-python is made of, so that both run the same code:

    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==VERSION, unpack it, and in vendor/llama.cpp:
    cmake -B build -DCMAKE_BUILD_TYPE=Release && cmake --build build --target llama-bench
    LLAMA_BENCH=build/bin/llama-bench python -m benchmarks.llama --model model.gguf
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import click

from benchmarks.results import Findings, Goal, benchmark, narrow, rounds, row
from llmtrack import load_engine
from llmtrack.engine import Engine, GenerateRequest
from llmtrack.host.packages import missing_modules
from llmtrack.measure.timing import trace_generate
from llmtrack.models.load import identify_model

BINARY = "LLAMA_BENCH"
"""Environment variable with the program's path, if it is not on PATH."""

AGREES = Goal(0.98, 1.02)
PROMPT, NEW, LEAST_ROUNDS, MOST_ROUNDS, WIDTH = 256, 32, 5, 6, 0.04
PHASES = ("prefill", "decode")


def measure(small: bool, model: str | None) -> Findings:
    """Measure the same file with both, in turn, until the intervals are narrow."""
    binary = os.environ.get(BINARY) or shutil.which("llama-bench")
    if not binary:
        return Findings(
            left_out=(
                f"llama-bench: it is not there; build it from the source of llama-cpp-python (benchmarks/llama.py) "
                f"and name it in {BINARY}",
            )
        )
    if lacking := missing_modules("llamacpp"):
        return Findings(left_out=(f"llama-bench: {', '.join(lacking)} is not installed",))
    file = identify_model(model or "packaged:smollm2", as_gguf=True).gguf
    if file is None:
        raise click.UsageError(f"{model} is not a GGUF file")
    prompt, new, most_rounds = (16, 4, 1) if small else (PROMPT, NEW, MOST_ROUNDS)
    rows = []
    for threads in (1,) if small else (1, 2):
        engine = load_engine(str(file), backend="llamacpp", device="cpu", threads=threads)
        text = engine.encode("The harbour wakes before the town does. ")
        arms = {
            "ours": partial(ours, engine, tuple((text * prompt)[:prompt]), new),
            "theirs": partial(theirs, bench_arguments(Path(binary), file, threads, prompt, new)),
        }
        arms["ours"]()
        enough = partial(narrow, ours="ours", theirs="theirs", width=WIDTH, least=LEAST_ROUNDS)
        samples = rounds(arms, most_rounds, enough)
        engine.close()
        where = f"{file.name}, {prompt} + {new} tokens, threads: {threads}"
        rows += [
            row(
                f"{phase} tokens/s",
                "",
                samples["ours"][phase],
                samples["theirs"][phase],
                where=where,
                peer="llama-bench",
                goal=AGREES,
            )
            for phase in PHASES
        ]
    return Findings(tuple(rows))


def bench_arguments(binary: Path, file: Path, threads: int, prompt: int, new: int) -> list[list[str]]:
    """Return the commands that measure the prefill of a prompt, and the decoding after it."""
    common = [str(binary), "-m", str(file), "-t", str(threads), "-r", "1", "-ngl", "0", "-o", "json"]
    return [[*common, "-p", str(prompt), "-n", "0"], [*common, "-p", "0", "-n", str(new), "-d", str(prompt)]]


def speed_of(output: str) -> float:
    """Parse the tokens per second from the output of llama-bench."""
    (test,) = json.loads(output)
    return float(test["avg_ts"])


def theirs(commands: Sequence[Sequence[str]]) -> dict[str, float]:
    """Run llama-bench."""
    outputs = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for command in commands]
    return dict(zip(PHASES, map(speed_of, outputs), strict=True))


def ours(engine: Engine, ids: tuple[int, ...], new: int) -> dict[str, float]:
    """Run llmtrack: the first new token ends the prefill, the others are decoded."""
    trace, _ = trace_generate(engine, GenerateRequest((ids,), new + 1))
    stamps = trace.stamps
    speeds = len(ids) / (stamps[0] - trace.start), new / (stamps[-1] - stamps[0])
    return dict(zip(PHASES, speeds, strict=True))


main = benchmark("A GGUF file", click.option("--model", help="A GGUF file, or packaged:NAME."))(measure)

if __name__ == "__main__":
    main()
