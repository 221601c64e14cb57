"""Do llmtrack's figures of a GGUF file agree with those of llama.cpp's own `llama-bench`?

Its binary is built from the source that llama-cpp-python is made of, so that both run the same code:

    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==VERSION, unpack it, and in vendor/llama.cpp:
    cmake -B build -DCMAKE_BUILD_TYPE=Release && cmake --build build --target llama-bench
    python -m benchmarks.llama_bench --binary build/bin/llama-bench --model packaged:smollm2 --threads 1,2

Each round runs both, in turn and in changing order, so that what else the machine does falls on both alike. The same work is
compared: the prefill of a prompt (`-p`), and the decoding of new tokens behind a context of that length (`-n -d`). Prints the
medians, the ratio of each round with a bootstrap 95 % interval of the median, and the load of the machine; it goes on until
the intervals are narrow, or the rounds are used up.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import click

from llmtrack import load_engine
from llmtrack.engine import Engine, GenerateRequest
from llmtrack.measure.statistics import bootstrap_median_ci
from llmtrack.measure.timing import trace_generate
from llmtrack.models.load import identify_model

PHASES = ("prefill", "decode")
LEAST_ROUNDS = 5


@dataclass
class Pairs:
    """Tokens per second of both programs, round by round.

    Attributes:
        theirs: of llama-bench.
        ours: of llmtrack.
    """

    theirs: list[float] = field(default_factory=list)
    ours: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Ours over theirs, of each round."""
        return [own / other for own, other in zip(self.ours, self.theirs, strict=True)]

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the median ratio."""
        return bootstrap_median_ci(self.ratios)


def bench_arguments(binary: Path, file: Path, threads: int, prompt: int, new: int) -> list[list[str]]:
    """Return the commands that measure the prefill of a prompt, and the decoding after it."""
    common = [str(binary), "-m", str(file), "-t", str(threads), "-r", "1", "-ngl", "0", "-o", "json"]
    return [[*common, "-p", str(prompt), "-n", "0"], [*common, "-p", "0", "-n", str(new), "-d", str(prompt)]]


def speed_of(output: str) -> float:
    """Parse the tokens per second from the output of llama-bench."""
    (test,) = json.loads(output)
    return float(test["avg_ts"])


def theirs(commands: Sequence[Sequence[str]]) -> list[float]:
    """Run llama-bench."""
    done = [subprocess.run(command, capture_output=True, text=True, check=True) for command in commands]
    return [speed_of(process.stdout) for process in done]


def ours(engine: Engine, ids: tuple[int, ...], new: int) -> list[float]:
    """Run llmtrack: the first new token ends the prefill, the others are decoded."""
    trace, _ = trace_generate(engine, GenerateRequest((ids,), new + 1))
    stamps = trace.stamps
    return [len(ids) / (stamps[0] - trace.start), new / (stamps[-1] - stamps[0])]


def compare(
    binary: Path, file: Path, threads: int, prompt: int, new: int, rounds: int, width: float
) -> dict[str, Pairs]:
    """Measure both in turn, until the intervals are narrower than `width` or the rounds are used up."""
    engine = load_engine(str(file), backend="llamacpp", device="cpu", threads=threads)
    text = engine.encode("The harbour wakes before the town does. ")
    ids = tuple((text * prompt)[:prompt])
    commands = bench_arguments(binary, file, threads, prompt, new)
    ours(engine, ids, new)
    pairs_of = {phase: Pairs() for phase in PHASES}
    for number in range(rounds):
        speeds: dict[str, list[float]] = {}
        for who in ("theirs", "ours") if number % 2 else ("ours", "theirs"):
            speeds[who] = theirs(commands) if who == "theirs" else ours(engine, ids, new)
        for phase, other, own in zip(PHASES, speeds["theirs"], speeds["ours"], strict=True):
            pairs_of[phase].theirs.append(other)
            pairs_of[phase].ours.append(own)
        if number + 1 >= LEAST_ROUNDS and all(_narrow(pairs, width) for pairs in pairs_of.values()):
            break
    engine.close()
    return pairs_of


def _narrow(pairs: Pairs, width: float) -> bool:
    low, high = pairs.interval
    return high - low <= width


@click.command(help=__doc__)
@click.option("--binary", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True)
@click.option("--model", default="packaged:smollm2", show_default=True, help="A GGUF file, or packaged:NAME.")
@click.option("--threads", default="1,2", show_default=True)
@click.option("--prompt", type=click.IntRange(min=2), default=256, show_default=True)
@click.option("--new-tokens", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--rounds", type=click.IntRange(min=LEAST_ROUNDS), default=40, show_default=True, help="At most.")
@click.option(
    "--width", type=float, default=0.05, show_default=True, help="Width of an interval that is narrow enough."
)
def main(binary: Path, model: str, threads: str, prompt: int, new_tokens: int, rounds: int, width: float) -> None:
    """Compare, and print."""
    file: Any = identify_model(model, as_gguf=True).gguf
    if file is None:
        raise click.UsageError(f"{model} is not a GGUF file")
    for count in map(int, threads.split(",")):
        for phase, pairs in compare(binary, file, count, prompt, new_tokens, rounds, width).items():
            low, high = pairs.interval
            print(
                f"{file.name}, {count} threads, {phase}: llama-bench {median(pairs.theirs):.1f} tok/s, "
                f"llmtrack {median(pairs.ours):.1f}, ratio {median(pairs.ratios):.3f} [{low:.3f}, {high:.3f}], "
                f"{len(pairs.ratios)} rounds, load {os.getloadavg()[0]:.1f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
