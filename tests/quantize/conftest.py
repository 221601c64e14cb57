"""Small models, exported once."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmtrack.host.packages import available
from tests.conftest import made_once

MISSING = "the onnx extra is not installed: the rest of llmtrack works without it"


def _exported(factory: pytest.TempPathFactory, preset: str) -> Path:
    if not available("onnx", "any"):
        pytest.skip(MISSING)

    def make(folder: Path) -> None:
        from llmtrack.onnx.export import export
        from tests.export_cache import cache_exports

        with pytest.MonkeyPatch.context() as patch:
            cache_exports(patch, factory)
            export(f"synthetic:{preset}", None, folder)

    return made_once(factory, f"onnx-{preset}", make)


@pytest.fixture(scope="session")
def exported(tmp_path_factory) -> Path:
    """`synthetic:tiny` as ONNX: rotary positions, grouped heads, a tied head. Read-only."""
    return _exported(tmp_path_factory, "tiny")


@pytest.fixture(scope="session")
def exported_gpt2(tmp_path_factory) -> Path:
    """`synthetic:tiny-gpt2` as ONNX: learned positions, layers that are Gemm nodes, no pad token. Read-only."""
    return _exported(tmp_path_factory, "tiny-gpt2")


@pytest.fixture
def onnx_cache(tmp_path, monkeypatch) -> Path:
    """Use a separate cache of exported and quantized models."""
    if not available("onnx", "any"):
        pytest.skip(MISSING)
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "models"
