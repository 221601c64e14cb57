"""Decoders with another state, positions, pads or dtypes than a Llama."""

from __future__ import annotations

import math
from itertools import product

import pytest
import torch

from llmtrack.devices import stored_label
from llmtrack.engine import GenerateRequest
from llmtrack.engines.torch import pytorch
from llmtrack.engines.torch.pytorch import TorchEngine
from llmtrack.engines.torch.step import stored_dtypes
from llmtrack.quality.perplexity import score_documents, score_rolling
from llmtrack.spec.scenario import Variant
from llmtrack.tensors.padding import pad_rows
from tests.engines.models import RememberedProbes, byte_tokenizer, random_model

ROWS = ((5, 17, 99, 200, 3), (250, 11, 12, 13, 14))


@pytest.fixture
def folder_of(tmp_path, monkeypatch):
    """Save a small random model of an architecture as a folder."""
    monkeypatch.setenv("LLMTRACK_CACHE", str(tmp_path / "cache"))

    def saved(architecture, tokenizer=None, **settings):
        model = random_model(architecture, **settings)
        model.save_pretrained(str(tmp_path / "model"))
        (tokenizer or byte_tokenizer()).save_pretrained(str(tmp_path / "model"))
        return tmp_path / "model"

    return saved


def load(folder, dtype="float32"):
    return pytorch.load(Variant(str(folder), device="cpu", dtype=dtype))


