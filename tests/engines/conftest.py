"""The two synthetic models as engines: rotary positions with a pad token, learned positions without one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from llmtrack.engines.torch import pytorch
from llmtrack.engines.torch.pytorch import TorchEngine
from llmtrack.host.packages import available
from llmtrack.spec.scenario import Variant
from tests.conftest import made_once, make_here
from tests.export_cache import cache_exports


@pytest.fixture(scope="session")
def tiny() -> TorchEngine:
    return pytorch.load(Variant("synthetic:tiny", device="cpu"))


@pytest.fixture(scope="session")
def tiny_in_bfloat16() -> TorchEngine:
    return pytorch.load(Variant("synthetic:tiny", device="cpu", dtype="bfloat16"))


@pytest.fixture(scope="session")
def tiny_gpt2() -> TorchEngine:
    return pytorch.load(Variant("synthetic:tiny-gpt2", device="cpu"))


@pytest.fixture(scope="session", params=["tiny", "tiny_gpt2"])
def engine(request: pytest.FixtureRequest) -> TorchEngine:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def engine_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for the tests of engines, whichever process they run in: exporting takes seconds."""
    return made_once(tmp_path_factory, "engine-cache", lambda folder: None)


@pytest.fixture(scope="module")
def kept_exports(engine_cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Let a file's tests share that cache, and export in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLMTRACK_CACHE", str(engine_cache))
        make_here(patch)
        if available("onnx", "any"):
            cache_exports(patch, tmp_path_factory)
        yield engine_cache
