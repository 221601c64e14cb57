"""The conformance kit on a synthetic model of two layers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from llmtrack.models import synthetic
from llmtrack.models.folder import save_model
from llmtrack.testing import EngineConformance


class TwoLayers(EngineConformance):
    """Of a synthetic model with only its first two layers: loading and running it take a time per layer."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _first_layers(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        model, tokenizer = synthetic.build(cls.model.removeprefix("synthetic:"), device="cpu", dtype=torch.float32)
        decoder = model.base_model
        name = "layers" if hasattr(decoder, "layers") else "h"
        setattr(decoder, name, getattr(decoder, name)[:2])
        model.config.num_hidden_layers = 2
        folder = tmp_path_factory.mktemp("models") / "two-layers"
        save_model(folder, model, tokenizer)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(cls, "model", str(folder))
            yield
