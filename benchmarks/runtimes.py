"""Are our ONNX graphs as fast as ONNX Runtime GenAI's, and faster than PyTorch by the goals? And is GenAI timed correctly?

Every engine is loaded again in each round: one load of a graph decodes up to a tenth faster than another load of the same
(docs/backends.md). Rounds on one load would repeat that bias, and the interval would hide it.
"""

from __future__ import annotations

import time
from functools import partial
from importlib import import_module
from itertools import cycle, islice
from typing import Any

from benchmarks.results import SETTLE_S, Findings, Goal, Row, benchmark, rounds, row
from llmtrack import load_engine
from llmtrack.engine import Engine, GenerateRequest
from llmtrack.host.packages import available
from llmtrack.measure.timing import trace_generate

TEXT = "The harbour wakes before the town does: boats come in, and the gulls know it."
THREADS = (1, 2)
ROUNDS = 5
FLOAT, INT8, INT4 = "torch", "onnx/int8-weight-only", "onnx/int4-weight-only"
INT4_HEAD = f"{INT4} head_bits=4"
FASTER_PREFILL = ("onnx/int8-dynamic", "onnx/int8-mixed", "onnx/int8-per-token")
# GenAI also stores the head in as many bits as everything else.
PEERS = {INT8: "genai/int8", INT4: "genai/int4", INT4_HEAD: "genai/int4"}
OWN = "its own definition"
LEVEL, FIDELITY = Goal(least=1.0), Goal(0.95, 1.05)
# Speed over PyTorch in float32 at two threads; docs/backends.md has the cost in perplexity.
DECODE = {INT8: Goal(least=6.5), INT4: Goal(least=8.6)}
PREFILL = {
    INT8: Goal(least=2.0),
    "onnx/int8-dynamic": Goal(least=2.0),
    "onnx/int8-mixed": Goal(least=3.5),
    "onnx/int8-per-token": Goal(least=3.5),
}
SPEEDS = ("prefill", "decode")


def measure(small: bool) -> Findings:
    """Time every engine in turn, at one thread and at two."""
    rows: list[Row] = []
    peers = available("genai") and not small
    for threads in THREADS:
        rows += _rows(threads, small, peers)
    reason = "a trial does not convert a model" if small else "it is not installed"
    return Findings(tuple(rows), left_out=() if peers else (f"ONNX Runtime GenAI: {reason}",))


def _rows(threads: int, small: bool, peers: bool) -> list[Row]:
    model, prompt, new, count = ("synthetic:tiny", 16, 4, 2) if small else ("packaged:smollm2", 256, 32, ROUNDS)
    theirs = dict.fromkeys(PEERS.values() if peers else ())
    labels = [FLOAT, INT8, INT4, INT4_HEAD, *(() if small else FASTER_PREFILL), *theirs]
    settle = 0.0 if small else SETTLE_S

    def arm(label: str) -> dict[str, float]:
        engine = _engine(model, label, threads)
        ids = tuple(islice(cycle(engine.encode(TEXT)), prompt))
        _ours(engine, ids, 2)
        time.sleep(settle)
        figures = _ours(engine, ids, new)
        if label in theirs:
            time.sleep(settle)
            figures |= {f"{speed}, {OWN}": value for speed, value in _theirs(engine, ids, new).items()}
        engine.close()
        return figures

    samples = rounds({label: partial(arm, label) for label in labels}, count, settle=settle)
    where = f"{model}, {prompt} + {new} tokens, {threads} threads"

    def against(label: str, speed: str, peer: str, goal: Goal | None, defined: str = "") -> Row:
        ours, theirs = samples[label][speed], samples[peer][speed + defined]
        return row(f"{label}: {speed}", "tok/s", ours, theirs, where=where, peer=peer + defined, goal=goal)

    rows = [
        against(label, speed, FLOAT, goals.get(label) if threads == max(THREADS) else None)
        for label in labels
        for speed, goals in zip(SPEEDS, (PREFILL, DECODE), strict=True)
        if label.startswith("onnx/")
    ]
    for own, peer in PEERS.items() if peers else ():
        rows += [against(own, speed, peer, LEVEL) for speed in SPEEDS]
    for peer in theirs:
        rows += [against(peer, speed, peer, FIDELITY, f", {OWN}") for speed in SPEEDS]
    return rows


def _engine(model: str, label: str, threads: int) -> Engine:
    name, *pairs = label.split()
    backend, _, recipe = name.partition("/")
    options: dict[str, Any] = {key: int(value) for key, _, value in (pair.partition("=") for pair in pairs)}
    return load_engine(model, backend=backend, device="cpu", quantization=recipe or "none", threads=threads, **options)


def _ours(engine: Engine, ids: tuple[int, ...], new: int) -> dict[str, float]:
    """Return tokens per second: the first new token ends the prefill."""
    trace, _ = trace_generate(engine, GenerateRequest((ids,), new))
    stamps = trace.stamps
    prefill, decode = len(ids) / (stamps[0] - trace.start), (new - 1) / (stamps[-1] - stamps[0])
    return dict(zip(SPEEDS, (prefill, decode), strict=True))


def _theirs(engine: Any, ids: tuple[int, ...], new: int) -> dict[str, float]:
    """Time as GenAI's benchmark script does: the prompt and the first token, then each token separately."""
    import numpy as np

    genai = import_module("onnxruntime_genai")
    params = genai.GeneratorParams(engine._model)
    length = len(ids) + new
    params.set_search_options(do_sample=False, max_length=length, min_length=length, batch_size=1)
    generator = genai.Generator(engine._model, params)
    prompt = np.array([ids], dtype=np.int32)
    start = time.perf_counter()
    generator.append_tokens(prompt)
    generator.generate_next_token()
    prefill = time.perf_counter() - start
    decode = 0.0
    for _ in range(new - 1):
        start = time.perf_counter()
        generator.generate_next_token()
        decode += time.perf_counter() - start
    return dict(zip(SPEEDS, (len(ids) / prefill, (new - 1) / decode), strict=True))


main = benchmark("Runtimes on a CPU")(measure)

if __name__ == "__main__":
    main()
