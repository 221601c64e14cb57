"""Exports are checked against PyTorch; errors are one line."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from llmtrack.errors import ScenarioError
from llmtrack.models import load, synthetic
from tests.engines.models import small
from tests.export_cache import cache_exports
from tests.quantize.conftest import MISSING

pytest.importorskip("onnx", reason=MISSING)
pytest.importorskip("onnxruntime", reason=MISSING)
pytest.importorskip("optimum.exporters.onnx", reason=MISSING)
from llmtrack.onnx import export as exporting
from llmtrack.onnx import lengths
from llmtrack.onnx import parity as parity_module
from llmtrack.onnx.export import export
from llmtrack.onnx.lengths import LEAST_AGREEMENT, Parity
from llmtrack.onnx.parity import agreement, parity
from llmtrack.onnx.session import MODEL_FILE, OnnxDecoder


@pytest.fixture
def traced(monkeypatch, tmp_path_factory):
    cache_exports(monkeypatch, tmp_path_factory)


@pytest.mark.slow(2)
def test_an_export_matches_pytorch(exported):
    loaded = load.load_model("synthetic:tiny", device="cpu", dtype=torch.float32)
    result = parity(loaded, OnnxDecoder(exported / MODEL_FILE))
    assert result.holds
    assert result.difference < 1e-3
    assert result.top1_agreement == 1.0


@pytest.mark.slow(2)
def test_another_model_does_not_match(exported):
    other = load.load_model("synthetic:tiny", device="cpu", dtype=torch.float32)
    with torch.no_grad():
        other.model.model.layers[1].mlp.down_proj.weight *= 1.5
    result = parity(other, OnnxDecoder(exported / MODEL_FILE))
    assert not result.holds
    assert "logits differ by up to" in str(result)


@pytest.mark.parametrize(("share", "agreement", "holds"), [(9e-4, 0.99, True), (2e-3, 1.0, False), (0.0, 0.9, False)])
def test_the_bounds_of_parity(share, agreement, holds):
    assert Parity(1.0, share, agreement).holds is holds


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ([[5.0, 10.0, -np.inf], [1.0, 2.0, 3.0]], [True, True]),
        # PyTorch prefers its own token by a tenth of the largest logit ...
        ([[5.0, 10.0, -np.inf], [1.0, 3.0, 2.0]], [True, False]),
        ([[10.0, 5.0, -np.inf], [1.0, 2.0, 3.0]], [False, True]),
        # ... and by 1e-5 of it: a tie.
        ([[5.0, 10.0, -np.inf], [3.0, 1.0, 2.0]], [True, True]),
    ],
)
def test_tokens_agree_up_to_ties_within_rounding(other, expected):
    pytorch = np.array([[5.0, 10.0, -np.inf], [2.9999, 2.0, 3.0]])
    assert agreement(np.array(other), pytorch).tolist() == expected


def test_a_tie_in_one_of_48_positions_is_no_disagreement():
    pytorch = np.tile([1.0, 2.0, 3.0], (48, 1))
    pytorch[7] = 1.0, 3.0 - 1e-5, 3.0
    other = pytorch.copy()
    other[7] = 1.0, 3.0, 3.0 - 1e-5
    assert (other.argmax(axis=1) == pytorch.argmax(axis=1)).mean() < LEAST_AGREEMENT
    assert agreement(other, pytorch).all()


@pytest.mark.parametrize(("shares", "holds"), [((1e-6,), True), ((2e-3, 1e-6), True), ((2e-3, 2e-3), False)])
def test_an_export_is_refused_only_if_a_second_batch_differs_too(shares, holds, monkeypatch):
    differences = iter(shares)
    monkeypatch.setattr(lengths, "check_lengths", lambda config, parameters, longest: [16])
    monkeypatch.setattr(parity_module, "_parity", lambda *arguments: Parity(1.0, next(differences), 1.0, 16))
    assert parity(SimpleNamespace(model=small("llama").model), None).holds is holds
    assert not list(differences), "no more rows than necessary"


@pytest.mark.slow(1)
@pytest.mark.usefixtures("traced")
def test_fused_attention_that_does_not_match_is_not_used(tmp_path, monkeypatch):
    rotary_of = exporting.rotary_of

    def wrong(model):
        rotary = rotary_of(model)
        return replace(rotary, frequencies=np.zeros_like(rotary.frequencies))

    monkeypatch.setattr(exporting, "rotary_of", wrong)
    facts = export("synthetic:tiny", None, tmp_path)
    assert facts["onnx_attention"] == "as exported"
    assert facts["parity_max_share"] < 1e-3


@pytest.mark.slow(1)
@pytest.mark.usefixtures("traced")
def test_if_fused_attention_cannot_run_the_exported_one_is_used(tmp_path, monkeypatch):
    decoders = []

    def broken(loaded, decoder):
        decoders.append(decoder)
        if len(decoders) == 1:
            raise RuntimeError("head_size must be\na multiple of 16")
        return parity(loaded, decoder)

    monkeypatch.setattr(exporting, "parity", broken)
    assert export("synthetic:tiny", None, tmp_path)["onnx_attention"] == "as exported"


@pytest.mark.slow(1)
@pytest.mark.usefixtures("traced")
def test_an_export_that_cannot_be_run_at_all_is_refused_in_one_line(tmp_path, monkeypatch):
    def broken(loaded, decoder):
        raise RuntimeError("no such kernel\nat all")

    monkeypatch.setattr(exporting, "parity", broken)
    with pytest.raises(ScenarioError, match=r"it cannot be run: .*no such kernel.*take backend=torch") as caught:
        export("synthetic:tiny", None, tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.slow(1)
@pytest.mark.usefixtures("traced")
def test_an_export_that_differs_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(exporting, "parity", lambda loaded, decoder: Parity(3.0, 0.2, 0.5))
    with pytest.raises(ScenarioError, match=r"does not match PyTorch \(logits differ by up to 3, 0.2 of") as caught:
        export("synthetic:tiny", None, tmp_path)
    assert "\n" not in str(caught.value)


def test_an_architecture_without_an_export_is_refused_in_one_line(tmp_path):
    from transformers import RwkvConfig, RwkvForCausalLM

    folder = tmp_path / "rwkv"
    RwkvForCausalLM(RwkvConfig(vocab_size=512, hidden_size=32, num_hidden_layers=2, context_length=64)).save_pretrained(
        folder
    )
    synthetic.build_tokenizer(synthetic.PRESETS["tiny"]).save_pretrained(folder)
    (tmp_path / "out").mkdir()
    with pytest.raises(ScenarioError) as caught:
        export(str(folder), None, tmp_path / "out")
    assert str(caught.value) == "optimum's exporter does not support rwkv: use backend=torch"
    assert caught.value.kind == "unsupported"


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KeyError("rope_type"), "does not support llama: use backend=torch"),
        (NotImplementedError(), "does not support llama: use backend=torch"),
        (AssertionError(), "cannot convert this llama model (AssertionError: AssertionError): use backend=torch"),
        (
            RuntimeError("shape\nmismatch"),
            "cannot convert this llama model (RuntimeError: shape mismatch): use backend=torch",
        ),
    ],
)
def test_any_error_of_the_exporter_is_one_line(tmp_path, monkeypatch, error, line):
    def fail(loaded, folder):
        raise error

    monkeypatch.setattr(exporting, "_trace", fail)
    with pytest.raises(ScenarioError) as caught:
        export("synthetic:tiny", None, tmp_path)
    assert str(caught.value) == f"optimum's exporter {line}"


def test_running_out_of_memory_is_not_an_error_of_the_exporter(tmp_path, monkeypatch):
    def fail(loaded, folder):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr(exporting, "_trace", fail)
    with pytest.raises(RuntimeError, match="can't allocate memory"):
        export("synthetic:tiny", None, tmp_path)
