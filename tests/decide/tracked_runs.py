"""Timed and scored runs of one workload, made by hand."""

from __future__ import annotations

from tests.report.frames import interval, run


def timed(name, speed, **values):
    return run(name, tokens_per_sec=speed, workload_id="w", environment_id="e", **values)


def scored(name, perplexity, **values):
    convention = {"corpus_digest": "c", "protocol": "documents", "max_length": 512, "bos_rule": "tokenizer"}
    return run(name, perplexity=perplexity, workload_id="q", **{"environment_id": "e", **convention, **values})


def repeated(name, speed, perplexity=None, n=8, share=0.01, **values):
    """A run timed n times, whose interval reaches that share to both sides."""
    spread = interval("tokens_per_sec", speed, (1 - share) * speed, (1 + share) * speed, n)
    return timed(name, speed, quantization=name, perplexity=perplexity) | spread | values
