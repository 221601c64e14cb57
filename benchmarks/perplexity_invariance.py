"""Show that the losses of both protocols depend neither on the batch size nor on the padding side.

Run: `python -m benchmarks.perplexity_invariance --model packaged:smollm2`.
"""

from __future__ import annotations

from itertools import product

import click

from llmtrack.engines.torch import pytorch
from llmtrack.quality.corpora import load_corpus
from llmtrack.quality.perplexity import score_documents, score_rolling
from llmtrack.spec.scenario import DEFAULT_MODEL, Variant

BATCH_SIZES = (1, 3, 8)
SIDES = ("right", "left")
TOLERANCE = 1e-6


@click.command(help=__doc__)
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
@click.option("--corpus", default="builtin", show_default=True)
@click.option("--max-length", default=512, show_default=True, help="documents: tokens of a document at most.")
@click.option("--window", default=256, show_default=True, help="rolling: tokens of a window.")
@click.option("--stride", default=128, show_default=True, help="rolling: new tokens of each window.")
@click.option("--max-tokens", default=0, show_default=True, help="rolling: tokens of the stream at most; 0: all.")
def main(model: str, corpus: str, max_length: int, window: int, stride: int, max_tokens: int) -> None:
    """Print the loss of each protocol, batch size and side; exit with 1 if they differ by more than 1e-6."""
    engine = pytorch.load(Variant(model))
    texts = load_corpus(corpus).texts
    print(f"{engine.info.model_id}, {engine.info.dtype_label} on {engine.info.device}, corpus {corpus}, nats per token")
    print("| protocol | batch size | padding side | tokens | loss | stderr | perplexity |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    spread = 0.0
    for protocol in ("documents", "rolling"):
        losses = []
        for batch_size, side in product(BATCH_SIZES, SIDES):
            if protocol == "documents":
                done = score_documents(engine, texts, max_length=max_length, batch_size=batch_size, padding_side=side)
            else:
                done = score_rolling(
                    engine,
                    texts,
                    max_length=window,
                    stride=stride,
                    max_tokens=max_tokens,
                    batch_size=batch_size,
                    padding_side=side,
                )
            losses.append(done.loss)
            print(
                f"| {protocol} | {batch_size} | {side} | {done.tokens_scored} | {done.loss:.8f} | "
                f"{done.loss_stderr:.8f} | {done.perplexity:.6f} |",
                flush=True,
            )
        spread = max(spread, max(losses) / min(losses) - 1)
    print(f"largest relative difference within a protocol: {spread:.1e}")
    raise SystemExit(spread > TOLERANCE)


if __name__ == "__main__":
    main()
