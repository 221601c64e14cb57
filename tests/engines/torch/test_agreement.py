"""A model is scored as it generates, with a cache and without one, before a window and behind it."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, DynamicCache

from llmtrack.engine import GenerateRequest
from llmtrack.engines.registry import load_engine
from llmtrack.engines.torch import passes
from llmtrack.engines.torch.pytorch import TorchEngine
from llmtrack.errors import ScenarioError
from llmtrack.models import load, synthetic
from llmtrack.models.load import load_model
from llmtrack.train.loop import sum_cross_entropy
from tests.engines.models import small

ROW = (5, 17, 99, 200, 3, 42, 77, 8, 150, 31, 9, 64, 250, 11)
GEMMA_3N = {
    "num_hidden_layers": 4,
    "num_kv_shared_layers": 2,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
    "sliding_window": 8,
    "vocab_size_per_layer_input": 600,
    "hidden_size_per_layer_input": 4,
    "altup_num_inputs": 2,
    "laurel_rank": 4,
    "activation_sparsity_pattern": [0.0] * 4,
}


pytestmark = pytest.mark.usefixtures("own_cache")


def saved(folder, architecture, **settings):
    sizes = {
        "vocab_size": 600,
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "max_position_embeddings": 64,
        "bos_token_id": 256,
        "eos_token_id": 257,
        "pad_token_id": 258,
    }
    config = AutoConfig.for_model(architecture, **{**sizes, "num_hidden_layers": 2, **settings})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.normal_(0.0, 0.4)
    model.save_pretrained(str(folder))
    synthetic.build_tokenizer(synthetic.PRESETS["tiny"]).save_pretrained(str(folder))
    return str(folder)


def stepwise(folder, row):
    """The summed loss of a row by steps of one token with a cache, by eager attention in float64."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()
    cache, total = DynamicCache(config=model.config), 0.0
    with torch.inference_mode():
        for token, target in pairwise(row):
            logits = model(input_ids=torch.tensor([[token]]), past_key_values=cache, use_cache=True).logits[0]
            total += float(torch.nn.functional.cross_entropy(logits.double(), torch.tensor([target])))
    return total


def score(engine, row=ROW):
    ids = torch.tensor([row])
    return float(engine.score(ids, torch.ones_like(ids))[0])


def texts(engine, row=ROW, new_tokens=8):
    return [
        engine.generate(GenerateRequest((row,), new_tokens, use_cache=cached), lambda: None).new_ids[0]
        for cached in (True, False)
    ]


@pytest.mark.slow(2)
def test_layers_that_reuse_keys_do_so_without_a_cache(tmp_path):
    folder = saved(tmp_path / "model", "gemma3n_text", **GEMMA_3N)
    engine = load_engine(folder, device="cpu", dtype="float32")
    expected = stepwise(folder, ROW)
    assert score(engine) == pytest.approx(expected, rel=1e-5)
    for length in range(2, len(ROW)):
        cached, uncached = texts(engine, ROW[-length:], 16)
        assert cached == uncached
    # Training, and what converted models are compared with, is the same model.
    model, ids = load_model(folder, device="cpu", dtype=torch.float32).model, torch.tensor([ROW])
    for mode in (model.train(), model.eval()):
        for told in ({"use_cache": False}, {}):
            logits = mode(input_ids=ids, **told).logits
            assert float(sum_cross_entropy(logits[:, :-1], ids[:, 1:])) == pytest.approx(expected, rel=1e-5)
    logits.sum().backward()
    assert model.get_input_embeddings().weight.grad is not None


@pytest.mark.slow(2)
def test_a_model_that_says_something_else_with_its_cache_is_refused(tmp_path, monkeypatch):
    from llmtrack.host.transformers_compat import SHARES_WITHOUT_CACHE

    if SHARES_WITHOUT_CACHE:
        pytest.skip("this version of transformers computes the same both ways")
    for module in (load, passes):
        monkeypatch.setattr(module, "share_keys", lambda model: None)
    folder = saved(tmp_path / "model", "gemma3n_text", **GEMMA_3N)
    with pytest.raises(ScenarioError, match=r"other logits of Gemma3n.* with its cache") as caught:
        load_engine(folder, device="cpu", dtype="float32")
    assert caught.value.kind == "unsupported"
    assert "\n" not in str(caught.value)


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    "stray",
    [
        {"sliding_window": 8},
        {"attention_chunk_size": 8},
        {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]},
    ],
)
def test_a_window_that_attention_does_not_have_bounds_no_cache(tmp_path, stray):
    folder = saved(tmp_path / "model", "llama", **stray)
    plain = saved(tmp_path / "plain", "llama")
    engine = load_engine(folder, device="cpu", dtype="float32")
    assert score(engine) == pytest.approx(stepwise(plain, ROW), rel=1e-5)
    cached, uncached = texts(engine)
    assert cached == uncached


@pytest.mark.slow(1)
def test_a_cache_with_a_window_of_its_own_is_refused():
    """Found behind the window only, which is within reach of a small model."""
    with pytest.raises(ScenarioError, match="at 64 tokens"):
        small("llama", sliding_window=56)


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("mistral", {"sliding_window": 8}),
        ("gemma2", {"sliding_window": 8, "query_pre_attn_scalar": 4}),
        ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
        ("llama", {}),
        ("gpt2", {}),
    ],
)
def test_windows_that_both_ways_have_are_no_disagreement(architecture, settings):
    assert isinstance(small(architecture, **settings), TorchEngine)
