"""The arithmetic of operators and of models, against numbers worked out by hand."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from llmtrack.engine import Operations
from llmtrack.engines.torch.operations import operations
from tests.engines.models import small

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
def test_the_operations_of_a_call(name, inference):
    call, expected = CALLS[name]
    found = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            made = [each for each in (result if isinstance(result, tuple) else (result,)) if torch.is_tensor(each)]
            found.append(operations(func.overloadpacket.__name__, args, made))
            return result

    with torch.inference_mode(inference), Watch():
        call()
    assert sum(found) == expected


# Width 8, two layers, two heads of 4: q and o 64, k and v 32, an MLP of three matrices of 8 x 16; 600 tokens.
ATTENTION, EXPERT, HEAD = 2 * 64 + 2 * 32, 3 * 8 * 16, 600 * 8
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
    "gpt2": (
        "gpt2",
        {"n_positions": 64},
        Operations(2 * (HEAD + 2 * (192 + 64 + 256 + 256)), CONTEXT, 2 * HEAD),
    ),
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
def test_the_operations_of_a_step(name):
    architecture, settings, expected = MODELS[name]
    info = small(architecture, **settings).info
    assert info.operations == expected
    assert info.arithmetic == "float32"


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_they_are_the_same_however_attention_is_computed(attention):
    assert small("llama", attn_implementation=attention).info.operations == MODELS["dense"][2]
