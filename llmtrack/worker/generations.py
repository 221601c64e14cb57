"""Choose what timed calls generated: each different output once, from the most typical repeat."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import chain
from statistics import median

from llmtrack.engine import Engine
from llmtrack.host.formatting import cut
from llmtrack.measure.formulas import GenerationTrace
from llmtrack.measure.timing import Clock, Timing
from llmtrack.spec.outcome import MOST_GENERATIONS, Generation

_LONGEST = 10_000
"""Maximum characters of a prompt or an output."""


def generations_of(
    engine: Engine, prompts: Sequence[str], ids: Sequence[Sequence[int]], timing: Timing, clock: Clock
) -> tuple[Generation, ...]:
    """Return each different output of each different prompt, those of the repeat with the median duration first.

    Greedy decoding repeats itself, so these are usually one per prompt.

    Args:
        engine: decodes the tokens.
        prompts: texts as asked, one per row.
        ids: their tokens as read.
        timing: the timed calls.
        clock: the clock that they were timed with.
    """
    to_epoch = time.time() - clock()
    durations = [sum(call.end - call.start for call in calls) for calls in timing.calls]
    typical = median(durations)
    # By prompt and output: the row, the repeat and the call of the first one.
    chosen: dict[tuple[tuple[int, ...], tuple[int, ...]], tuple[int, int, GenerationTrace]] = {}
    for repeat in sorted(range(len(durations)), key=lambda number: abs(durations[number] - typical)):
        of_rows = chain.from_iterable([call] * len(call.new_tokens) for call in timing.calls[repeat])
        for row, (new_ids, call) in enumerate(zip(timing.outputs[repeat], of_rows, strict=True)):
            chosen.setdefault((tuple(ids[row]), new_ids), (row, repeat, call))
    return tuple(
        Generation(
            prompt=_cut(_as_read(engine, prompts[row], ids[row])),
            text=_cut(engine.decode(new_ids)),
            prompt_tokens=len(ids[row]),
            new_tokens=len(new_ids),
            started_at=to_epoch + call.start,
            seconds=call.end - call.start,
            first_token_s=call.stamps[0] - call.start if call.stamps else None,
            rows=len(call.new_tokens),
            repeat=repeat + 1,
        )
        for (_, new_ids), (row, repeat, call) in list(chosen.items())[:MOST_GENERATIONS]
    )


def _as_read(engine: Engine, text: str, ids: Sequence[int]) -> str:
    """Return the text as asked, unless its tokens were repeated, cut or replaced."""
    return text if tuple(engine.encode(text)) == tuple(ids) else engine.decode(ids)


def _cut(text: str) -> str:
    return cut(text, _LONGEST, " ...")
