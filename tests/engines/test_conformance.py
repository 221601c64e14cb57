"""Every engine of this project passes the kit that engines of other packages are given; and the kit tells bad ones."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from llmtrack.engine import Engine
from llmtrack.engines.registry import load_engine
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.installed import available
from llmtrack.testing import EngineConformance


class TestTorch(EngineConformance):
    def load(self, model: str) -> Engine:
        return load_engine(model, device="cpu")


class TestTorchWithLearnedPositions(TestTorch):
    model = "synthetic:tiny-gpt2"


@pytest.mark.skipif(not available("onnx", "any"), reason="the onnx extra is not installed")
class TestOnnx(EngineConformance):
    def load(self, model: str) -> Engine:
        return load_engine(model, backend="onnx", device="cpu")


class TestScripted(EngineConformance):
    predicts = False

    def load(self, model: str) -> Engine:
        return ScriptedEngine(FakeClock(), Script(1.0, 0.1))

    def load_ending(self, eos_id: int, folder: Path) -> Engine:
        return ScriptedEngine(FakeClock(), Script(1.0, 0.1), eos_id=eos_id)

    def load_spoiled(self, folder: Path) -> Engine:
        return ScriptedEngine(FakeClock(), Script(1.0, 0.1), nll=math.nan)
