"""What do 4 bits cost a model that had full precision? Each recipe and block size against float32, with a goal of 2 %.

    python -m benchmarks.four_bits                            # trains a small model first, by the training experiment
    python -m benchmarks.four_bits --model FOLDER --text held-out.jsonl

Without a model, one is trained from scratch on the source code of Python's own modules (on a GPU if available). A tenth
of the modules is held out: one half is the calibration text, the other the evaluation text. With a model, `--text` names
text that it was not trained on, which is split in the same way.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import click

from benchmarks.results import Findings, Goal, Row, benchmark, estimate
from llmtrack.engine import Engine
from llmtrack.engines.registry import load_variant
from llmtrack.errors import ScenarioError
from llmtrack.quality.corpora import load_corpus
from llmtrack.quality.drift import Drift, compare_distributions
from llmtrack.quantize.recipe import find_recipe
from llmtrack.spec.scenario import Scalar, Variant
from llmtrack.train.data import split_texts

KEPT = Goal(most=2.0)
ARMS: Mapping[str, tuple[str, Mapping[str, Scalar]]] = {
    "int4-weight-only": ("int4-weight-only", {"symmetric": True}),
    "int4-weight-only, zero points": ("int4-weight-only", {"symmetric": False}),
    "int4-hqq": ("int4-hqq", {}),
    "int4-gptq": ("int4-gptq", {}),
    "int4-mixed, 1 %": ("int4-mixed", {"keep_quality": "1%"}),
    "int8-weight-only": ("int8-weight-only", {}),
}
BLOCK_SIZES = (32, 128)
WINDOW = 256
CHARACTERS = 1000
"""Characters per separately scored chunk: most have fewer tokens than `WINDOW`."""


@dataclass(frozen=True)
class Subject:
    """The model to quantize, the evaluation texts, and the calibration file."""

    model: str
    texts: tuple[str, ...]
    calibration: Path


def write_corpus(path: Path, texts: Sequence[str]) -> Path:
    """Write a corpus."""
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return path


def sources() -> Iterator[str]:
    """Yield the source code of the standard library's modules."""
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        if len(text) > CHARACTERS and text.isascii():
            yield text


def train(folder: Path, corpus: Path, steps: int) -> str:
    """Train a small model by the training experiment; return the folder of its newest checkpoint."""
    subprocess.run(
        [
            *(sys.executable, "-m", "experiments.training", "--log-checkpoint", "none"),
            *("--corpus", str(corpus), "--steps", str(steps), "--eval-every", str(steps)),
            *("--validation-tokens", "4096", "--sample-tokens", "0"),
            *("--output", str(folder), "--tracking-uri", f"sqlite:///{folder}.db"),
        ],
        check=True,
        stdout=sys.stderr,
    )
    return str(max(folder.glob("checkpoint-*")))


def chunks(texts: Sequence[str], characters: int = CHARACTERS) -> tuple[str, ...]:
    """Cut texts at line ends into chunks of about so many characters, which are scored separately."""
    complete: list[str] = []
    for text in texts:
        chunk = ""
        for line in text.splitlines(keepends=True):
            chunk += line
            if len(chunk) >= characters:
                complete.append(chunk)
                chunk = ""
    return tuple(complete)


def rows_of(where: str, drift: Drift, engine: Engine) -> tuple[Row, ...]:
    """Return the table rows of one quantized model."""
    low, high = drift.ratio_interval
    change, ends = 100 * (drift.perplexity_ratio - 1), (100 * (low - 1), 100 * (high - 1))
    size = (engine.info.file_size_bytes or engine.info.model_size_bytes) / 2**20
    return (
        estimate("perplexity more than float32's", "%", change, ends, where=where, goal=KEPT),
        estimate("KL divergence from float32", "nats", drift.kl_divergence, drift.kl_interval, where=where),
        estimate("top-1 agreement with float32", "%", 100 * drift.top1_agreement, where=where),
        estimate("file", "MiB", size, where=where),
    )


def compare(subject: Subject, tokens: int, block_sizes: Sequence[int], arms: Sequence[str]) -> Findings:
    """Measure each recipe and block size."""
    reference = load_variant(Variant(subject.model))
    texts = chunks(subject.texts)
    rows: list[Row] = []
    refused: list[str] = []
    notes: list[str] = []
    for arm, block_size in product(arms, block_sizes):
        name, options = ARMS[arm]
        where = f"{arm}, blocks of {block_size}"
        all_options: dict[str, Scalar] = {**options, "block_size": block_size}
        if find_recipe("onnx", name).calibrated:
            all_options["calibration"] = str(subject.calibration)
        variant = Variant(subject.model, backend="onnx", quantization=name, options=tuple(sorted(all_options.items())))
        try:
            engine = load_variant(variant)
            drift = compare_distributions(
                engine, reference, texts, max_length=WINDOW, bos_rule="model", max_tokens=tokens
            )
        except ScenarioError as error:
            refused.append(f"{where}: {error}")
            continue
        rows += rows_of(where, drift, engine)
        if left_out := engine.info.facts.get("left_out_layers"):
            notes.append(f"{where}: {left_out} of {engine.info.facts['linear_layers']} layers got 8 bits.")
        low, high = drift.ratio_interval
        click.echo(
            f"{where}: perplexity {drift.perplexity_ratio - 1:+.2%} ({low - 1:+.2%} to {high - 1:+.2%}), "
            f"KL {drift.kl_divergence:.4f}, top-1 {drift.top1_agreement:.1%}",
            err=True,
        )
    if rows:
        notes.insert(0, f"Judged on {drift.tokens} tokens of text that the model was not trained on.")
    return Findings(tuple(rows), tuple(refused), tuple(notes))


@benchmark(
    "What 4 bits cost a model that had full precision",
    click.option("--model", help="Folder or name of a model; without one, it is trained."),
    click.option("--text", default="builtin", show_default=True, help="With --model: text that it was not trained on."),
)
def main(small: bool, model: str | None, text: str) -> Findings:
    """Compare the recipes."""
    settings = (512, (32,), ("int4-weight-only", "int4-gptq")) if small else (16_384, BLOCK_SIZES, tuple(ARMS))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if model is None:
            texts = list(sources())
            model = train(folder / "model", write_corpus(folder / "sources.jsonl", texts), 4 if small else 400)
            held_out = split_texts(texts, 0.1).validation
        else:
            held_out = load_corpus(text).texts
        half = len(held_out) // 2
        calibration = write_corpus(folder / "calibration.jsonl", held_out[half:])
        return compare(Subject(model, tuple(held_out[:half]), calibration), *settings)


if __name__ == "__main__":
    main()
