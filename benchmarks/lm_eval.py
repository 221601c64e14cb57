"""Scoring a text, against lm-evaluation-harness and a hand-written loop: loss, tokens/s, memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.models import large_vocabulary, smollm2, tiny
from benchmarks.peers import SCRIPTS, Worker, program, version, why_unavailable
from benchmarks.results import Findings, Goal, Row, Samples, benchmark, rounds, row
from llmtrack.quality.corpora import load_corpus

PEER = "lm-eval"
CONTEXT, ROUNDS = 1024, 3
VOCABULARY = 128_000
PRECISIONS = ("float32", "bfloat16")
SAME = Goal(1 - 1e-4, 1 + 1e-4)
"""Allowed ratio of the losses in float32."""

GOALS: Mapping[tuple[str, str], Goal] = {
    ("float32", "loss"): SAME,
    ("float32", "tokens/s"): Goal(least=1),
    ("bfloat16", "tokens/s"): Goal(least=1.7),
}
MEMORY = Goal(most=0.5)
"""Allowed ratio of the memory above the loaded model, with the large vocabulary."""

UNITS = {"tokens/s": "", "loss": "nats", "MiB above the model": "MiB"}


@dataclass(frozen=True)
class Case:
    """A model, the tokens of the text and of a window, the numbers of threads, and an optional memory goal."""

    name: str
    folder: Path
    tokens: int
    context: int
    threads: tuple[int, ...]
    memory: Goal | None = None


def full_cases() -> list[Case]:
    """Return SmolLM2, on one thread and on two, and a model with a large vocabulary."""
    wide = large_vocabulary(smollm2(), VOCABULARY, 576, 6)
    return [
        Case("SmolLM2", smollm2(), 3 * CONTEXT, CONTEXT, (1, 2)),
        Case(f"vocabulary of {VOCABULARY:,}", wide, 2 * CONTEXT, CONTEXT, (2,), MEMORY),
    ]


def small_cases() -> list[Case]:
    """Return a tiny model whose vocabulary exceeds its tokenizer's."""
    return [Case("vocabulary of 2,000", large_vocabulary(tiny(), 2000, 64, 1), 96, 32, (1,), MEMORY)]


def measure(small: bool) -> Findings:
    """Score one text with every program, in turn."""
    unavailable = why_unavailable(PEER)
    peers = ("plain",) if unavailable else ("plain", PEER)
    cases = small_cases() if small else full_cases()
    rows: list[Row] = []
    for case in cases:
        with tempfile.TemporaryDirectory() as scratch:
            file = Path(scratch, "text.txt")
            file.write_text(text_of(case.folder, case.tokens), encoding="utf-8")
            with arms(case, file, peers) as workers:
                for count in case.threads:
                    samples = rounds(
                        {name: partial(worker.ask, str(count)) for name, worker in workers.items()},
                        1 if small else ROUNDS,
                    )
                    (exact,) = {figures["tokens"][0] for figures in samples.values()}
                    where = f"{case.name}, {exact:,.0f} tokens, context {case.context:,}, threads: {count}"
                    rows += comparison_rows(samples, where, peers, case.memory)
    return Findings(tuple(rows), (unavailable,) if unavailable else ())


def comparison_rows(samples: Samples, where: str, peers: Sequence[str], memory: Goal | None) -> Iterator[Row]:
    """Yield the rows of one model and number of threads: each of our precisions against each peer in float32."""
    for precision in PRECISIONS:
        ours = samples[precision]
        for peer in peers:
            for figure, unit in UNITS.items():
                goal = GOALS.get((precision, figure))
                if figure == "MiB above the model":
                    if precision != "float32":
                        continue
                    goal = memory
                yield row(
                    figure,
                    unit,
                    ours[figure],
                    samples[peer][figure],
                    where=f"{precision}, {where}",
                    peer="by hand, float32" if peer == "plain" else f"{version(peer)}, float32",
                    goal=goal,
                )


@contextmanager
def arms(case: Case, file: Path, peers: Sequence[str]) -> Iterator[dict[str, Worker]]:
    """Start a worker for each peer in float32, and for llmtrack in each precision."""
    script, workers = SCRIPTS / "score.py", dict[str, Worker]()
    try:
        for name in (*peers, *PRECISIONS):
            scorer, dtype = ("llmtrack", name) if name in PRECISIONS else (name, "float32")
            arguments = [scorer, str(case.folder), dtype, str(case.context), str(file)]
            workers[name] = Worker(program(scorer), script, arguments)
        yield workers
    finally:
        for worker in workers.values():
            worker.close()


def text_of(folder: Path, tokens: int) -> str:
    """Return the beginning of the corpus `pydoc` with at most about so many tokens."""
    from transformers import AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    ids = tokenizer("\n\n".join(load_corpus("pydoc").texts)[: 20 * tokens], add_special_tokens=False).input_ids
    return str(tokenizer.decode(ids[:tokens]))


main = benchmark("Scoring a text")(measure)

if __name__ == "__main__":
    main()
