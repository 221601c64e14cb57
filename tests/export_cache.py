"""Exports of one model share what PyTorch's exporter makes of it: to trace it and write its graph takes most of an export."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from llmtrack.models.load import LoadedModel
from llmtrack.onnx.session import MODEL_FILE
from tests.conftest import made_once

# Of a config, what no graph depends on.
_BESIDE = ("_name_or_path", "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id")


def cache_exports(patch: pytest.MonkeyPatch, factory: pytest.TempPathFactory) -> None:
    """Let the exporter be asked once for each model, in this test run.

    What llmtrack makes of a graph, and how it compares it with PyTorch, is done each time.
    """
    from llmtrack.onnx import export as exporting

    folder = made_once(factory, "traces", lambda folder: None)
    traced = exporting._trace

    def kept(loaded: LoadedModel, target: Path) -> None:
        entry = folder / _key(loaded.model)
        with FileLock(f"{entry}.lock"):
            if not entry.exists():
                traced(loaded, target)
                shutil.copyfile(target / MODEL_FILE, f"{entry}.new")
                os.replace(f"{entry}.new", entry)
                return
        shutil.copyfile(entry, target / MODEL_FILE)
        for settings in (loaded.model.config, loaded.model.generation_config):
            settings.save_pretrained(str(target))

    patch.setattr(exporting, "_trace", kept)


def _key(model: Any) -> str:
    config = {name: value for name, value in model.config.to_dict().items() if name not in _BESIDE}
    found = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.numpy().tobytes())
    return found.hexdigest()
