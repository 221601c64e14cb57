"""Does llmtrack report the time that passed? Against a hand-written loop that times the same `generate` itself."""

from __future__ import annotations

from functools import partial
from itertools import cycle, islice

from benchmarks import by_hand
from benchmarks.results import Findings, Goal, benchmark, narrow, rounds, row
from llmtrack import load_engine
from llmtrack.engine import GenerateRequest
from llmtrack.engines.torch.pytorch import TorchEngine, threads_set
from llmtrack.measure.formulas import derive
from llmtrack.measure.timing import trace_generate

FIDELITY = Goal(0.99, 1.01, width=0.01)
UNITS = {"total": "s", "time to first token": "ms", "inter-token latency": "ms"}
TEXT = "The harbour wakes before the town does: boats come in, and the gulls know it."
LEAST_ROUNDS, MOST_ROUNDS, SECONDS = 40, 3000, 780
"""Minimum and maximum rounds, and the time after which no further one begins; calls are short, for many pairs per minute."""

PROMPT, NEW, THREADS = 16, 4, 1
"""Shape of a call. One thread is disturbed least: with two, both wait if another program occupies a core."""


def measure(small: bool) -> Findings:
    """Time both on one loaded model, in turn, until the intervals are narrow."""
    engine = load_engine("synthetic:tiny" if small else "packaged:smollm2", device="cpu")
    assert isinstance(engine, TorchEngine)
    ids = tuple(islice(cycle(engine.encode(TEXT)), PROMPT))
    request = GenerateRequest((ids,), NEW)

    def plain() -> dict[str, float]:
        return by_hand.measure(engine.model, list(ids), NEW, engine.tokenizer.eos_token_id)

    def ours() -> dict[str, float]:
        derived = derive(trace_generate(engine, request)[0])
        values = (derived["total_latency_s"], derived["time_to_first_token_ms"], derived["inter_token_latency_ms"])
        return dict(zip(UNITS, values, strict=True))

    with threads_set(THREADS):
        plain()
        ours()
        enough = partial(narrow, ours="ours", theirs="plain", width=FIDELITY.width, least=LEAST_ROUNDS)
        samples = rounds({"ours": ours, "plain": plain}, 2 if small else MOST_ROUNDS, enough, SECONDS)
    pairs = len(samples["ours"]["total"])
    where = f"{engine.info.model_id}, float32, {PROMPT} + {NEW} tokens, threads: {THREADS}, {pairs} pairs"
    return Findings(
        tuple(
            row(
                figure,
                unit,
                samples["ours"][figure],
                samples["plain"][figure],
                where=where,
                peer="by hand",
                goal=FIDELITY,
            )
            for figure, unit in UNITS.items()
        )
    )


main = benchmark("A plain loop")(measure)

if __name__ == "__main__":
    main()
