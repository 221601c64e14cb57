"""What is probed when a float model is loaded: its cache agrees with scoring, and which rows may share a batch."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from llmtrack.engine import GenerateRequest
from llmtrack.engines.registry import load_engine
from llmtrack.engines.torch import pytorch, scoring
from llmtrack.engines.torch.pytorch import TorchEngine
from llmtrack.errors import ScenarioError
from llmtrack.models import load
from llmtrack.models.load import load_model
from llmtrack.quantize.recipe import Recipe
from llmtrack.tensors.padding import pad_rows
from llmtrack.train.loop import sum_cross_entropy
from tests.engines.models import byte_tokenizer, random_model, small

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
    model = random_model(architecture, **{"vocab_size": 600, "head_dim": 8, **settings})
    model.save_pretrained(str(folder))
    byte_tokenizer().save_pretrained(str(folder))
    return str(folder)


def stepwise(folder, row):
    """Return the summed loss of a row, token by token with a cache, by eager attention in float64."""
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
def test_layers_share_keys_without_a_cache(tmp_path):
    folder = saved(tmp_path / "model", "gemma3n_text", **GEMMA_3N)
    engine = load_engine(folder, device="cpu", dtype="float32")
    expected = stepwise(folder, ROW)
    assert score(engine) == pytest.approx(expected, rel=1e-5)
    # Around the window of 8, and crossing it while generating.
    for length in (2, 7, 8, 9, 13):
        cached, uncached = texts(engine, ROW[-length:], 10)
        assert cached == uncached
    # Training and the reference of conversions use the same model.
    model, ids = load_model(folder, device="cpu", dtype=torch.float32).model, torch.tensor([ROW])
    for mode in (model.train(), model.eval()):
        for settings in ({"use_cache": False}, {}):
            logits = mode(input_ids=ids, **settings).logits
            assert float(sum_cross_entropy(logits[:, :-1], ids[:, 1:])) == pytest.approx(expected, rel=1e-5)
    logits.sum().backward()
    assert model.get_input_embeddings().weight.grad is not None


@pytest.mark.slow(2)
def test_a_model_whose_cache_changes_its_logits_is_rejected(tmp_path, monkeypatch):
    from llmtrack.host.transformers_compat import SHARES_WITHOUT_CACHE

    if SHARES_WITHOUT_CACHE:
        pytest.skip("this version of transformers computes the same both ways")
    for module in (load, scoring):
        monkeypatch.setattr(module, "share_keys_without_cache", lambda model: None)
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
def test_a_window_unused_by_attention_does_not_bound_the_cache(tmp_path, stray):
    folder = saved(tmp_path / "model", "llama", **stray)
    plain = saved(tmp_path / "plain", "llama")
    engine = load_engine(folder, device="cpu", dtype="float32")
    assert score(engine) == pytest.approx(stepwise(plain, ROW), rel=1e-5)
    cached, uncached = texts(engine)
    assert cached == uncached


@pytest.mark.slow(1)
def test_a_window_of_the_cache_only_is_rejected():
    """Found only beyond the window, which a small model can reach."""
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
def test_windows_of_cache_and_attention_agree(architecture, settings):
    assert isinstance(small(architecture, **settings), TorchEngine)


UNEQUAL = ((5, 17, 99), (7, 8), (3, 4, 5, 6, 7, 8), (200,))
ROUNDS = "ids with another batch, number of threads or CPU"


def blurred(model):
    """Change each product randomly by up to a tenth: worse than the rounding of 8-bit activations on any CPU."""
    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda _, inputs, output: output * (0.9 + 0.2 * torch.rand(output.shape)))


def one_range(model):
    """Round the inputs of each product to 8 bits by the largest value of the whole batch."""

    def rounded(_, inputs):
        step = inputs[0].abs().max() / 127
        return ((inputs[0] / step).round() * step,)

    for module in model.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_pre_hook(rounded)


def quantized(monkeypatch, apply, **declared):
    recipe = Recipe("stand-in", "torch", "activations", "int8", apply, **declared)
    monkeypatch.setattr(pytorch, "find_recipe", lambda backend, name: recipe)
    return load_engine("synthetic:tiny", device="cpu", quantization="stand-in")


@pytest.mark.slow(1)
@pytest.mark.parametrize("declared", [True, False])
def test_batching_is_probed_before_a_recipe_rounds_activations(monkeypatch, declared):
    engine = quantized(monkeypatch, blurred, rounds_activations=declared)
    assert len(engine.generate(GenerateRequest(UNEQUAL, 3), lambda: None).new_ids) == len(UNEQUAL)
    _, *warnings = engine.info.warnings  # the first says that the weights are random
    assert len(warnings) == declared
    assert all(warning.startswith("stand-in rounds activations") for warning in warnings)
    assert all(warning.endswith(ROUNDS) for warning in warnings)


@pytest.mark.slow(1)
def test_pads_that_change_the_float_model_are_rejected_for_the_quantized_one(monkeypatch):
    original = pytorch.load_model

    def unmasked(_, args, kwargs):
        mask = kwargs.get("attention_mask")
        return args, {**kwargs, "attention_mask": None if mask is None else torch.ones_like(mask)}

    def reading_pads(*args, **kwargs):
        loaded = original(*args, **kwargs)
        loaded.model.base_model.register_forward_pre_hook(unmasked, with_kwargs=True)
        return loaded

    monkeypatch.setattr(pytorch, "load_model", reading_pads)
    engine = quantized(monkeypatch, lambda model: None, rounds_activations=True)
    assert any("left pads change what this model says" in warning for warning in engine.info.warnings)
    with pytest.raises(Exception, match="rows of unequal lengths cannot be generated from in one batch"):
        engine.generate(GenerateRequest(UNEQUAL, 3), lambda: None)


@pytest.mark.slow(1)
def test_an_undeclared_dependence_on_the_batch_is_detected(monkeypatch):
    engine = quantized(monkeypatch, one_range)
    assert "left pads change what this model says" in engine.info.warnings[1]


@pytest.mark.slow(1)
def test_rows_are_scored_alone_if_a_recipe_depends_on_the_batch(monkeypatch):
    engine = quantized(monkeypatch, one_range, depends_on_batch=True)
    _, warning = engine.info.warnings  # the first says that the weights are random
    assert "activation ranges are shared by the whole batch" in warning
    assert "computed one row at a time" in warning
    rows = [[(7 * row + 13 * at) % 250 + 1 for at in range(12)] for row in range(4)]
    alone = [engine.score(*pad_rows([row], 0, "right"))[0].item() for row in rows]
    assert engine.score(*pad_rows(rows, 0, "right"))[0].tolist() == alone
    assert len(engine.generate(GenerateRequest(UNEQUAL, 3), lambda: None).new_ids) == len(UNEQUAL)
