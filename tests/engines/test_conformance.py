"""Every built-in engine passes the conformance kit that engines of other packages are given."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pytest

from llmtrack.convert import conversion
from llmtrack.engine import Engine
from llmtrack.engines import llamacpp
from llmtrack.engines.registry import load_engine
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.host.packages import available, installed_version
from llmtrack.testing import EngineConformance
from tests.engines.stand_ins import NO_LLAMACPP, genai_converted, gguf_converted, openvino_converted
from tests.engines.two_layers import TwoLayers

pytestmark = pytest.mark.usefixtures("kept_exports")


class TestTorch(EngineConformance):
    def load(self, model: str) -> Engine:
        return load_engine(model, device="cpu")


class LearnedPositions:
    """What does not depend on positions is seen by another model."""

    model = "synthetic:tiny-gpt2"
    test_nan_logits_are_reported = test_it_can_be_closed_and_loaded_again = None


class TestTorchWithLearnedPositions(LearnedPositions, TwoLayers, TestTorch):  # type: ignore[misc]
    pass


@pytest.mark.skipif(not available("onnx", "any"), reason="the onnx extra is not installed")
@pytest.mark.slow(1)
class TestOnnx(EngineConformance):
    def load(self, model: str) -> Engine:
        return load_engine(model, backend="onnx", device="cpu")


@pytest.mark.skipif(not available("onnx", "any"), reason="the onnx extra is not installed")
@pytest.mark.skipif(not available("genai"), reason="the genai extra is not installed: the rest works without it")
@pytest.mark.slow(2)
class TestGenai(EngineConformance):
    """On our own export, which needs no build environment."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _converted_here(cls) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(conversion, "convert_folder", genai_converted)
            yield

    def load(self, model: str) -> Engine:
        return load_engine(model, backend="genai", device="cpu", threads=1)


@pytest.mark.skipif(not available("onnx", "any"), reason="the onnx extra is not installed")
@pytest.mark.skipif(not available("openvino"), reason="the openvino extra is not installed: the rest works without it")
@pytest.mark.slow(2)
class TestOpenvino(TwoLayers):
    """On our own export, which needs no build environment."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _converted_here(cls) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(conversion, "convert_folder", openvino_converted)
            yield

    def load(self, model: str) -> Engine:
        return load_engine(model, backend="openvino", device="cpu", threads=1)


class TestOpenvinoWithLearnedPositions(LearnedPositions, TestOpenvino):  # type: ignore[misc]
    pass


@pytest.mark.skipif(not available("llamacpp"), reason=NO_LLAMACPP)
@pytest.mark.slow(1)
class TestLlamacpp(EngineConformance):
    """By llama.cpp's own converter where llama-cpp-python brings it."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def _converted_here(cls) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            if not installed_version("llama-cpp-python"):
                patch.setattr(llamacpp, "gguf_of", gguf_converted)
            yield

    def load(self, model: str) -> Engine:
        return load_engine(model, backend="llamacpp", device="cpu", threads=1)


class TestLlamacppWithLearnedPositions(LearnedPositions, TestLlamacpp):  # type: ignore[misc]
    pass


class TestScripted(EngineConformance):
    predicts = False

    def load(self, model: str) -> Engine:
        return ScriptedEngine(FakeClock(), Script(1.0, 0.1))

    def load_ending(self, eos_id: int, folder: Path) -> Engine:
        return ScriptedEngine(FakeClock(), Script(1.0, 0.1), eos_id=eos_id)

    def load_spoiled(self, folder: Path) -> Engine:
        return ScriptedEngine(FakeClock(), Script(1.0, 0.1), nll=math.nan)
