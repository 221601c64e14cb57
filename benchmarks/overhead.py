"""How far is llmtrack's `total_latency_s` from a plain hand-written `generate` loop on the same model?

Both are timed in one process on one loaded model, in turn, so that drift falls on both alike:

    python -m benchmarks.overhead --model packaged:smollm2 --pairs 15

Prints the two medians and the ratio of each pair with a bootstrap 95 % interval of the median; 1 is no overhead.
"""

from __future__ import annotations

import time

import click
import torch

from experiments.prompts import DEFAULT_PROMPT
from llmtrack import load_engine
from llmtrack.engine import GenerateRequest
from llmtrack.measure.statistics import bootstrap_median_ci, summarize
from llmtrack.measure.timing import trace_generate


def plain_generate(model: torch.nn.Module, ids: torch.Tensor, new_tokens: int, pad_id: int) -> float:
    """Return the seconds of one `generate` call, written as anyone would write it."""
    start = time.perf_counter()
    with torch.inference_mode():
        model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            pad_token_id=pad_id,
        )
    return time.perf_counter() - start


@click.command(help=__doc__)
@click.option("--model", default="packaged:smollm2", show_default=True)
@click.option("--new-tokens", type=click.IntRange(min=1), default=32, show_default=True)
@click.option("--pairs", type=click.IntRange(min=3), default=15, show_default=True)
def main(model: str, new_tokens: int, pairs: int) -> None:
    """Time both, in turn, and print the ratio."""
    engine = load_engine(model, device="cpu")
    prompt = tuple(engine.encode(DEFAULT_PROMPT))
    request = GenerateRequest((prompt,), new_tokens)
    ids = torch.tensor([prompt])
    pad_id = engine.tokenizer.eos_token_id
    plain_generate(engine.model, ids, new_tokens, pad_id)
    trace_generate(engine, request)
    plain, ours = [], []
    for pair in range(pairs):
        # The order alternates: whatever the first call of a pair leaves in the caches is shared out.
        for which in (0, 1) if pair % 2 else (1, 0):
            if which:
                trace, _ = trace_generate(engine, request)
                ours.append(trace.end - trace.start)
            else:
                plain.append(plain_generate(engine.model, ids, new_tokens, pad_id))
    ratios = [mine / theirs for mine, theirs in zip(ours, plain, strict=True)]
    low, high = bootstrap_median_ci(ratios)
    print(
        f"{engine.info.model_id}, {len(prompt)} prompt tokens, {new_tokens} new, {pairs} pairs, {torch.get_num_threads()} threads"
    )
    for name, seconds in (("plain generate", plain), ("llmtrack", ours)):
        found = summarize(seconds)
        print(f"{name:<16}{found.median:.4f} s  [{found.ci_low:.4f}, {found.ci_high:.4f}]  sd {found.sd:.4f}")
    print(f"{'ratio of a pair':<16}{summarize(ratios).median:.4f}    [{low:.4f}, {high:.4f}]")


if __name__ == "__main__":
    main()
