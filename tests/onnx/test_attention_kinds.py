"""Exports match PyTorch on both sides of every length at which a model computes differently.

Compared by a plain loop: one row, no pads, a fresh PyTorch model for each length.
"""

from __future__ import annotations

import copy
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from llmtrack.engine import GenerateRequest
from llmtrack.engines.torch.pytorch import TorchEngine
from llmtrack.errors import ScenarioError
from llmtrack.models import synthetic
from llmtrack.models.load import load_folder
from tests.quantize.conftest import MISSING

pytest.importorskip("onnx", reason=MISSING)
pytest.importorskip("onnxruntime", reason=MISSING)
pytest.importorskip("optimum.exporters.onnx", reason=MISSING)
from llmtrack.engines.onnx import open_folder
from llmtrack.onnx.export import export, traceable_rope
from llmtrack.onnx.session import MODEL_FILE, OnnxDecoder

FUSED, AS_EXPORTED = "GroupQueryAttention", "as exported"
NEW = 3
SHAPE = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # not hidden / heads
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def saved(folder, kind, **settings):
    """Save a random model whose attention is sharp enough for its context to matter."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SHAPE | settings))
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(0, 1.5 * weight.shape[-1] ** -0.5)
    model.save_pretrained(folder)
    synthetic.build_tokenizer(synthetic.PRESETS["tiny"]).save_pretrained(folder)
    return folder


def expected_logits(model, ids):
    """Compute PyTorch's logits: of the last tokens one by one from the cache."""
    with torch.inference_mode():
        out = model(ids[:, :-NEW], use_cache=True)
        parts = [out.logits]
        for index in range(NEW, 0, -1):
            end = ids.shape[1] - index
            out = model(ids[:, end : end + 1], use_cache=True, past_key_values=out.past_key_values)
            parts.append(out.logits)
    return torch.cat(parts, dim=1).numpy()


def exported_logits(decoder, ids):
    mask = np.ones_like(ids)
    logits, past = decoder.run(ids[:, :-NEW], mask[:, :-NEW])
    parts = [logits]
    for index in range(NEW, 0, -1):
        end = ids.shape[1] - index
        logits, past = decoder.run(ids[:, end : end + 1], mask[:, : end + 1], past)
        parts.append(logits)
    return np.concatenate(parts, axis=1)


def rope(kind, **settings):
    return {"rope_scaling": {"rope_type": kind, **settings}}


LONG = {"short_factor": [1.0] * 16, "long_factor": [4.0] * 16}
CASES = {
    "window": ("mistral", {"sliding_window": 64}, AS_EXPORTED),
    "window of some layers": (
        "qwen2",
        {"num_hidden_layers": 2, "use_sliding_window": True, "sliding_window": 64, "max_window_layers": 1},
        AS_EXPORTED,
    ),
    "windows and caps of scores": (
        "gemma2",
        {"num_hidden_layers": 2, "sliding_window": 64, "attn_logit_softcapping": 0.5, "final_logit_softcapping": 1.0},
        AS_EXPORTED,
    ),
    "norms of queries and keys": ("qwen3", {}, AS_EXPORTED),
    "clipped projections": ("olmo", {"clip_qkv": 100.0, "head_dim": 16}, AS_EXPORTED),
    "layers without rotation": ("smollm3", {"num_hidden_layers": 2, "no_rope_layer_interval": 2}, AS_EXPORTED),
    "partly rotated heads": ("glm", {"partial_rotary_factor": 0.5}, AS_EXPORTED),
    "long rope": (
        "phi3",
        {"original_max_position_embeddings": 64, "head_dim": 16, "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 8, "long_factor": [4.0] * 8}},
        AS_EXPORTED,
    ),
    "long rope of another family": ("llama", {"original_max_position_embeddings": 64, **rope("longrope", factor=2.0, **LONG)}, AS_EXPORTED),
    "dynamic rope": ("llama", {"max_position_embeddings": 64, **rope("dynamic", factor=2.0)}, AS_EXPORTED),
    "linear rope": ("llama", {"max_position_embeddings": 64, **rope("linear", factor=2.0)}, FUSED),
    "yarn": ("llama", rope("yarn", factor=2.0, original_max_position_embeddings=64), FUSED),
    "another factor of scores": ("granite", {"attention_multiplier": 0.9, "head_dim": 16}, FUSED),
    "unsupported head width": ("llama", {"head_dim": 12}, AS_EXPORTED),
    "multi-query and biases": ("llama", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}, FUSED),
}  # fmt: skip


