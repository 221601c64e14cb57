"""Compare the `rolling` protocol with lm-evaluation-harness' `loglikelihood_rolling` on the same weights.

Run: `pip install lm_eval`, then `python -m benchmarks.lm_eval_perplexity --model packaged:smollm2`.

The conventions are the same for `bos_rule=model` and a stride of `max_length`: BOS (or EOS) first, then windows that
share one token. Both read the texts of `builtin` as one stream with the same loaded model and tokenizer, so a
difference can only come from the windows, the padding or the arithmetic.
"""

from __future__ import annotations

import click

from llmtrack.engines import pytorch
from llmtrack.quality.corpora import load_corpus
from llmtrack.quality.perplexity import SEPARATOR, score_rolling
from llmtrack.scenario import DEFAULT_MODEL, Variant

TOLERANCE = 1e-4


def lm_eval_nats(engine: pytorch.TorchEngine, text: str, max_length: int, batch_size: int) -> float:
    """Return the summed negative log-likelihood of a text as lm-evaluation-harness computes it."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    harness = HFLM(
        pretrained=engine.model,
        tokenizer=engine.tokenizer,
        max_length=max_length,
        batch_size=batch_size,
        device=engine.info.device,
    )
    request = Instance(request_type="loglikelihood_rolling", doc={}, arguments=(text,), idx=0)
    return -float(harness.loglikelihood_rolling([request], disable_tqdm=True)[0])


@click.command(help=__doc__)
@click.option("--model", default=DEFAULT_MODEL, show_default=True)
@click.option("--corpus", default="builtin", show_default=True)
@click.option("--max-lengths", default="128,512", show_default=True, help="Comma list of window lengths.")
@click.option("--batch-size", default=4, show_default=True)
def main(model: str, corpus: str, max_lengths: str, batch_size: int) -> None:
    """Print both losses and their ratio; exit with 1 where they differ by more than 1e-4."""
    engine = pytorch.load(Variant(model))
    texts = load_corpus(corpus).texts
    print(
        f"{engine.info.model_id}, {engine.info.dtype_label} on {engine.info.device}, corpus {corpus}, nats per token"
    )
    print("| max_length | tokens | llmtrack | lm-eval | ratio - 1 |\n| --- | --- | --- | --- | --- |")
    worst = 0.0
    for max_length in map(int, max_lengths.split(",")):
        ours = score_rolling(engine, texts, max_length=max_length, bos_rule="model", batch_size=batch_size)
        theirs = lm_eval_nats(engine, SEPARATOR.join(texts), max_length, batch_size) / ours.tokens_scored
        difference = ours.loss / theirs - 1
        worst = max(worst, abs(difference))
        print(
            f"| {max_length} | {ours.tokens_scored} | {ours.loss:.8f} | {theirs:.8f} | {difference:+.1e} |",
            flush=True,
        )
    raise SystemExit(worst > TOLERANCE)


if __name__ == "__main__":
    main()
