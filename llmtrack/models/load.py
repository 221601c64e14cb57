"""Load a model and its tokenizer from the first candidate that works."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from llmtrack.errors import ModelLoadError
from llmtrack.models import gguf, hub, packaged, synthetic
from llmtrack.models.attention import slower_attention
from llmtrack.models.cache import read_manifest
from llmtrack.models.damaged import refuse_damaged
from llmtrack.models.decoder import headless, refuse_adapter, refuse_peeking
from llmtrack.models.digests import ModelDigests, model_digests, weight_files, weights_in
from llmtrack.models.disk import Weights, count_weights
from llmtrack.models.from_folder import clean_generation, load_folder
from llmtrack.models.named import PRESETS
from llmtrack.models.probed import Notes
from llmtrack.models.reasons import explained, reason_of
from llmtrack.models.source import ModelSource, missing_path, parse_candidates

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

RANDOM_WEIGHTS = "random weights: speed and memory are real, quality figures are meaningless"
SEED = 0


@dataclass(frozen=True)
class LoadedModel:
    """A model and its tokenizer, from the same source and revision.

    Attributes:
        model: in eval mode, on the device, in the dtype.
        model_id: the loaded candidate, as written.
        revision: commit of a hub model, else None.
        digests: of everything that affects its output.
        load_time_s: seconds to read weights and tokenizer, without downloading or converting.
        file_size_bytes: bytes of the weight files; None if there are none.
        facts: to be tracked.
        notes: cached answers of its probes.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    model_id: str
    revision: str | None
    digests: ModelDigests
    load_time_s: float = 0.0
    file_size_bytes: int | None = None
    facts: dict[str, str | int | float | bool] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    notes: Notes = field(default_factory=Notes)


@dataclass(frozen=True)
class ModelIdentity:
    """The model that a spec resolves to, known without loading its weights.

    Attributes:
        source: the chosen candidate.
        folder: its files; None for a synthetic one.
        revision: commit of a hub model, else None.
        digests: as in `LoadedModel`.
        gguf: the GGUF file, if requested and available; the folder then has no weights.
    """

    source: ModelSource
    folder: Path | None
    revision: str | None
    digests: ModelDigests
    warnings: tuple[str, ...] = ()
    gguf: Path | None = None

    @property
    def weights(self) -> Weights:
        """How many weights it has."""
        if self.folder is None:
            return PRESETS[self.source.location].weights
        return count_weights(weight_files(self.folder)[1])


Found = TypeVar("Found", LoadedModel, ModelIdentity)


def identify_model(
    spec: str, revision: str | None = None, device: str = "cpu", *, as_gguf: bool = False
) -> ModelIdentity:
    """Download or convert the first available candidate of a comma list, and identify its weights.

    Args:
        spec: as for `load_model`.
        revision: branch, tag or commit of a hub model.
        device: where random weights would be drawn, which affects them.
        as_gguf: leave a GGUF file unconverted, for an engine that reads it.

    Raises:
        UsageError: the spec is invalid.
        ModelLoadError: no candidate is available; the message has a line for each.
    """
    return _first(spec, lambda source: _identify(source, revision, device, as_gguf))


def _identify(source: ModelSource, revision: str | None, device: str, as_gguf: bool) -> ModelIdentity:
    if problem := missing_path(source):
        raise ModelLoadError(problem)
    ignored = _ignored(source, revision)
    if as_gguf and source.kind in ("gguf", "packaged"):
        path = packaged.gguf_file(source.location) if source.kind == "packaged" else Path(source.location)
        about = gguf.describe(path)
        return ModelIdentity(source, about, None, _digests(source, about), ignored, path)
    folder, commit = _folder_of(source, revision)
    if folder is None:
        digests = synthetic.digests(source.location, SEED, device)
        return ModelIdentity(source, None, None, digests, (*ignored, RANDOM_WEIGHTS))
    refuse_damaged(folder)
    refuse_adapter(folder)
    weights_in(folder)
    return ModelIdentity(source, folder, commit, _digests(source, folder), ignored)


def _ignored(source: ModelSource, revision: str | None) -> tuple[str, ...]:
    if not revision or source.kind == "hub":
        return ()
    return (f"revision {revision} is ignored: {source.spec} is not a hub model",)


