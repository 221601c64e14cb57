"""Folders of small models that behave in a known way: one that ends its text, and one that computes no numbers."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

from llmtrack.models.cache import MANIFEST
from llmtrack.models.folder import model_folder
from llmtrack.models.view import LOCAL


def ending_model(spec: str, folder: Path, eos_id: int) -> Path:
    """Copy a model to a folder and make an ordinary token its end-of-sequence token, in all files that name one.

    Args:
        spec: as `load_model` takes it.
        folder: is made.
        eos_id: the token.
    """
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
    """Copy a model to a folder and make the scales of its norms NaN, so that none of its logits is a number."""
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
