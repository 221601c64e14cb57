"""Get any model as a complete folder, for engines that read files without transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmtrack.models import synthetic
from llmtrack.models.cache import build_once
from llmtrack.models.load import SEED, clean_generation, identify_model
from llmtrack.models.safe_view import safe_view
from llmtrack.models.source import PRESETS
from llmtrack.spec.scenario import Scalar


@dataclass(frozen=True)
class ModelFolder:
    """A model's files, as saved by transformers: config, weights, tokenizer and generation settings.

    Attributes:
        path: read-only view of the folder without unrelated files.
        model_id: the chosen candidate, as written.
        facts: its source and a hub model's commit, for `EngineInfo.facts`.
        tags: digests of weights, config and tokenizer, for `EngineInfo.tags`.
        warnings: such as random weights, for `EngineInfo.warnings`.
    """

    path: Path
    model_id: str
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def model_folder(spec: str, revision: str | None = None) -> ModelFolder:
    """Return the folder of the first available candidate of a comma list.

    Anything else becomes a folder once, in the cache: hub models are downloaded, GGUF files and packaged models
    converted, and a synthetic model's weights drawn and saved in float32.

    Args:
        spec: as for `load_model`.
        revision: branch, tag or commit of a hub model.

    Raises:
        UsageError: the spec is invalid.
        ModelLoadError: no candidate is available; the message has a line for each.
    """
    model = identify_model(spec, revision)
    source, path = model.source, model.folder
    if path is None:
        name = source.location
        key = model.digests.weights.removeprefix("synthetic:")[:16]
        path = build_once(
            f"synthetic-{name}-{key}",
            lambda folder: _save_synthetic(name, folder),
            PRESETS[name].weights.stored(),
        )
    facts: dict[str, Scalar] = {"model_source": source.kind, "trust_remote_code": False}
    if model.revision:
        facts["revision"] = model.revision
    return ModelFolder(safe_view(path), source.spec, facts, model.digests.tags, model.warnings)


def save_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """Save a model and its tokenizer so that all transformers versions read them alike."""
    from llmtrack.host.transformers_compat import portable_rope, portable_tokenizer

    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    for name, portable in (("config.json", portable_rope), ("tokenizer_config.json", portable_tokenizer)):
        path = folder / name
        if path.is_file():
            content = portable(json.loads(path.read_text(encoding="utf-8")))
            path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _save_synthetic(name: str, folder: Path) -> dict[str, Any]:
    import torch

    model, tokenizer = synthetic.build(name, device="cpu", dtype=torch.float32, seed=SEED)
    clean_generation(model, tokenizer)
    save_model(folder, model, tokenizer)
    return {}
