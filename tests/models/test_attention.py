"""Loaded models compute the attention of their config, like transformers' eager attention in float64."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from llmtrack.engine import GenerateRequest
from llmtrack.engines.registry import load_engine
from llmtrack.models import attention, synthetic
from llmtrack.models.attention import EAGER, use_complete_attention
from llmtrack.tensors.padding import pad_rows
from tests.models.folders import load

ROWS = [[5, 17, 99, 200, 3, 42, 77, 8, 150, 31], [250, 11, 12, 13, 14, 15]]
SIZES = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "query_pre_attn_scalar": 8,
    "max_position_embeddings": 64,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}


pytestmark = pytest.mark.usefixtures("own_cache")


def saved(folder, architecture, spread=1.0, **settings):
    """Save a random model; by default, its attention scores have a standard deviation of some tens."""
    config = AutoConfig.for_model(architecture, **SIZES, **settings)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if weight.ndim > 1:
                    weight.normal_(0.0, spread)
                elif "sink" in name:
                    weight.normal_(0.0, 2.0)
    model.save_pretrained(str(folder))
    synthetic.build_tokenizer(synthetic.PRESETS["tiny"]).save_pretrained(str(folder))
    return folder


def expected(folder, rows=ROWS, dtype=torch.float64):
    """Return the summed losses of rows, and the tokens generated after the first, by eager attention in float64."""
    model = AutoModelForCausalLM.from_pretrained(str(folder), dtype=dtype, attn_implementation="eager").eval()
    sums, new = [], list(rows[0])
    with torch.inference_mode():
        for row in rows:
            logits = model(input_ids=torch.tensor([row])).logits[0, :-1].double()
            sums.append(float(torch.nn.functional.cross_entropy(logits, torch.tensor(row[1:]), reduction="sum")))
        for _ in range(4):
            new.append(int(model(input_ids=torch.tensor([new])).logits[0, -1].argmax()))
    return sums, new[len(rows[0]) :]


@pytest.mark.slow(2)
@pytest.mark.parametrize("cap", [50.0, 1.0, None])
@pytest.mark.parametrize("architecture", ["gemma2", "vaultgemma"])
def test_caps_on_attention_scores_are_applied(tmp_path, architecture, cap):
    folder = saved(tmp_path / "model", architecture, attn_logit_softcapping=cap)
    engine = load_engine(str(folder), device="cpu", dtype="float32")
    sums, new = expected(folder)
    assert engine.score(*pad_rows(ROWS, 0, "right"))[0].tolist() == pytest.approx(sums, rel=1e-5)
    assert list(engine.generate(GenerateRequest((tuple(ROWS[0]),), 4), lambda: None).new_ids[0]) == new


@pytest.mark.slow(1)
def test_a_cap_changes_the_loss(tmp_path):
    """Otherwise the test before would pass without a cap."""
    sums = {
        cap: expected(saved(tmp_path / str(cap), "gemma2", attn_logit_softcapping=cap))[0][0]
        for cap in (50.0, 1.0, None)
    }
    assert abs(sums[50.0] - sums[None]) > 1e-4 * sums[None]
    assert abs(sums[1.0] - sums[None]) > 1e-3 * sums[None]


@pytest.mark.slow(1)
def test_sinks_are_applied(tmp_path):
    folder = saved(tmp_path / "model", "gpt_oss", num_local_experts=4, num_experts_per_tok=2, sliding_window=8)
    engine = load_engine(str(folder), device="cpu", dtype="float32")
    sums, _ = expected(folder, dtype=torch.float32)  # the experts of version 5 have no float64
    assert engine.score(*pad_rows(ROWS, 0, "right"))[0].tolist() == pytest.approx(sums, rel=1e-5)


@pytest.mark.slow(1)
def test_a_feature_missing_from_the_config_is_found_by_the_probe(tmp_path, monkeypatch):
    """Scores with a standard deviation of 0.1 reveal a cap of 50 only when sharpened."""
    monkeypatch.setattr(attention, "attention_arguments", lambda config: {})
    monkeypatch.setattr("llmtrack.models.load.attention_arguments", lambda config: {})
    folder = saved(tmp_path / "model", "gemma2", spread=0.06, attn_logit_softcapping=50.0)
    assert load(folder).model.config._attn_implementation == EAGER


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "mistral", "gemma3_text", "gpt2"])
def test_fast_attention_is_kept_if_it_is_exact(tmp_path, architecture):
    folder = saved(tmp_path / "model", architecture)
    for dtype in (torch.float32, torch.bfloat16):
        loaded = load(folder, dtype)
        assert loaded.model.config._attn_implementation == "sdpa"
        assert not [warning for warning in loaded.warnings if "attention" in warning]


def test_slow_attention_is_a_warning(tmp_path):
    warnings = load(saved(tmp_path / "model", "gemma2")).warnings
    if AutoModelForCausalLM.from_config(AutoConfig.for_model("gemma2", **SIZES))._supports_sdpa:
        assert warnings == (
            "attention is eager, and slower: the faster implementation of transformers ignores attn_logit_softcapping",
        )
    else:  # version 5 has no faster one
        assert not warnings


def test_the_probe_restores_the_attention_functions(tmp_path):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    before = ALL_ATTENTION_FUNCTIONS["sdpa"]
    use_complete_attention(load(saved(tmp_path / "model", "llama")).model)
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is before