def _digests(source: ModelSource, folder: Path) -> ModelDigests:
    found = model_digests(folder)
    if source.kind in ("gguf", "packaged"):
        return replace(found, weights=f"gguf:{read_manifest(folder)['gguf_sha256']}")
    return found


def load_model(
    spec: str, *, device: str, dtype: torch.dtype, revision: str | None = None, placed: str = ""
) -> LoadedModel:
    """Load the first loadable candidate of a comma list.

    No code of a model's source is run, and its generation settings are replaced by plain greedy ones.

    Args:
        spec: a hub id, a folder, a .gguf file, `packaged:NAME`, `synthetic:PRESET`, or a comma list of them.
        device: `cpu` or `cuda:N`.
        dtype: dtype of the weights.
        revision: branch, tag or commit of a hub model; other sources have none.
        placed: `sharded` loads this rank's shard of each layer, in an open group of processes, and `spread` whole
            layers onto all GPUs, both from a folder only; empty for a single device.

    Raises:
        UsageError: the spec is invalid.
        ModelLoadError: no candidate can be loaded; the message has a line for each.
    """
    return _first(spec, lambda source: _load(source, device, dtype, revision, placed))


def _first(spec: str, attempt: Callable[[ModelSource], Found]) -> Found:
    """Return the result of the first candidate that works, with a warning for each one skipped."""
    failed: list[str] = []
    for source in parse_candidates(spec):
        try:
            found: Found = attempt(source)
        except Exception as error:  # try the next candidate after any error
            failed.append(f"{source.spec}: {reason_of(error)}")
            continue
        return replace(found, warnings=(*(f"passed over {line}" for line in failed), *found.warnings))
    lines = "".join(f"\n  {line}" for line in failed)
    raise ModelLoadError(f"no model could be loaded, tried {len(failed)}:{lines}")


def _load(source: ModelSource, device: str, dtype: torch.dtype, revision: str | None, placed: str) -> LoadedModel:
    if problem := missing_path(source):
        raise ModelLoadError(problem)
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    warnings = list(_ignored(source, revision))
    # Downloading and converting happen once; only loading recurs on every start.
    folder, commit = _folder_of(source, revision)
    start = time.perf_counter()
    if folder is None:
        model, tokenizer = synthetic.build(source.location, device=device, dtype=dtype, seed=SEED)
        digests, weights = synthetic.digests(source.location, SEED, device), "random"
        seconds = time.perf_counter() - start
        warnings.append(RANDOM_WEIGHTS)
    else:
        model, tokenizer = load_folder(folder, device=device, dtype=dtype, placed=placed)
        seconds = time.perf_counter() - start
        digests = _digests(source, folder)
        with explained("the model that config.json describes cannot compute"):
            refuse_peeking(model, tokenizer, _notes(digests, placed))
        warnings += (*headless(model.config), *slower_attention(model))
        weights = weight_files(folder)[0]
        if weights == "pickle":
            warnings.append("the weights are a pickle file, read with weights_only: prefer safetensors")
    clean_generation(model, tokenizer)
    return LoadedModel(
        model=model,
        tokenizer=tokenizer,
        model_id=source.spec,
        revision=commit,
        digests=digests,
        load_time_s=seconds,
        file_size_bytes=None if folder is None else sum(path.stat().st_size for path in weight_files(folder)[1]),
        facts=_facts(model, source, weights),
        warnings=tuple(warnings),
        notes=_notes(digests, placed),
    )


def _notes(digests: ModelDigests, placed: str) -> Notes:
    """Return the cached probe answers of a model; none for a shard."""
    return Notes() if placed else Notes(digests.tags)


def _folder_of(source: ModelSource, revision: str | None) -> tuple[Path | None, str | None]:
    """Return the folder of a model, downloaded or converted if needed, and a hub model's commit."""
    if source.kind == "synthetic":
        return None, None
    if source.kind == "hub":
        return hub.snapshot(source.location, revision)
    if source.kind == "gguf":
        return gguf.ensure(Path(source.location)), None
    if source.kind == "packaged":
        return packaged.ensure(source.location), None
    return Path(source.location), None


def _facts(model: PreTrainedModel, source: ModelSource, weights: str) -> dict[str, str | int | float | bool]:
    return {
        "architecture": type(model).__name__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "model_source": source.kind,
        "weights_format": weights,
        "trust_remote_code": False,
    }
