"""Any model as a folder that holds all of it: for engines that read files and know nothing of transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmtrack.models import synthetic
from llmtrack.models.cache import build_once
from llmtrack.models.from_folder import clean_generation
from llmtrack.models.load import SEED, identify_model
from llmtrack.models.named import PRESETS
from llmtrack.models.view import view
from llmtrack.spec.scenario import Scalar


@dataclass(frozen=True)
class ModelFolder:
    """A model's files: config, weights, tokenizer and generation settings, as transformers saves them.

    Attributes:
        path: a view of the folder, without what is no part of a model; read-only.
        model_id: the candidate that was chosen, as it was written.
        facts: params to track (`EngineInfo.facts`): where it comes from, and a hub model's commit.
        tags: provenance to track (`EngineInfo.tags`): digests of the weights, the config and the tokenizer.
        warnings: findings in words (`EngineInfo.warnings`), such as random weights.
    """

    path: Path
    model_id: str
    facts: Mapping[str, Scalar] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


def model_folder(spec: str, revision: str | None = None) -> ModelFolder:
    """Return the folder of the first candidate of a comma list that there is.

    What is not a folder yet becomes one, once, in the cache: a hub model is fetched, a GGUF file and a packaged model are
    converted, and the weights of a synthetic one are drawn and saved in float32.

    Args:
        spec: as `load_model` takes it.
        revision: branch, tag or commit of a hub model.

    Raises:
        UsageError: the spec is not understood.
        ModelLoadError: no candidate is there; the message has a line for each.
    """
    found = identify_model(spec, revision)
    source, path = found.source, found.folder
    if path is None:
        name = source.location
        key = found.digests.weights.removeprefix("synthetic:")[:16]
        path = build_once(
            f"synthetic-{name}-{key}",
            lambda folder: _save_synthetic(name, folder),
            PRESETS[name].weights.stored(),
        )
    facts: dict[str, Scalar] = {"model_source": source.kind, "trust_remote_code": False}
    if found.revision:
        facts["revision"] = found.revision
    return ModelFolder(view(path), source.spec, facts, found.digests.tags, found.warnings)


def save_model(folder: Path, model: Any, tokenizer: Any) -> None:
    """Save a model and its tokenizer so that every version of transformers reads them alike."""
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
