"""Scoring 100,000 tokens once, against lm-evaluation-harness: loss and peak memory, which do not depend on other load.

Speed is compared on fewer tokens, in turn and several times (`benchmarks.lm_eval`); here all programs run concurrently,
on one thread each.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.lm_eval import CONTEXT, PEER, Case, arms, comparison_rows, small_cases, text_of
from benchmarks.models import smollm2
from benchmarks.peers import why_unavailable
from benchmarks.results import Findings, benchmark

TOKENS = 100_000
CONCURRENT = 2


def measure(small: bool) -> Findings:
    """Score one text with each program."""
    if unavailable := why_unavailable(PEER):
        return Findings(left_out=(unavailable,))
    case = small_cases()[0] if small else Case("SmolLM2", smollm2(), TOKENS, CONTEXT, (1,))
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "text.txt")
        file.write_text(text_of(case.folder, case.tokens), encoding="utf-8")
        with arms(case, file, (PEER,)) as workers, ThreadPoolExecutor(CONCURRENT) as pool:
            answers = pool.map(lambda worker: worker.ask("1"), workers.values())
            samples = {
                name: {figure: [value] for figure, value in answer.items()}
                for name, answer in zip(workers, answers, strict=True)
            }
    (exact,) = {figures["tokens"][0] for figures in samples.values()}
    where = f"{case.name}, {exact:,.0f} tokens, context {case.context:,}"
    rows = comparison_rows(samples, where, (PEER,), case.memory)
    return Findings(tuple(row for row in rows if row.figure != "tokens/s"))


main = benchmark("Scoring a long text")(measure)

if __name__ == "__main__":
    main()
