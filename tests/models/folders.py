"""Helpers to load models and to modify their files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from llmtrack.models.load import LoadedModel, load_model


def load(spec: str | Path, dtype: torch.dtype = torch.float32, **options: Any) -> LoadedModel:
    return load_model(str(spec), device="cpu", dtype=dtype, **options)


def edit(path: Path, **changes: Any) -> None:
    """Change entries of a JSON file, which need not be there."""
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**settings, **changes}))