def plain_loss(model, row):
    """Return the summed loss of a row by a plain call of the model."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([row])).logits[0, :-1].double()
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(row[1:]), reduction="sum"))


STATES = {
    "mamba": {},
    "mamba2": {"num_heads": 4, "head_dim": 8, "n_groups": 1, "state_size": 4, "expand": 2, "chunk_size": 4},
    "falcon_mamba": {},
    "rwkv": {"attention_hidden_size": 16},
    "recurrent_gemma": {"head_dim": 8, "block_types": ["recurrent", "attention"]},
    "jamba": {
        "num_experts": 2,
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "mamba_dt_rank": 2,
    },
    "openai-gpt": {},  # its forward takes no use_cache
}


@pytest.mark.parametrize("architecture", STATES)
def test_models_with_a_recurrent_state(folder_of, architecture):
    engine = load(folder_of(architecture, **STATES[architecture]))
    steps = []
    rows = ROWS[: 1 if architecture == "rwkv" else 2]  # rows of RWKV affect each other
    generated = engine.generate(GenerateRequest(rows, 4), lambda: steps.append(1))
    assert [len(row) for row in generated.new_ids] == [4] * len(rows)
    assert len(steps) == 4
    sums, counts = engine.score(*pad_rows(ROWS, 0, "right"))
    assert counts.tolist() == [4, 4]
    assert sums.tolist() == pytest.approx([plain_loss(engine.model, row) for row in ROWS], rel=1e-4)


@pytest.mark.parametrize("architecture", ["roberta", "camembert", "xlm-roberta-xl", "bert", "electra", "opt"])
def test_positions_start_where_the_model_starts_them(architecture):
    settings = {"opt": {"ffn_dim": 16, "word_embed_proj_dim": 16}}.get(architecture, {})
    model = random_model(architecture, is_decoder=True, **{"pad_token_id": 1, **settings})
    engine = TorchEngine(model, byte_tokenizer(), probe_cache=RememberedProbes())
    rows = (ROWS[0], ROWS[1][:3])
    expected = [plain_loss(model, row) for row in rows]
    for side in ("left", "right"):
        assert engine.score(*pad_rows(rows, 0, side))[0].tolist() == pytest.approx(expected, rel=1e-5), side
    beyond_the_pad = "roberta" in architecture or architecture == "camembert"
    assert engine.info.context_length == (62 if beyond_the_pad else 64)


@pytest.mark.slow(1)
@pytest.mark.parametrize(
    "architecture", ["roberta", "camembert", "data2vec-text", "roberta-prelayernorm", "xlm-roberta", "bert"]
)
def test_generation_with_such_positions_equals_a_plain_loop(architecture):
    model = random_model(architecture, is_decoder=True, pad_token_id=1)
    rows, expected = (ROWS[0], ROWS[1][:3]), []
    for row in rows:
        ids = list(row)
        for _ in range(6):
            with torch.inference_mode():  # without positions: the model counts them itself
                ids.append(int(model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        expected.append(tuple(ids[len(row) :]))
    engines = [TorchEngine(model, byte_tokenizer()) for _ in range(2)]  # a model may become an engine repeatedly
    for engine, batch, use_cache in product(engines, ((0, 1), (0,), (1, 1)), (True, False)):
        request = GenerateRequest(tuple(rows[row] for row in batch), 6, use_cache=use_cache)
        generated = engine.generate(request, lambda: None)
        assert [tuple(row) for row in generated.new_ids] == [expected[row] for row in batch], (batch, use_cache)


@pytest.mark.slow(1)
@pytest.mark.parametrize("pad", [300, 5000, -1])
def test_a_pad_token_outside_the_vocabulary(folder_of, pad):
    tokenizer = byte_tokenizer()
    if pad == 5000:
        tokenizer.add_tokens([f"<extra-{number}>" for number in range(100)])
    tokenizer.add_special_tokens({"pad_token": "<the-pad>"})
    assert tokenizer.pad_token_id >= 300
    folder = folder_of("llama", tokenizer, pad_token_id=None)
    text = (folder / "config.json").read_text().replace('"pad_token_id": null', f'"pad_token_id": {pad}')
    (folder / "config.json").write_text(text)
    engine = load(folder)
    rows = ((5, 17, 99), (250, 11, 12, 13, 14))
    batch = engine.generate(GenerateRequest(rows, 3, ignore_eos=False), lambda: None)
    alone = [engine.generate(GenerateRequest((row,), 3, ignore_eos=False), lambda: None).new_ids[0] for row in rows]
    assert list(batch.new_ids) == alone
    losses = {
        score_documents(engine, ["abc", "defgh"], max_length=32, padding_side=side).loss for side in ("left", "right")
    }
    assert max(losses) == pytest.approx(min(losses), rel=1e-5)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 4.0},
        {"rope_type": "dynamic", "factor": 4.0},
        {"rope_type": "yarn", "factor": 4.0},
        {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
    ],
    ids=lambda rope: rope["rope_type"],
)
def test_a_scaled_context_is_used_up_to_its_scaled_length(rope):
    engine = TorchEngine(random_model("llama", max_position_embeddings=16, rope_scaling=rope), byte_tokenizer())
    assert engine.info.context_length == 64
    assert math.isfinite(score_rolling(engine, ["x" * 100], max_length=64).loss)


@pytest.mark.parametrize("context", [-1, 0])
def test_a_nonpositive_context_length_is_no_limit(context):
    model = random_model("llama")
    model.config.max_position_embeddings = context
    engine = TorchEngine(model, byte_tokenizer(), probe_cache=RememberedProbes())
    assert engine.info.context_length is None
    assert math.isfinite(score_rolling(engine, ["x" * 40], max_length=32).loss)


# Llama of these sizes: 300 x 16 embedding and head; a layer: q 256, k and v 128 each, o 256, three of 384; norms of 16.
WEIGHTS = 2 * 4800 + 2 * (256 + 2 * 128 + 256 + 3 * 384 + 2 * 16) + 16


@pytest.mark.parametrize(
    ("in_float32", "label"),
    [
        ((), "bfloat16"),
        (("norm",), "mixed (bfloat16 {:.1f} %, float32 {:.1f} %)"),
        (("lm_head",), "mixed (bfloat16 {:.1f} %, float32 {:.1f} %)"),
    ],
)
def test_a_model_with_some_float32_weights_is_labelled_mixed(in_float32, label):
    model = random_model("llama").to(torch.bfloat16)
    float32_weights = 0
    for name, module in model.named_modules():
        if in_float32 and name.endswith(in_float32[0]):
            float32_weights += sum(parameter.numel() for parameter in module.to(torch.float32).parameters())
    share = 100 * float32_weights / WEIGHTS
    assert stored_label(stored_dtypes(model), "bfloat16") == label.format(100 - share, share)


def test_8_bit_weights_are_part_of_the_label():
    model = random_model("llama")
    model.model.norm.codes = torch.nn.Parameter(torch.zeros(WEIGHTS, dtype=torch.int8), requires_grad=False)
    assert stored_label(stored_dtypes(model)) == "mixed (float32 50.0 %, int8 50.0 %)"


def test_saved_buffers_count_but_position_tables_do_not():
    model = random_model("llama").to(torch.bfloat16)
    model.register_buffer("router_bias", torch.zeros(WEIGHTS))
    model.register_buffer("places", torch.arange(5 * WEIGHTS))
    assert stored_label(stored_dtypes(model)) == "mixed (bfloat16 50.0 %, float32 50.0 %)"
