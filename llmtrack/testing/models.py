"""Small model folders with known behaviour: one that ends its text, and one with NaN logits."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

from llmtrack.models.cache import MANIFEST
from llmtrack.models.folder import model_folder
from llmtrack.models.safe_view import LOCAL


def ending_model(spec: str, folder: Path, eos_id: int) -> Path:
    """Copy a model and make an ordinary token its end-of-sequence token in all config files."""
    from transformers import AutoTokenizer

    _copy(spec, folder)
    tokenizer = AutoTokenizer.from_pretrained(str(folder), **LOCAL)
    tokenizer.eos_token = tokenizer.convert_ids_to_tokens(eos_id)
    tokenizer.save_pretrained(str(folder))
    for path in (folder / "config.json", folder / "generation_config.json"):
        content = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps(content | {"eos_token_id": eos_id}), encoding="utf-8")
    return folder


def spoiled_model(spec: str, folder: Path) -> Path:
    """Copy a model and set the scales of its norms to NaN, so that all logits are NaN."""
    from safetensors.torch import load_file, save_file

    path = _copy(spec, folder) / "model.safetensors"
    weights = load_file(str(path))
    for tensor in weights.values():
        if tensor.ndim == 1:
            tensor.fill_(math.nan)
    save_file(weights, str(path), metadata={"format": "pt"})
    return folder


def _copy(spec: str, folder: Path) -> Path:
    shutil.copytree(model_folder(spec).path, folder, ignore=shutil.ignore_patterns(MANIFEST))
    return folder
