"""Information about an engine, against values computed by hand: sizes, labels, vocabulary."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tokenizers import processors

from llmtrack.engines.registry import load_variant
from llmtrack.engines.torch import pytorch, step
from llmtrack.engines.torch.pytorch import TorchEngine
from llmtrack.errors import UsageError
from llmtrack.models import synthetic
from llmtrack.spec.scenario import Variant
from tests.engines.models import small

# Llama, width 8, feed-forward 16, 2 heads of 4, 1 of keys, 600 tokens:
# embedding 600 x 8 = 4800; a layer: q 64, k 32, v 32, o 64, three of 8 x 16 = 384, two norms 16: 592; last norm 8.
EMBEDDING, BODY = 4800, 2 * 592 + 8


@pytest.mark.parametrize(("tied", "parameters"), [(True, EMBEDDING + BODY), (False, 2 * EMBEDDING + BODY)])
def test_model_size_counts_tied_weights_once(tied, parameters):
    assert small("llama", tie_word_embeddings=tied).info.model_size_bytes == 4 * parameters


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_reads_the_head_once_and_one_row_of_the_embedding(tied):
    # Tied: the one matrix is the head. Untied: the head, and of the embedding only a row.
    assert small("llama", tie_word_embeddings=tied).info.step_weight_bytes == 4 * (EMBEDDING + BODY)


def test_a_step_reads_one_row_of_learned_positions_too(tiny_gpt2):
    positions = 512 * 128
    assert tiny_gpt2.info.step_weight_bytes == tiny_gpt2.info.model_size_bytes - 4 * positions


def test_kv_cache_of_a_token(tiny, tiny_in_bfloat16, tiny_gpt2):
    # Keys and values of 2 layers, 1 head of 4, 4 bytes each.
    assert small("llama").info.kv_bytes_per_token == 2 * 2 * 1 * 4 * 4
    # tiny: 4 layers, 2 heads of 32; in bfloat16 half of it. tiny-gpt2: 4 layers, 4 heads of 32.
    assert tiny.info.kv_bytes_per_token == 2 * 4 * 2 * 32 * 4
    assert tiny_in_bfloat16.info.kv_bytes_per_token == 2 * 4 * 2 * 32 * 2
    assert tiny_gpt2.info.kv_bytes_per_token == 2 * 4 * 4 * 32 * 4


def test_sizes_halve_in_half_precision(tiny, tiny_in_bfloat16):
    full, half = tiny.info, tiny_in_bfloat16.info
    assert (full.model_size_bytes, full.step_weight_bytes) == (2 * half.model_size_bytes, 2 * half.step_weight_bytes)


@pytest.mark.parametrize(
    ("requested", "label", "dtype"),
    [
        ("float32", "float32", torch.float32),
        ("float16", "float32 (forced on CPU)", torch.float32),
        ("bfloat16", "bfloat16", torch.bfloat16),
    ],
)
def test_dtype_label(requested, label, dtype):
    engine = pytorch.load(Variant("synthetic:tiny", device="cpu", dtype=requested))
    assert engine.info.dtype_label == label
    assert {parameter.dtype for parameter in engine.model.parameters()} == {dtype}


def test_the_dtype_label_follows_the_parameters():
    model, tokenizer = synthetic.build("tiny", device="cpu", dtype=torch.bfloat16)
    engine = TorchEngine(model, tokenizer, dtype_label="float32 (forced on CPU)")
    assert engine.info.dtype_label == "bfloat16"


def test_emulated_arithmetic_gives_a_warning(monkeypatch):
    for emulates, expected in ((True, 1), (False, 0)):
        monkeypatch.setattr(step, "emulates_bfloat16", lambda kind, emulates=emulates: emulates)
        engine = pytorch.load(Variant("synthetic:tiny", device="cpu", dtype="bfloat16"))
        assert sum("no bfloat16 instructions" in warning for warning in engine.info.warnings) == expected


def test_a_model_without_a_pad_token_keeps_its_vocabulary():
    model, tokenizer = synthetic.build("tiny-gpt2", device="cpu", dtype=torch.float32)
    tokens, rows = len(tokenizer), model.get_input_embeddings().weight.shape[0]
    engine = TorchEngine(model, tokenizer)
    assert (tokenizer.pad_token, len(tokenizer)) == (None, tokens)
    assert engine.info.vocab_size == rows == 512


def test_identity_and_context(tiny):
    info = tiny.info
    assert (info.model_id, info.device, info.context_length, info.vocab_size) == ("synthetic:tiny", "cpu", 1024, 512)
    assert info.facts["architecture"] == "LlamaForCausalLM"
    assert info.tags["weights_digest"].startswith("synthetic:")
    assert any("random weights" in warning for warning in info.warnings)


def test_text_round_trip(engine):
    text = "Größe: 5 €, 漢字 🙂"
    ids = engine.encode(text)
    assert ids == list(text.encode())
    assert engine.decode(ids) == text
    assert engine.decode([*ids, engine.tokenizer.eos_token_id]) == text


def test_an_end_token_appended_by_the_tokenizer_is_removed(tiny, monkeypatch):
    appended = processors.TemplateProcessing(single="$A <|pad|>", special_tokens=[("<|pad|>", 258)])
    monkeypatch.setattr(tiny.tokenizer.backend_tokenizer, "post_processor", appended)
    assert tiny.tokenizer("ab")["input_ids"] == [97, 98, 258]
    assert tiny.encode("ab") == [97, 98]


def test_peak_memory_is_of_this_process(tiny):
    tiny.reset_peak_memory()
    peak = tiny.peak_memory_bytes()
    assert peak > tiny.info.model_size_bytes


def test_an_unknown_quantization_is_rejected():
    with pytest.raises(UsageError, match="no quantization 'int8'"):
        load_variant(Variant("synthetic:tiny", quantization="int8"))


def test_the_interface_and_the_scripted_engine_need_no_torch():
    """Checked in a new process, since pytest has imported torch."""
    code = "import sys, llmtrack.engine, llmtrack.engines.scripted; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"
