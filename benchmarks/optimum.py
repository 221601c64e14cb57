"""Generating, against optimum-benchmark: latencies at equal shapes, and the wall time of the whole tool."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.models import smollm2, tiny
from benchmarks.peers import PeerError, environment, version, why_unavailable
from benchmarks.results import Findings, Row, Samples, benchmark, rounds, row
from llmtrack import runs
from llmtrack.convert.environment import isolated_variables
from llmtrack.errors import LlmtrackError
from llmtrack.host.packages import error_line
from llmtrack.models.load import identify_model
from llmtrack.quantize.build import onnx_folder
from llmtrack.spec.scenario import Variant
from llmtrack.tracking.read.artifacts import raw_samples

PEER, ITS_ONNXRUNTIME = "optimum-benchmark", "import optimum_benchmark.backends.onnxruntime.backend"
MODEL = "packaged:smollm2"
"""The exported model; named so that an existing export is reused."""

ROOT = Path(__file__).parents[1]
TEXT = "The harbour wakes before the town does: boats come in, and the gulls know it."

CONFIG = """\
defaults:
  - benchmark
  - scenario: inference
  - launcher: {launcher}
  - backend: {backend}
  - _self_
name: side_by_side
backend:
  device: cpu
  model: {folder}
  task: text-generation
  {precision}
  inter_op_num_threads: {threads}
  intra_op_num_threads: {threads}
scenario:
  input_shapes: {{batch_size: 1, sequence_length: {prompt}}}
  generate_kwargs: {{max_new_tokens: {new}, min_new_tokens: {new}}}
  iterations: {repeats}
  duration: 0
  warmup_runs: 1
