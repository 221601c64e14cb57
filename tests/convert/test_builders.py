"""Real converters: of layers of two kinds they say what PyTorch says, and a model that they do not know is named in a line."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from llmtrack.convert import genai, openvino
from llmtrack.engine import GenerateRequest
from llmtrack.engines.registry import load_engine
from llmtrack.errors import ScenarioError
from tests.engines.test_rare_decoders import byte_tokenizer, random_model

pytestmark = pytest.mark.slow(60)

SIZES = {"hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
WINDOW = {"sliding_window": 16}
KINDS = {
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
def folder(tmp_path, monkeypatch):
    """Make a small random model of a kind, in a cache that has the build environments of whoever uses them."""
    made = Path(platformdirs.user_cache_dir("llmtrack"), "environments")
    if made.is_dir():  # making one takes a package index
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache" / "environments").symlink_to(made)
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path / "cache"))

    def make(kind, **settings):
        random_model(kind, **{**SIZES, **settings}).save_pretrained(str(tmp_path / kind))
        byte_tokenizer().save_pretrained(str(tmp_path / kind))
        return str(tmp_path / kind)

    return make


def needed(converter):
    if not converter.environment.made:
        pytest.skip(f"the build environment of {converter.backend} is not made")


@pytest.mark.parametrize("kind", KINDS)
def test_layers_of_two_kinds_say_the_same_below_and_beyond_their_window(folder, kind):
    needed(genai.CONVERTER)
    model = folder(kind, **KINDS[kind])
    engines = [load_engine(model, backend=backend, device="cpu") for backend in ("torch", "genai")]
    for length in (4, 30):
        request = GenerateRequest((tuple(range(5, 5 + length)),), 20)
        expected, found = (engine.generate(request, lambda: None).new_ids for engine in engines)
        assert found == expected


@pytest.mark.parametrize("converter", [genai.CONVERTER, openvino.CONVERTER], ids=lambda each: each.backend)
def test_a_model_that_a_converter_does_not_know_is_one_line_with_a_remedy(folder, converter):
    needed(converter)
    model = folder("gemma3_text", **WINDOW, query_pre_attn_scalar=16)
    with pytest.raises(ScenarioError) as caught:
        load_engine(model, backend=converter.backend, device="cpu")
    words = str(caught.value)
    assert words.endswith(": use backend=torch or onnx")
    if converter is openvino.CONVERTER:  # it knows the model, and not with the transformers that it is pinned to
        assert words.startswith(f"{converter.tool} supports gemma3_text only with transformers ")
    else:
        assert words.startswith(f"{converter.tool} does not support gemma3_text")
