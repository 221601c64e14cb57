"""A converted model is used only if it matches PyTorch."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from llmtrack.convert import conversion, fidelity
from llmtrack.convert.conversion import convert
from llmtrack.convert.fidelity import has_length_thresholds, parity_facts, require_correlation, require_parity
from llmtrack.convert.genai import CONVERTER
from llmtrack.engines.registry import load_engine
from llmtrack.errors import ScenarioError
from llmtrack.models import synthetic
from llmtrack.models.cache import build_once
from llmtrack.models.folder import save_model
from llmtrack.spec.scenario import Variant
from llmtrack.testing.models import spoiled_model
from tests.models.folders import edit


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fidelity, "run_isolated", lambda action, work, *arguments: work(*arguments))


class TorchConversion:
    """A converted model that really runs with PyTorch."""

    def __init__(self, folder: Path) -> None:
        self._engine = load_engine(str(folder), device="cpu")
        self.info = self._engine.info
        self.next_token_logits = self._engine.next_token_logits

    def decoded_logits(self, ids) -> torch.Tensor:
        return self.next_token_logits(ids)[-1]


def by_torch(folder: Path) -> TorchConversion:
    return TorchConversion(folder)


@pytest.fixture
def source(tiny_model_dir: Path) -> Path:
    return tiny_model_dir


def changed(source: Path, folder: Path, change) -> Path:
    """Copy a model with changed weights."""
    shutil.copytree(source, folder)
    weights = load_file(str(folder / "model.safetensors"))
    save_file(
        {name: change(name, weight).contiguous() for name, weight in weights.items()},
        str(folder / "model.safetensors"),
        metadata={"format": "pt"},
    )
    return folder


def rounded(bits: int):
    def change(name: str, weight: torch.Tensor) -> torch.Tensor:
        if weight.ndim < 2:
            return weight
        scale = weight.abs().amax(dim=1, keepdim=True) / (2 ** (bits - 1) - 1)
        return (weight / scale).round() * scale

    return change


def without_last_layers(name: str, weight: torch.Tensor) -> torch.Tensor:
    """Let the layers after the first add nothing, as if the head were on the first."""
    is_later = name.startswith(("model.layers.1.", "model.layers.2.", "model.layers.3."))
    return torch.zeros_like(weight) if is_later and name.endswith(("o_proj.weight", "down_proj.weight")) else weight


@pytest.mark.slow(1)
def test_a_model_matches_itself(source):
    facts = require_parity(by_torch, source, source)
    assert facts["parity_top1_agreement"] == 1.0
    assert facts["parity_max_share"] < 1e-5


@pytest.mark.slow(1)
@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantized_model_correlates_without_parity(source, tmp_path, bits):
    folder = changed(source, tmp_path / "rounded", rounded(bits))
    assert require_correlation(by_torch, source, folder) == {}
    with pytest.raises(ScenarioError, match="does not match PyTorch"):
        require_parity(by_torch, source, folder)


@pytest.mark.slow(1)
@pytest.mark.parametrize("check", [require_parity, require_correlation])
def test_a_graph_with_the_head_on_another_layer_is_refused(source, tmp_path, check):
    """GenAI's builder 0.18 mistakes a layer as wide as the vocabulary for the head."""
    folder = changed(source, tmp_path / "cut", without_last_layers)
    with pytest.raises(ScenarioError, match="it is not used, take backend=torch") as caught:
        check(by_torch, source, folder)
    assert caught.value.kind == "unsupported"
    assert "\n" not in str(caught.value)


@pytest.mark.slow(1)
@pytest.mark.parametrize("check", [require_parity, require_correlation])
def test_nan_logits_match_nothing(source, tmp_path, check):
    spoiled = spoiled_model("synthetic:tiny", tmp_path / "spoiled")
    with pytest.raises(ScenarioError, match="does not match PyTorch"):
        check(by_torch, source, spoiled)
    with pytest.raises(ScenarioError) as caught:
        check(by_torch, spoiled, spoiled)
    assert caught.value.kind == "non_finite"


WINDOWED = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}


@pytest.fixture
def windowed(tmp_path) -> Path:
    """A Mistral with a window of 64, and attention sharp enough for it to matter."""
    config = AutoConfig.for_model("mistral", **WINDOWED, sliding_window=64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.normal_(0, 1.5 * weight.shape[-1] ** -0.5)
    save_model(tmp_path / "windowed", model, synthetic.build_tokenizer(synthetic.PRESETS["tiny"]))
    return tmp_path / "windowed"


def without_window(folder: Path) -> TorchConversion:
    """Open the weights alone, as GenAI's builder 0.18 does."""
    bare = folder.with_name("bare")
    shutil.copytree(folder, bare, dirs_exist_ok=True)
    edit(bare / "config.json", sliding_window=None)
    return TorchConversion(bare)


class DecodesWithoutWindow(TorchConversion):
    """Read prompts with the window, but decode without one."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._without = without_window(folder)

    def decoded_logits(self, ids) -> torch.Tensor:
        return self._without.next_token_logits(ids)[-1]


@pytest.mark.slow(2)
def test_a_window_is_applied_beyond_its_length(windowed):
    assert has_length_thresholds(windowed)
    assert require_parity(by_torch, windowed, windowed)["parity_max_share"] < 1e-5


@pytest.mark.slow(2)
@pytest.mark.parametrize("open_folder", [without_window, DecodesWithoutWindow])
def test_a_missing_window_is_detected_at_its_length(windowed, open_folder):
    with pytest.raises(ScenarioError, match=r"at 80 tokens.*it is not used"):
        require_parity(open_folder, windowed, windowed)


def test_a_model_without_windows_has_no_thresholds(source):
    assert not has_length_thresholds(source)


@pytest.mark.slow(1)
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_quantized_model_with_a_window_is_first_compared_in_float(windowed, monkeypatch, quantization):
    conversions = []

    def convert_folder(converter, source, arguments, label, bits, check):
        conversions.append((tuple(arguments), label, check.func))
        return windowed

    monkeypatch.setattr(conversion, "convert_folder", convert_folder)
    monkeypatch.setattr(conversion, "missing_modules", lambda backend: [])
    monkeypatch.setattr(conversion, "parity_facts", lambda folder: {})
    convert(CONVERTER, Variant(str(windowed), backend="genai", quantization=quantization), by_torch)
    exact = (("-p", "fp32"), "float32", require_parity)
    assert conversions[0] == exact
    assert [check for _, _, check in conversions[1:]] == ([] if quantization == "none" else [require_correlation])


def test_parity_is_tracked(own_cache):
    folder = build_once("made", lambda folder: {"arguments": ["x"], "parity_max_share": 1e-6})
    assert parity_facts(folder) == {"parity_max_share": 1e-6}