@pytest.fixture(scope="module")
def exported_case(tmp_path_factory):
    """Return the folder of a case's model, that of its export, and the facts of the export, made once."""

    @cache
    def exported_case(name):
        folder = tmp_path_factory.mktemp("case")
        kind, settings, _ = CASES[name]
        model = saved(folder / "model", kind, **settings)
        (folder / "onnx").mkdir()
        return model, folder / "onnx", export(str(model), None, folder / "onnx")

    return exported_case


@pytest.mark.slow(2)
@pytest.mark.parametrize("name", CASES)
def test_exports_match_before_and_after_every_threshold(name, exported_case):
    folder, onnx, facts = exported_case(name)
    assert facts["onnx_attention"] == CASES[name][-1]
    decoder = OnnxDecoder(onnx / MODEL_FILE)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    for length in (48, 63, 66, 100):  # the third is decoded across 64
        ids = torch.randint(3, 512, (1, length), generator=torch.Generator().manual_seed(length))
        expected = expected_logits(copy.deepcopy(model), ids)
        logits = exported_logits(decoder, ids.numpy())
        assert np.abs(logits - expected).max() < 1e-4 * np.abs(expected).max(), length


def test_unknown_rotary_positions_are_refused_in_one_line():
    class Unknown(torch.nn.Module):
        config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(to_dict=lambda: rope("something", factor=2.0)))

    with (
        pytest.raises(ScenarioError, match=r"something rotary positions depend .*use backend=torch") as caught,
        traceable_rope(Unknown()),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_tracing_restores_the_model(tmp_path):
    folder = saved(tmp_path, "llama", max_position_embeddings=64, **rope("dynamic", factor=2.0))
    model, _ = load_folder(folder, device="cpu", dtype=torch.float32)
    embedding = model.model.rotary_emb
    before = embedding.inv_freq.clone()
    with traceable_rope(model):
        embedding(torch.zeros(1), torch.arange(100)[None])
        assert not torch.equal(embedding.inv_freq, before)
    assert torch.equal(embedding.inv_freq, before)
    assert "forward" not in vars(embedding)


@pytest.mark.slow(1)
@pytest.mark.parametrize("name", ["long rope", "long rope of another family", "dynamic rope"])
def test_generation_across_a_threshold_matches_and_unequal_rows_are_refused(name, exported_case):
    folder, onnx, _ = exported_case(name)
    engine = open_folder(onnx)
    rows = tuple(tuple((7 * at + row) % 400 + 3 for at in range(61)) for row in range(2))
    for use_cache in (True, False):
        request = GenerateRequest(rows, 8, use_cache=use_cache)
        expected = TorchEngine(*load_folder(folder, device="cpu", dtype=torch.float32)).generate(request, lambda: None)
        assert engine.generate(request, lambda: None) == expected
    assert "longest row of a batch" in engine.info.warnings[0]
    engine.generate(GenerateRequest((rows[0][:5], rows[1][:3]), 8), lambda: None)
    with pytest.raises(ScenarioError, match="rows of unequal lengths cannot be generated from in one batch"):
        engine.generate(GenerateRequest((rows[0], rows[1][:3]), 8), lambda: None)


@pytest.mark.slow(1)
def test_end_tokens_beyond_the_vocabulary_are_ignored(exported):
    engine = open_folder(exported)
    request = GenerateRequest(((5, 6, 7),), 4)
    expected = engine.generate(request, lambda: None)
    engine._eos_ids = engine._eos_ids | {engine.info.vocab_size, 50256}
    assert engine.generate(request, lambda: None) == expected
