"""What do 4 bits cost a model that had full precision? Each recipe and block size against float32, with a goal of 2 %.

    python -m benchmarks.four_bits                            # trains a small model first, by our own experiment
    python -m benchmarks.four_bits --model FOLDER --text held-out.jsonl

Without a model, one is trained from scratch on Python's help texts and judged by the part of them that was held out. With one, `--text`
names what it was not trained on.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import click

from benchmarks.results import Found, Goal, benchmark, row
from llmtrack.engine import Engine
from llmtrack.engines.registry import load_variant
from llmtrack.errors import ScenarioError
from llmtrack.quality.corpora import load_corpus
from llmtrack.quality.drift import compare_distributions
from llmtrack.quality.perplexity import score_rolling
from llmtrack.quantize.build import CALIBRATION
from llmtrack.scenario import Scalar, Variant
from llmtrack.train.split import split_texts

KEPT = Goal(most=2.0)
ARMS: Mapping[str, tuple[str, Mapping[str, Scalar]]] = {
    "int4-weight-only": ("int4-weight-only", {"symmetric": True}),
    "int4-weight-only, zero points": ("int4-weight-only", {"symmetric": False}),
    "int4-hqq": ("int4-hqq", {}),
}
BLOCK_SIZES = (32, 64, 128)
WINDOW = 256


@dataclass(frozen=True)
class Subject:
    """What is quantized, and what it is judged by."""

    model: str
    text: str


def trained(folder: Path, steps: int) -> Subject:
    """Train a small model by the training experiment, on what is not held out of Python's help texts."""
    subprocess.run(
        [
            *(sys.executable, "-m", "experiments.training", "--log-checkpoint", "none"),
            *("--corpus", CALIBRATION, "--steps", str(steps), "--eval-every", str(steps)),
            *("--output", str(folder / "model"), "--tracking-uri", f"sqlite:///{folder / 'mlflow.db'}"),
        ],
        check=True,
        stdout=sys.stderr,
    )
    sides = split_texts(load_corpus(CALIBRATION).texts, 0.1)
    held_out = folder / "held-out.jsonl"
    held_out.write_text(
        "".join(json.dumps({"text": each}) + "\n" for each in sides.validation), encoding="utf-8"
    )
    return Subject(str(max((folder / "model").glob("checkpoint-*"))), str(held_out))


def quality(engine: Engine, texts: Sequence[str], reference: Engine, tokens: int) -> dict[str, float]:
    """Return perplexity, and how far the distributions are from the reference's."""
    scored = score_rolling(
        engine, texts, max_length=WINDOW, max_tokens=tokens, bos_rule="model", batch_size=1
    )
    drift = compare_distributions(
        engine, reference, texts, max_length=WINDOW, bos_rule="model", max_tokens=tokens // 4
    )
    return {"perplexity": scored.perplexity, "kl": drift.kl_divergence, "top1": drift.top1_agreement}


def compared(subject: Subject, tokens: int, block_sizes: Sequence[int], arms: Sequence[str]) -> Found:
    """Return the figures of each recipe and block size."""
    texts = load_corpus(subject.text).texts
    reference = load_variant(Variant(subject.model))
    exact = quality(reference, texts, reference, tokens)["perplexity"]
    rows, refused = [], []
    for arm, block_size in product(arms, block_sizes):
        name, options = ARMS[arm]
        where = f"{arm}, blocks of {block_size}"
        told: dict[str, Scalar] = {**options, "block_size": block_size}
        try:
            variant = Variant(
                subject.model, backend="onnx", quantization=name, options=tuple(sorted(told.items()))
            )
            found = quality(load_variant(variant), texts, reference, tokens)
        except ScenarioError as error:
            refused.append(f"{where}: {error}")
            continue
        change = 100 * (found["perplexity"] / exact - 1)
        rows += [
            row("perplexity more than float32's", "%", [change], where=where, goal=KEPT),
            row("KL divergence from float32", "nats", [found["kl"]], where=where),
            row("top-1 agreement with float32", "", [found["top1"]], where=where),
        ]
        print(
            f"{where}: {change:+.2f} %, KL {found['kl']:.4f}, top-1 {found['top1']:.1%}",
            file=sys.stderr,
            flush=True,
        )
    return Found(tuple(rows), tuple(refused), (f"Perplexity in float32: {exact:.3f} on {tokens} tokens.",))


@benchmark(
    "What 4 bits cost a model that had full precision",
    click.option("--model", help="Folder or name of a model; without one, it is trained."),
    click.option("--text", default="builtin", show_default=True, help="With --model: what it is judged by."),
)
def main(small: bool, model: str | None, text: str) -> Found:
    """Compare the recipes."""
    how = (512, (32,), ("int4-weight-only",)) if small else (8192, BLOCK_SIZES, tuple(ARMS))
    if model:
        return compared(Subject(model, text), *how)
    with tempfile.TemporaryDirectory() as folder:
        return compared(trained(Path(folder), 20 if small else 1000), *how)


if __name__ == "__main__":
    main()
