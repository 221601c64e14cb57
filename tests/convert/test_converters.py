"""Real converters handle layers of two kinds like PyTorch, and name an unsupported model in one line."""

from __future__ import annotations

import pytest

from llmtrack.convert import genai, openvino
from llmtrack.engine import GenerateRequest
from llmtrack.engines.registry import load_engine
from llmtrack.errors import ScenarioError
from tests.engines.models import byte_tokenizer, random_model

pytestmark = pytest.mark.slow(60)

SIZES = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
WINDOW = {"sliding_window": 16}
ARCHITECTURES = {
    "gemma2": {**WINDOW, "query_pre_attn_scalar": 16},
    "qwen2": {**WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    "gpt_oss": {
        **WINDOW,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "layer_types": ["sliding_attention", "full_attention"],
    },
}


@pytest.fixture
def folder(users_environments, tmp_path):
    """Save a small random model of an architecture."""

    def save(architecture, **settings):
        random_model(architecture, **{**SIZES, **settings}).save_pretrained(str(tmp_path / architecture))
        byte_tokenizer().save_pretrained(str(tmp_path / architecture))
        return str(tmp_path / architecture)

    return save


def require_environment(converter):
    if not converter.environment.is_complete:
        pytest.skip(f"the build environment of {converter.backend} does not exist")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sliding_and_full_layers_match_pytorch_below_and_beyond_the_window(folder, architecture):
    require_environment(genai.CONVERTER)
    model = folder(architecture, **ARCHITECTURES[architecture])
    engines = [load_engine(model, backend=backend, device="cpu") for backend in ("torch", "genai")]
    for length in (4, 30):
        request = GenerateRequest((tuple(range(5, 5 + length)),), 20)
        expected, generated = (engine.generate(request, lambda: None).new_ids for engine in engines)
        assert generated == expected


@pytest.mark.parametrize("converter", [genai.CONVERTER, openvino.CONVERTER], ids=lambda converter: converter.backend)
def test_an_unsupported_model_is_one_line_with_a_remedy(folder, converter):
    require_environment(converter)
    model = folder("gemma3_text", **WINDOW, query_pre_attn_scalar=16)
    with pytest.raises(ScenarioError) as caught:
        load_engine(model, backend=converter.backend, device="cpu")
    message = str(caught.value)
    assert message.endswith(": use backend=torch or onnx")
    if converter is openvino.CONVERTER:  # it supports the model, but not with its pinned transformers
        assert message.startswith(f"{converter.tool} supports gemma3_text only with transformers ")
    else:
        assert message.startswith(f"{converter.tool} does not support gemma3_text")
