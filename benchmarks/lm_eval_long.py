"""Scoring 100,000 tokens once, against lm-evaluation-harness: loss and peak memory, which do not depend on what else is running.

Speed is compared on fewer tokens, in turn and several times (`benchmarks.lm_eval`): here all are scored at once, on a thread each.
"""

from __future__ import annotations

import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.lm_eval import CONTEXT, PEER, Case, arms, compared, small_cases, text_of
from benchmarks.models import smollm2
from benchmarks.peers import environment, version
from benchmarks.results import Found, benchmark
from llmtrack.errors import LlmtrackError

TOKENS = 100_000
AT_ONCE = 2


def measure(small: bool) -> Found:
    """Score one text with each."""
    try:
        environment(PEER).python()
    except LlmtrackError as error:
        return Found(left_out=(f"{version(PEER)}: {error}",))
    case = small_cases()[0] if small else Case("SmolLM2", smollm2(), TOKENS, CONTEXT, (1,))
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch, "text.txt")
        file.write_text(text_of(case.folder, case.tokens), encoding="utf-8")
        with arms(case, file, (PEER,)) as workers, ThreadPoolExecutor(AT_ONCE) as pool:
            answers = pool.map(lambda worker: worker.ask("1"), workers.values())
            samples = {
                name: {figure: [value] for figure, value in answer.items()}
                for name, answer in zip(workers, answers, strict=True)
            }
    (exact,) = {figures["tokens"][0] for figures in samples.values()}
    where = f"{case.name}, {exact:,.0f} tokens, context {case.context:,}"
    rows = compared(samples, where, (PEER,), case.memory)
    return Found(tuple(row for row in rows if row.what != "tokens/s"))


main = benchmark("Scoring a long text")(measure)

if __name__ == "__main__":
    main()
