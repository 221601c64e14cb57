"""Helpers to load models and to modify their files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from llmtrack.errors import ModelLoadError
from llmtrack.models.load import LoadedModel, load_model


def load(spec: str | Path, dtype: torch.dtype = torch.float32, **options: Any) -> LoadedModel:
    return load_model(str(spec), device="cpu", dtype=dtype, **options)


def edit(path: Path, **changes: Any) -> None:
    """Change entries of a JSON file, which need not exist."""
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**settings, **changes}))


def refusal(spec: str | Path, read: Callable[[str], object] = load) -> str:
    """Return the line with cause and remedy of why a model is refused."""
    with pytest.raises(ModelLoadError) as caught:
        read(str(spec))
    _, line = str(caught.value).splitlines()
    assert ": " in line.removeprefix(f"  {spec}: ")
    return line
