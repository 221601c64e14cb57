"""Let all ONNX exports of a model in a test run share one trace, which takes most of an export."""

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

# Config settings that no graph depends on.
_IRRELEVANT = ("_name_or_path", "transformers_version", "bos_token_id", "eos_token_id", "pad_token_id")


def cache_exports(patch: pytest.MonkeyPatch, factory: pytest.TempPathFactory) -> None:
    """Run the exporter once per model and test run; llmtrack's changes of the graph, and its comparison, run each time."""
    from llmtrack.onnx import export as exporting

    folder = made_once(factory, "traces", lambda folder: None)
    trace = exporting._trace

    def cached_trace(loaded: LoadedModel, target: Path) -> None:
        entry = folder / _key(loaded.model)
        with FileLock(f"{entry}.lock"):
            if not entry.exists():
                trace(loaded, target)
                shutil.copyfile(target / MODEL_FILE, f"{entry}.new")
                os.replace(f"{entry}.new", entry)
                return
        shutil.copyfile(entry, target / MODEL_FILE)
        for settings in (loaded.model.config, loaded.model.generation_config):
            settings.save_pretrained(str(target))

    patch.setattr(exporting, "_trace", cached_trace)


def _key(model: Any) -> str:
    config = {name: value for name, value in model.config.to_dict().items() if name not in _IRRELEVANT}
    digest = hashlib.sha256(json.dumps(config, sort_keys=True, default=str).encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()