"""
"""Configuration of optimum-benchmark; threads are set twice, since its pytorch backend swaps the two."""

ROUNDS, SECONDS = 4, 200
"""Number of rounds of both tools, and the time after which no further one begins."""

UNITS = {
    "total latency": "s",
    "time to first token": "ms",
    "inter-token latency": "ms",
    "wall time": "s",
    "wall time per measured second": "",
}


@dataclass(frozen=True)
class Shape:
    """Tokens of the prompt, new tokens, counted calls."""

    prompt: int
    new: int
    repeats: int


def measure(small: bool) -> Findings:
    """Run both tools as their users do, in turn."""
    if unavailable := why_unavailable(PEER):
        return Findings(left_out=(unavailable,))
    # Its launcher occupies a core.
    shape, threads = Shape(16, 4, 2) if small else Shape(128, 16, 3), 1
    folder = tiny() if small else smollm2()
    left_out: list[str] = []
    with tempfile.TemporaryDirectory() as scratch:
        arms: dict[str, Callable[[], dict[str, float]]] = {
            "torch": lambda: ours(folder, Path(scratch), shape, threads, "torch"),
            "torch, process": lambda: theirs(folder, shape, threads, "pytorch", "process"),
        }
        if not small:
            try:
                _run([str(environment(PEER).python()), "-c", ITS_ONNXRUNTIME], Path(scratch), isolated_variables())
                arms["onnx"] = lambda: ours(folder, Path(scratch), shape, threads, "onnx")
                arms["onnx, process"] = lambda: theirs(_exported(), shape, threads, "onnxruntime", "process")
            except LlmtrackError as error:
                left_out.append(f"{version(PEER)}, backend onnxruntime: {error}")
        samples = rounds(arms, 1 if small else ROUNDS, seconds=SECONDS)
    lines = CONFIG.count("\n") + 1
    rows = [
        row(
            "lines to write",
            "",
            [1.0],
            [float(lines)],
            peer=version(PEER),
            where="a command; a file and a command",
        )
    ]
    return Findings((*_compared(samples, shape, threads), *rows), tuple(left_out))


def _compared(samples: Samples, shape: Shape, threads: int) -> Iterator[Row]:
    for name, figures in samples.items():
        backend, _, launcher = name.partition(", ")
        if not launcher:
            continue
        for figure, unit in UNITS.items():
            where = f"{backend}, threads: {threads}, {shape.prompt} + {shape.new} tokens"
            peer = f"{version(PEER)}, launcher {launcher}"
            yield row(figure, unit, samples[backend][figure], figures[figure], where=where, peer=peer)


def ours(folder: Path, scratch: Path, shape: Shape, threads: int, backend: str) -> dict[str, float]:
    """Run the experiment `baseline` as a user does; read the tracked metrics.

    Raises:
        PeerError: it failed.
    """
    uri = f"sqlite:///{scratch / 'mlflow.db'}"
    settings: Mapping[str, object] = {
        "model": MODEL if backend == "onnx" else folder,
        "backend": backend,
        "device": "cpu",
        "threads": threads,
        "prompt": _prompt(folder, shape.prompt),
        "max-new-tokens": shape.new,
        "min-repeats": shape.repeats,
        "min-seconds": 0,
        "tracking-uri": uri,
        "experiment-name": "side-by-side",
    }
    options = [part for key, value in settings.items() for part in (f"--{key}", str(value))]
    start = time.perf_counter()
    _run([sys.executable, "-m", "experiments.baseline", *options], ROOT, dict(os.environ))
    wall = time.perf_counter() - start
    run_id = runs("side-by-side", tracking_uri=uri).iloc[0]["run_id"]
    samples = raw_samples(run_id, uri)
    total, first, gap = (
        samples[name] for name in ("total_latency_s", "time_to_first_token_ms", "inter_token_latency_ms")
    )
    return figures_of(total, first, gap, wall)


def theirs(folder: Path, shape: Shape, threads: int, backend: str, launcher: str) -> dict[str, float]:
    """Run optimum-benchmark as a user does; read its report.

    Raises:
        PeerError: it failed.
    """
    with tempfile.TemporaryDirectory() as scratch:
        config = configuration(folder, shape, threads, backend, launcher)
        Path(scratch, "config.yaml").write_text(config, encoding="utf-8")
        command = [
            str(environment(PEER).python().with_name(PEER)),
            "--config-dir",
            scratch,
            "--config-name",
            "config",
        ]
        start = time.perf_counter()
        _run(command, Path(scratch), {**isolated_variables(), "HYDRA_FULL_ERROR": "1"})
        wall = time.perf_counter() - start
        report: dict[str, Any] = json.loads(Path(scratch, "benchmark_report.json").read_text(encoding="utf-8"))
    total, prefill, decode = (report[part]["latency"]["values"] for part in ("generate", "prefill", "decode"))
    gaps = [1000 * seconds / (shape.new - 1) for seconds in decode]
    return figures_of(total, [1000 * seconds for seconds in prefill], gaps, wall)


def configuration(folder: Path, shape: Shape, threads: int, backend: str, launcher: str) -> str:
    """Return the configuration file of optimum-benchmark."""
    return CONFIG.format(
        folder=folder,
        launcher=launcher,
        backend=backend,
        precision="torch_dtype: float32" if backend == "pytorch" else "export: false",
        threads=threads,
        prompt=shape.prompt,
        new=shape.new,
        repeats=shape.repeats,
    )


def figures_of(total: Sequence[float], first: Sequence[float], gap: Sequence[float], wall: float) -> dict[str, float]:
    """Return medians over the counted calls, and the wall time of the whole tool: total, and per second of the calls."""
    return dict(zip(UNITS, (median(total), median(first), median(gap), wall, wall / sum(total)), strict=True))


def _run(command: list[str], folder: Path, environment: dict[str, str]) -> None:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, errors="replace")
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        # Drop local paths.
        raise PeerError(re.sub(r" \(/[^)]*\)", "", error_line(lines[-1] if lines else "")))


def _prompt(folder: Path, tokens: int) -> str:
    """Return a text of about so many tokens."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids = tokenizer(f"{TEXT} ", add_special_tokens=False).input_ids
    return str(tokenizer.decode(list(islice(cycle(ids), tokens))))


def _exported() -> Path:
    """Return the folder of the graph exported by llmtrack."""
    return onnx_folder(Variant(MODEL, backend="onnx"), identify_model(MODEL))


main = benchmark("Generating, by the whole tool")(measure)

if __name__ == "__main__":
    main()
