"""What another runtime's tool made of a model is used only if it says what PyTorch says."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmtrack.convert import fidelity
from llmtrack.convert.fidelity import parity_facts, says_alike, says_the_same
from llmtrack.engine import Engine
from llmtrack.engines.registry import load_engine
from llmtrack.errors import ScenarioError
from llmtrack.models.cache import build_once
from llmtrack.models.folder import model_folder
from llmtrack.testing.models import spoiled_model


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fidelity, "run_apart", lambda what, work, *arguments: work(*arguments))


def by_torch(folder: Path) -> Engine:
    return load_engine(str(folder), device="cpu")


@pytest.fixture
def source() -> Path:
    return model_folder("synthetic:tiny").path


def changed(source: Path, folder: Path, change) -> Path:
    """A copy of a model with other weights."""
    shutil.copytree(source, folder)
    weights = load_file(str(folder / "model.safetensors"))
    save_file(
        {name: change(name, each).contiguous() for name, each in weights.items()},
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
    """As if the head hung on the first layer: those after it add nothing."""
    last = name.startswith(("model.layers.1.", "model.layers.2.", "model.layers.3."))
    return (
        torch.zeros_like(weight) if last and name.endswith(("o_proj.weight", "down_proj.weight")) else weight
    )


@pytest.mark.slow(1)
def test_the_same_model_says_the_same(source):
    found = says_the_same(by_torch, source, source)
    assert found["parity_top1_agreement"] == 1.0
    assert found["parity_max_share"] < 1e-5


@pytest.mark.slow(1)
@pytest.mark.parametrize("bits", [8, 4])
def test_a_quantized_model_is_taken_for_the_same_one_and_not_for_exact(source, tmp_path, bits):
    folder = changed(source, tmp_path / "rounded", rounded(bits))
    assert says_alike(by_torch, source, folder) == {}
    with pytest.raises(ScenarioError, match="does not say what PyTorch says"):
        says_the_same(by_torch, source, folder)


@pytest.mark.slow(1)
@pytest.mark.parametrize("check", [says_the_same, says_alike])
def test_a_graph_whose_head_hangs_on_another_layer_is_refused(source, tmp_path, check):
    """GenAI's builder 0.18 takes a layer whose width is the vocabulary's for the head."""
    folder = changed(source, tmp_path / "cut", without_last_layers)
    with pytest.raises(ScenarioError, match="it is not used, take backend=torch") as caught:
        check(by_torch, source, folder)
    assert caught.value.kind == "unsupported"
    assert "\n" not in str(caught.value)


@pytest.mark.slow(1)
@pytest.mark.parametrize("check", [says_the_same, says_alike])
def test_logits_that_are_no_numbers_are_no_agreement(source, tmp_path, check):
    spoiled = spoiled_model("synthetic:tiny", tmp_path / "spoiled")
    with pytest.raises(ScenarioError, match="does not say what PyTorch says"):
        check(by_torch, source, spoiled)
    with pytest.raises(ScenarioError) as caught:
        check(by_torch, spoiled, spoiled)
    assert caught.value.kind == "non_finite"


def test_what_was_found_is_tracked(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path))
    folder = build_once("made", lambda folder: {"arguments": ["x"], "parity_max_share": 1e-6})
    assert parity_facts(folder) == {"parity_max_share": 1e-6}
