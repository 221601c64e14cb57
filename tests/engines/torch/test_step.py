"""What a decode step reads and computes, by hand: width 8, two layers, two heads of 4, 600 tokens, 4 bytes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import Cache

from llmtrack.engine import CacheGrowth, GenerateRequest, Operations
from llmtrack.engines.step import observe_step as observe_step_for_plugins
from llmtrack.engines.torch.module_state import ModuleState
from llmtrack.engines.torch.step import _tensors, observe_step, operations, stored_tensors
from llmtrack.host.transformers_compat import TRANSFORMERS_MAJOR
from llmtrack.measure.formulas import decode_step_bytes
from tests.engines.models import RememberedProbes, bigram_engine, chain, small

# Keys and values of one head of 4 in 4 bytes: of a layer.
LAYER = 2 * 4 * 4

MOE = {"moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 2}
DEEPSEEK = {
    "num_key_value_heads": 2,
    "head_dim": ...,
    "q_lora_rank": None,
    "kv_lora_rank": 3,
    "qk_nope_head_dim": 6,
    "qk_rope_head_dim": 2,
    "v_head_dim": 5,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 16,
    "first_k_dense_replace": 1,
}
MAMBA = {"mamba_d_state": 4, "mamba_n_heads": 4, "mamba_d_head": 4, "mamba_n_groups": 1}
# transformers 5 keeps other things of some models.
FIVE = TRANSFORMERS_MAJOR >= 5

CACHES = {
    "one head": ("llama", {}, CacheGrowth(2 * LAYER)),
    "two heads": ("llama", {"num_key_value_heads": 2}, CacheGrowth(2 * 2 * LAYER)),
    "a head narrower than width over heads": ("llama", {"head_dim": 2}, CacheGrowth(LAYER)),
    "multi-query": ("gpt_bigcode", {"n_head": 4, "n_embd": 16}, CacheGrowth(2 * LAYER)),
    "multi-query off": ("gpt_bigcode", {"multi_query": False}, CacheGrowth(2 * 2 * LAYER)),
    "falcon, old, one head": ("falcon", {"head_dim": ..., "multi_query": True}, CacheGrowth(2 * LAYER)),
    "falcon, old, all heads": ("falcon", {"head_dim": ..., "multi_query": False}, CacheGrowth(2 * 2 * LAYER)),
    "falcon, new, groups": (
        "falcon",
        {
            "head_dim": ...,
            "new_decoder_architecture": True,
            "hidden_size": 16,
            "num_attention_heads": 4,
            "num_kv_heads": 2,
        },
        # Two heads have keys, which are repeated for all four before they are kept.
        CacheGrowth(2 * 4 * LAYER),
    ),
    "a window in all layers": ("mistral", {"sliding_window": 5}, CacheGrowth(2 * LAYER, ((5, 2 * LAYER),))),
    "a window that is not used": ("qwen2", {"sliding_window": 5, "use_sliding_window": False}, CacheGrowth(2 * LAYER)),
    "a window in every other layer": ("gemma2", {"sliding_window": 4}, CacheGrowth(2 * LAYER, ((4, LAYER),))),
    # Keys of 6 + 2 and values of 5 for each of two heads, and not what the config calls head_dim; or the latent of 3, and
    # the rotated part of 2 that all heads share.
    "latent attention": ("deepseek_v3", DEEPSEEK, CacheGrowth(2 * (3 + 2) * 4 if FIVE else 2 * 2 * (6 + 2 + 5) * 4)),
    # The last two layers read the caches of the first two.
    "layers that share a cache": (
        "gemma3n_text",
        {
            "num_hidden_layers": 4,
            "num_kv_shared_layers": 2,
            "layer_types": ["sliding_attention", "full_attention"] * 2,
            "sliding_window": 4,
            "intermediate_size": [16] * 4,
            "activation_sparsity_pattern": [0.0] * 4,
            "vocab_size_per_layer_input": 600,
            "hidden_size_per_layer_input": 4,
            "laurel_rank": 2,
        },
        CacheGrowth(2 * LAYER, ((4, LAYER),)),
    ),
    # A layer: 4 inputs of a convolution and 3 states for each of 16 channels.
    "mamba": ("mamba", {"state_size": 3}, CacheGrowth(0, (), 2 * 16 * (4 + 3) * 4)),
    "rwkv": ("rwkv", {"attention_hidden_size": 8}, CacheGrowth(0, (), 2 * 5 * 8 * 4)),
    # Layer 0: mamba, 16 channels of 4 inputs and 4 states; layer 1: attention.
    "jamba": (
        "jamba",
        {
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_offset": 1,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "mamba_d_state": 4,
            "mamba_d_conv": 4,
            "use_mamba_kernels": False,
        },
        CacheGrowth(LAYER, (), 16 * (4 + 4) * 4),
    ),
    # The convolution also sees B and C, 4 states each.
    "bamba": ("bamba", {"attn_layer_indices": [1], **MAMBA}, CacheGrowth(LAYER, (), ((16 + 2 * 4) * 4 + 16 * 4) * 4)),
    # Two recurrent layers: a state and 3 inputs for each of 8 channels; the attention has a window of 16, or a cache of 16
    # tokens from the start.
    "recurrent gemma": (
        "recurrent_gemma",
        {"num_hidden_layers": 3, "lru_width": 8, "attention_window_size": 64},
        CacheGrowth(LAYER, ((64, LAYER),), 2 * 8 * (1 + 3) * 4)
        if FIVE
        else CacheGrowth(0, (), 2 * 8 * (1 + 3) * 4 + 64 * LAYER),
    ),
}


@pytest.mark.parametrize("name", CACHES)
def test_cache_growth(name):
    architecture, settings, expected = CACHES[name]
    info = small(architecture, **settings).info
    assert info.cache == expected
    assert info.kv_bytes_per_token == expected.per_token
    assert not any("no decode step could be tried" in warning for warning in info.warnings)


# Bodies: q and o 64, k and v 32; two norms 16; the last norm 8. An expert: three matrices of 8 x 16.
ATTENTION, EXPERT, HEAD = 2 * 64 + 2 * 32, 3 * 8 * 16, 600 * 8

WEIGHTS = {
    # A router of 8 x 8 and two of eight experts.
    "mixtral": ("mixtral", {"num_local_experts": 8}, HEAD + 8 + 2 * (ATTENTION + 16 + 64 + 2 * EXPERT)),
    "one expert of eight": (
        "mixtral",
        {"num_local_experts": 8, "num_experts_per_tok": 1},
        HEAD + 8 + 2 * (ATTENTION + 16 + 64 + EXPERT),
    ),
    # Biases of q, k and v 16; an expert that all tokens share, and its gate of 8.
    "qwen2 moe": (
        "qwen2_moe",
        {**MOE, "shared_expert_intermediate_size": 16},
        HEAD + 8 + 2 * (ATTENTION + 16 + 16 + 64 + 2 * EXPERT + EXPERT + 8),
    ),
    # Norms of query and key: 2 x 4.
    "qwen3 moe": ("qwen3_moe", MOE, HEAD + 8 + 2 * (ATTENTION + 16 + 8 + 64 + 2 * EXPERT)),
    # Experts are slices of one tensor, and those without a row are called with none.
    "granite moe": ("granitemoe", {"num_local_experts": 8}, HEAD + 8 + 2 * (ATTENTION + 16 + 64 + 2 * EXPERT)),
    "olmoe": (
        "olmoe",
        {"num_experts": 8, "num_experts_per_tok": 2},
        # Norms of query (8) and key (4).
        HEAD + 8 + 2 * (ATTENTION + 16 + 12 + 64 + 2 * EXPERT),
    ),
    # Only the second layer has experts.
    "some layers": (
        "qwen3_moe",
        {**MOE, "mlp_only_layers": [0]},
        HEAD + 8 + 2 * (ATTENTION + 16 + 8) + EXPERT + 64 + 2 * EXPERT,
    ),
    "dense, untied": ("llama", {}, HEAD + 8 + 2 * (ATTENTION + 16 + EXPERT)),
    "dense, tied": ("llama", {"tie_word_embeddings": True}, HEAD + 8 + 2 * (ATTENTION + 16 + EXPERT)),
    # Tied: the table of 600 x 8 is the head; of the positions a row is looked up. A layer: 8 x 24 + 24, 8 x 8 + 8,
    # 8 x 32 + 32, 32 x 8 + 8, two norms of 16.
    "gpt2": ("gpt2", {"n_positions": 64}, HEAD + 16 + 2 * (216 + 72 + 288 + 264 + 32)),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_bytes_of_weights_read_by_a_step(name):
    architecture, settings, expected = WEIGHTS[name]
    assert small(architecture, **settings).info.step_weight_bytes == 4 * expected


@pytest.mark.parametrize(
    ("architecture", "settings"), [("mistral", {"sliding_window": 5}), ("gemma2", {"sliding_window": 4}), ("llama", {})]
)
def test_cache_growth_predicts_the_bytes_that_attention_reads(monkeypatch, architecture, settings):
    """Compared with the keys and values that the cache returns in each step, far beyond the window."""
    engine = small(architecture, **settings)
    read: list[int] = []

    def update(cache, *args, **kwargs):
        keys, values = original(cache, *args, **kwargs)
        read.append(keys.nbytes + values.nbytes)
        return keys, values

    original = Cache.update
    monkeypatch.setattr(Cache, "update", update)
    engine.generate(GenerateRequest(((1, 2, 3),), 9), lambda: None)
    steps = [sum(read[at : at + 2]) for at in range(0, len(read), 2)]
    assert steps[1:] == [engine.info.cache.bytes_at(3 + step) for step in range(1, 9)]


def test_step_bytes_are_the_mean_over_steps_with_a_window():
    # 10 bytes a token, 4 of them in layers that keep 6 tokens; 7 bytes of state. Steps at 5, 6, 7 and 8 tokens.
    cache = CacheGrowth(10, ((6, 4),), 7)
    assert [cache.bytes_at(tokens) for tokens in (0, 5, 6, 7, 8)] == [7, 57, 67, 73, 79]
    assert decode_step_bytes(1000, cache, (4,), 5) == 1000 + (57 + 67 + 73 + 79) / 4
    # A second row that is in its window all along: 6 x 3.5 + 4 x 3.5 + 7 on average of 2, 3, 4 and 5 tokens.
    assert decode_step_bytes(1000, cache, (4, 1), 5) == 1000 + 69 + 42
    assert decode_step_bytes(1000, CacheGrowth(0, (), 7), (4, 1), 5) == 1014


def test_a_window_bounds_keys_and_values_but_no_other_state():
    keys, values, inputs = torch.zeros(1, 1, 3, 4), torch.zeros(1, 1, 3, 4), torch.zeros(1, 8, 4)
    layer = SimpleNamespace(is_sliding=True, sliding_window=5, keys=keys, values=values, conv_states={0: inputs})
    windows = {path: window for path, _, window in _tensors([layer], ())}
    assert windows == {("0", "keys"): 5, ("0", "values"): 5, ("0", "conv_states", "0"): None}


def test_a_model_without_a_cache_has_no_growth():
    info = bigram_engine(chain((1, 2), size=8)).info
    assert info.cache == CacheGrowth(0)


def test_a_model_that_cannot_generate_gives_a_warning(monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(type(small("llama").model), "generate", broken)
    monkeypatch.setattr(RememberedProbes, "answers", {})
    info = small("llama").info
    assert info.kv_bytes_per_token == 0
    assert any("no decode step could be tried (no such kernel)" in warning for warning in info.warnings)


def test_observing_a_step_leaves_no_hook():
    model = small("mixtral").model
    assert not model._forward_hooks
    assert not model._forward_pre_hooks
    assert observe_step(model, ModuleState(model)) == observe_step(model, ModuleState(model))


def test_plugins_observe_a_step_with_the_model_alone():
    model = small("mixtral").model
    assert observe_step_for_plugins(model) == observe_step(model, ModuleState(model))


def test_packed_tensors_count_once():
    packed = TwoTensor(torch.zeros(3, 4), torch.zeros(3, 4, dtype=torch.float32))
    assert [tensor.nbytes for tensor in stored_tensors([packed, torch.zeros(2)])] == [48, 48, 8]


def test_info_combines_its_cache(tiny):
    info = replace(tiny.info, kv_bytes_per_token=8, kv_windows=((2, 8),), state_bytes=5)
    assert info.cache.bytes_at(10) == 21


def test_rotary_tables_are_not_weights_of_a_graph(tmp_path):
    onnx = pytest.importorskip("onnx", reason="needs the onnx extra")
    from llmtrack.engines.onnx import weight_sizes

    arrays = {"table": (6, 4), "head": (4, 6), "cos": (64, 2), "sin": (64, 2)}
    graph = onnx.helper.make_graph(
        [
            onnx.helper.make_node("Gather", ["table", "ids"], ["hidden"]),
            onnx.helper.make_node("RotaryEmbedding", ["hidden", "ids", "cos", "sin"], ["turned"]),
            onnx.helper.make_node("MatMul", ["turned", "head"], ["logits"]),
        ],
        "graph",
        [onnx.helper.make_tensor_value_info("ids", onnx.TensorProto.INT64, [1, 3])],
        [onnx.helper.make_tensor_value_info("logits", onnx.TensorProto.FLOAT, [1, 3, 6])],
        [onnx.numpy_helper.from_array(torch.zeros(shape).numpy(), name) for name, shape in arrays.items()],
    )
    onnx.save(onnx.helper.make_model(graph), str(tmp_path / "model.onnx"))
    assert weight_sizes(tmp_path / "model.onnx") == (4 * (24 + 24), 4 * 24)


F = torch.nn.functional
ONE = torch.ones

CALLS = {
    "linear": (lambda: F.linear(ONE(2, 3, 4), ONE(5, 4), ONE(5)), 2 * 2 * 3 * 5 * 4),
    "mm": (lambda: torch.mm(ONE(2, 3), ONE(3, 4)), 2 * 2 * 4 * 3),
    "addmm": (lambda: torch.addmm(ONE(4), ONE(2, 3), ONE(3, 4)), 2 * 2 * 4 * 3),
    "bmm": (lambda: torch.bmm(ONE(5, 2, 3), ONE(5, 3, 4)), 5 * 2 * 2 * 4 * 3),
    "matmul of a vector": (lambda: ONE(2, 3) @ ONE(3), 2 * 2 * 3),
    "an outer product sums nothing up": (lambda: ONE(2, 1) @ ONE(1, 3), 0),
    "no rows": (lambda: torch.mm(ONE(0, 3), ONE(3, 4)), 0),
    "einsum": (lambda: torch.einsum("bij,bjk->bik", ONE(2, 3, 4), ONE(2, 4, 5)), 2 * 2 * 3 * 4 * 5),
    "attention": (
        # 2 rows, 3 heads, 4 queries, 5 keys, heads of 6: twice 2 x 3 x 4 x 5 x 6 multiply-adds.
        lambda: F.scaled_dot_product_attention(ONE(2, 3, 4, 6), ONE(2, 3, 5, 6), ONE(2, 3, 5, 6)),
        2 * 2 * (2 * 3 * 4 * 5 * 6),
    ),
    "convolution": (lambda: F.conv1d(ONE(1, 4, 10), ONE(8, 2, 3), groups=2), 2 * 8 * 8 * 2 * 3),
    "sums and copies": (lambda: (ONE(3, 3) + ONE(3, 3)).sum().clone(), 0),
}


@pytest.mark.parametrize("inference", [True, False], ids=["inference", "plain"])
@pytest.mark.parametrize("name", CALLS)
def test_operations_of_a_call(name, inference):
    call, expected = CALLS[name]
    counts = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            outputs = result if isinstance(result, tuple) else (result,)
            tensors = [output for output in outputs if torch.is_tensor(output)]
            counts.append(operations(func.overloadpacket.__name__, args, tensors))
            return result

    with torch.inference_mode(inference), Watch():
        call()
    assert sum(counts) == expected


# Width 8, two layers, two heads of 4: q and o 64, k and v 32, an MLP of three matrices of 8 x 16; 600 tokens.
# Of each token attended to: a product with its key and one with its value, two heads of 4, two layers.
CONTEXT = 2 * 2 * (2 * 4) * 2

MODELS = {
    "dense": ("llama", {}, Operations(2 * (HEAD + 2 * (ATTENTION + EXPERT)), CONTEXT, 2 * HEAD)),
    "tied": (
        "llama",
        {"tie_word_embeddings": True},
        Operations(2 * (HEAD + 2 * (ATTENTION + EXPERT)), CONTEXT, 2 * HEAD),
    ),
    "two heads of keys": (
        "llama",
        {"num_key_value_heads": 2},
        Operations(2 * (HEAD + 2 * (4 * 64 + EXPERT)), CONTEXT, 2 * HEAD),
    ),
    # 8 x 24, 8 x 8, 8 x 32 and 32 x 8, kept transposed.
    "gpt2": ("gpt2", {"n_positions": 64}, Operations(2 * (HEAD + 2 * (192 + 64 + 256 + 256)), CONTEXT, 2 * HEAD)),
    # A router of 8 x 8, and two of eight experts.
    "mixtral": (
        "mixtral",
        {"num_local_experts": 8},
        Operations(2 * (HEAD + 2 * (ATTENTION + 64 + 2 * EXPERT)), CONTEXT, 2 * HEAD),
    ),
    "qwen3 moe": (
        "qwen3_moe",
        {"moe_intermediate_size": 16, "num_experts": 8, "num_experts_per_tok": 2},
        Operations(2 * (HEAD + 2 * (ATTENTION + 64 + 2 * EXPERT)), CONTEXT, 2 * HEAD),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_operations_of_a_step(name):
    architecture, settings, expected = MODELS[name]
    info = small(architecture, **settings).info
    assert info.operations == expected
    assert info.arithmetic == "float32"


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_operations_do_not_depend_on_the_attention_implementation(attention):
    assert small("llama", attn_implementation=attention).info.operations == MODELS["dense"][2]
