import contextlib
import io
import os
from multiprocessing import SimpleQueue
from pathlib import Path

import numpy as np
import pytest
import torch

from llmtrack.errors import ModelLoadError
from llmtrack.models import gguf
from llmtrack.models.bytelevel import byte_symbols
from tests.forking import at_once, processes
from tests.models.folders import load

WIDTH, INNER, LAYERS, HEADS = 64, 128, 2, 2
SPECIALS = ["<|begin|>", "<|end|>", "<|pad|>", "<tool>"]
MERGES = ["h e", "l l", "he ll", "hell o", "1 2", "Ġ x"]
VOCABULARY = [*byte_symbols(), *(merge.replace(" ", "") for merge in MERGES), *SPECIALS]
BEGIN, END, PAD, TOOL = range(len(VOCABULARY) - 4, len(VOCABULARY))

pytestmark = pytest.mark.usefixtures("own_cache")


def write_gguf(path, pre="smollm", **metadata):
    from gguf import GGUFWriter

    writer = GGUFWriter(str(path), "llama")
    writer.add_block_count(LAYERS)
    writer.add_context_length(256)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(50000.0)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(VOCABULARY)
    writer.add_token_types([1] * (len(VOCABULARY) - 4) + [3, 3, 3, 4])
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(BEGIN)
    writer.add_eos_token_id(END)
    writer.add_pad_token_id(PAD)
    for key, value in metadata.items():
        getattr(writer, key)(value)
    random = np.random.default_rng(0)
    shapes = {
        "token_embd": (len(VOCABULARY), WIDTH),
        "output": (len(VOCABULARY), WIDTH),
        "output_norm": (WIDTH,),
    }
    for layer in range(LAYERS):
        for name, shape in {
            **{f"attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")},
            "ffn_gate": (INNER, WIDTH),
            "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER),
            "attn_norm": (WIDTH,),
            "ffn_norm": (WIDTH,),
        }.items():
            shapes[f"blk.{layer}.{name}"] = shape
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", random.normal(0, 0.1, shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.mark.slow(1)
def test_a_gguf_file_becomes_an_ordinary_model_once(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "my model.gguf")
    loaded = load(path)
    assert loaded.digests.weights.startswith("gguf:")
    assert loaded.facts["weights_format"] == "safetensors"
    assert loaded.model.config.max_position_embeddings == 256
    expected = 50000.0 ** -(torch.arange(0, 32, 2) / 32)
    torch.testing.assert_close(loaded.model.model.rotary_emb.inv_freq, expected)
    config = loaded.model.generation_config
    assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (BEGIN, END, PAD)
    monkeypatch.setattr(gguf, "convert_gguf", lambda *_: pytest.fail("converted again"))
    again = load(path)
    assert again.digests.weights == loaded.digests.weights
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(again.model(ids).logits, loaded.model(ids).logits)


def test_the_tokenizer_follows_the_metadata(tmp_path):
    tokenizer = load(write_gguf(tmp_path / "x.gguf")).tokenizer
    hello = VOCABULARY.index("hello")
    assert tokenizer("hello")["input_ids"] == [hello]
    assert tokenizer("hello<|end|>")["input_ids"] == [hello, END]
    assert tokenizer("<tool>hello")["input_ids"] == [TOOL, hello]
    ids = tokenizer("hello<|end|><tool>")["input_ids"]
    # A control token is dropped from the text, a user-defined one is text.
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hello<tool>"
    for text in (" x  y\r\n", "héllo 12 🎉"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize(
    ("pre", "joined"),
    [("smollm", False), ("starcoder", False), ("qwen2", False), ("gpt-2", True), ("olmo", True)],
)
def test_digits_are_split_as_the_pre_tokenizer_says(tmp_path, pre, joined):
    tokenizer = gguf.build_tokenizer(gguf.read_metadata(gguf.open_gguf(write_gguf(tmp_path / "x.gguf", pre))))
    assert (tokenizer.encode("12").tokens == ["12"]) is joined


@pytest.mark.parametrize(("adds", "first"), [(True, BEGIN), (False, VOCABULARY.index("hello"))])
def test_a_bos_token_is_added_only_where_the_file_says_so(tmp_path, adds, first):
    path = write_gguf(tmp_path / "x.gguf", "llama-bpe", add_add_bos_token=adds)
    tokenizer = load(path).tokenizer
    assert tokenizer("hello")["input_ids"][0] == first
    assert tokenizer("hello", add_special_tokens=False)["input_ids"] == [VOCABULARY.index("hello")]


@pytest.mark.slow(1)
def test_an_unknown_pre_tokenizer_falls_back_to_transformers_with_the_right_special_tokens(tmp_path):
    tokenizer = load(write_gguf(tmp_path / "x.gguf", "something-new", add_add_bos_token=False)).tokenizer
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (BEGIN, END, PAD)
    assert tokenizer("hello", add_special_tokens=False)["input_ids"] == [VOCABULARY.index("hello")]


@pytest.mark.parametrize("content", [b"", b"not a GGUF file at all", b"GGUF\x03\x00\x00\x00"])
def test_what_is_no_gguf_file_is_said(tmp_path, content):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelLoadError, match="cannot be read as GGUF"):
        load(tmp_path / "x.gguf")


def test_a_truncated_file_is_no_model(tmp_path):
    path = write_gguf(tmp_path / "x.gguf")
    path.write_bytes(path.read_bytes()[:-50000])
    with pytest.raises(ModelLoadError, match=r"x\.gguf"):
        load(path)


def test_a_disk_that_is_too_small_is_noticed_first(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "x.gguf")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(ModelLoadError, match=r"0 MiB are free, and \d+ MiB are needed: .* LLMTRACK_CACHE"):
        load(path)


@pytest.mark.slow(2)
def test_two_processes_convert_a_file_once(tmp_path):
    path = write_gguf(tmp_path / "x.gguf")
    said = processes().SimpleQueue()
    at_once(_convert, path, tmp_path / "cache", said)
    digests, logs = zip(said.get(), said.get(), strict=True)
    assert len(set(digests)) == 1
    assert digests[0].startswith("gguf:")
    assert sum("converting" in log for log in logs) == 1


def _convert(path: Path, cache: Path, said: SimpleQueue) -> None:
    os.environ["LLMTRACK_CACHE"] = str(cache)
    with contextlib.redirect_stderr(io.StringIO()) as log:
        digest = load(path).digests.weights
    said.put((digest, log.getvalue()))
