import contextlib
import io
import os
from multiprocessing import SimpleQueue
from pathlib import Path

import pytest
import torch

from llmtrack.errors import ModelLoadError
from llmtrack.models import gguf_conversion
from llmtrack.models.gguf_file import open_gguf, read_metadata
from tests.forking import at_once, processes
from tests.models.folders import load
from tests.models.gguf_writer import BEGIN, END, PAD, TOOL, VOCABULARY, write_gguf

pytestmark = pytest.mark.usefixtures("own_cache")


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
    monkeypatch.setattr(gguf_conversion, "convert_gguf", lambda *_: pytest.fail("converted again"))
    cached = load(path)
    assert cached.digests.weights == loaded.digests.weights
    ids = torch.tensor([[1, 2, 3]])
    torch.testing.assert_close(cached.model(ids).logits, loaded.model(ids).logits)


@pytest.mark.parametrize("pre", ["smollm", "unknown"])
@pytest.mark.parametrize("make", [gguf_conversion.ensure, gguf_conversion.describe])
def test_a_file_is_read_once(tmp_path, monkeypatch, make, pre):
    """Reading the metadata, with a token or a merge at a time, takes most of a small model's conversion."""
    import gguf

    read = []
    start = gguf.GGUFReader.__init__
    monkeypatch.setattr(gguf.GGUFReader, "__init__", lambda self, *given: read.append(given) or start(self, *given))
    reader = gguf.GGUFReader
    make(write_gguf(tmp_path / "x.gguf", pre))
    assert len(read) == 1
    assert gguf.GGUFReader is reader


def test_the_tokenizer_matches_the_metadata(tmp_path):
    tokenizer = load(write_gguf(tmp_path / "x.gguf")).tokenizer
    hello = VOCABULARY.index("hello")
    assert tokenizer("hello")["input_ids"] == [hello]
    assert tokenizer("hello<|end|>")["input_ids"] == [hello, END]
    assert tokenizer("<tool>hello")["input_ids"] == [TOOL, hello]
    ids = tokenizer("hello<|end|><tool>")["input_ids"]
    # A control token is no text, a user-defined one is.
    assert tokenizer.decode(ids, skip_special_tokens=True) == "hello<tool>"
    for text in (" x  y\r\n", "héllo 12 🎉"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


@pytest.mark.parametrize(
    ("pre", "joined"),
    [("smollm", False), ("starcoder", False), ("qwen2", False), ("gpt-2", True), ("olmo", True)],
)
def test_digits_are_split_by_the_pre_tokenizer(tmp_path, pre, joined):
    tokenizer = gguf_conversion.build_tokenizer(read_metadata(open_gguf(write_gguf(tmp_path / "x.gguf", pre))))
    assert (tokenizer.encode("12").tokens == ["12"]) is joined


@pytest.mark.parametrize(("adds", "first"), [(True, BEGIN), (False, VOCABULARY.index("hello"))])
def test_a_bos_token_is_added_only_if_the_file_says_so(tmp_path, adds, first):
    path = write_gguf(tmp_path / "x.gguf", "llama-bpe", add_add_bos_token=adds)
    tokenizer = load(path).tokenizer
    assert tokenizer("hello")["input_ids"][0] == first
    assert tokenizer("hello", add_special_tokens=False)["input_ids"] == [VOCABULARY.index("hello")]


@pytest.mark.slow(1)
def test_an_unknown_pre_tokenizer_falls_back_to_transformers_with_correct_special_tokens(tmp_path):
    tokenizer = load(write_gguf(tmp_path / "x.gguf", "something-new", add_add_bos_token=False)).tokenizer
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (BEGIN, END, PAD)
    assert tokenizer("hello", add_special_tokens=False)["input_ids"] == [VOCABULARY.index("hello")]


@pytest.mark.parametrize("content", [b"", b"not a GGUF file at all", b"GGUF\x03\x00\x00\x00"])
def test_an_invalid_gguf_file_is_refused(tmp_path, content):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises(ModelLoadError, match="cannot be read as GGUF"):
        load(tmp_path / "x.gguf")


def test_a_truncated_file_is_refused(tmp_path):
    path = write_gguf(tmp_path / "x.gguf")
    path.write_bytes(path.read_bytes()[:-50000])
    with pytest.raises(ModelLoadError, match=r"x\.gguf"):
        load(path)


def test_a_too_small_disk_is_detected_before_converting(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "x.gguf")
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(ModelLoadError, match=r"0 MiB are free, and \d+ MiB are needed: .* LLMTRACK_CACHE"):
        load(path)


@pytest.mark.slow(2)
def test_two_processes_convert_a_file_once(tmp_path):
    path = write_gguf(tmp_path / "x.gguf")
    results = processes().SimpleQueue()
    at_once(_convert, path, tmp_path / "cache", results)
    digests, logs = zip(results.get(), results.get(), strict=True)
    assert len(set(digests)) == 1
    assert digests[0].startswith("gguf:")
    assert sum("converting" in log for log in logs) == 1


def _convert(path: Path, cache: Path, results: SimpleQueue) -> None:
    os.environ["LLMTRACK_CACHE"] = str(cache)
    with contextlib.redirect_stderr(io.StringIO()) as log:
        digest = load(path).digests.weights
    results.put((digest, log.getvalue()))
