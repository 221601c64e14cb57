"""Any damage of a model folder is one line with cause and remedy."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from llmtrack.errors import ModelLoadError
from llmtrack.host.transformers_compat import TRANSFORMERS_MAJOR
from llmtrack.models.load import identify_model
from llmtrack.models.load_errors import POINTER, explaining, reason_of, refuse_damaged
from tests.models.folders import edit, load, refusal

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
WORDS = "A few words, 12 of them."


pytestmark = pytest.mark.usefixtures("own_cache")


def link_to(target):
    def damage(path):
        path.unlink()
        path.symlink_to(target)

    return damage


def replace_by_folder(path):
    path.unlink()
    path.mkdir()


def replace_by_pipe(path):
    path.unlink()
    os.mkfifo(path)


def write(content):
    return lambda path: path.write_bytes(content)


write_pointer = write(POINTER + b"v1\noid sha256:0\nsize 538090408\n")


@pytest.mark.parametrize(
    ("name", "damage", "message"),
    [
        (WEIGHTS, link_to("nowhere"), "is a dangling link: fetch the model again"),
        (CONFIG, link_to(CONFIG), "is a dangling link"),
        (TOKENIZER, link_to("nowhere"), "is a dangling link"),
        (WEIGHTS, replace_by_folder, "is not a file: fetch the model again"),
        (CONFIG, replace_by_pipe, "is not a file"),
        (WEIGHTS, write_pointer, "is a pointer of Git LFS and not the file itself: run `git lfs pull`"),
        (TOKENIZER, write_pointer, "is a pointer of Git LFS"),
        ("pytorch_model-00001-of-00002.bin", write_pointer, "is a pointer of Git LFS"),
        ("tokenizer.model", write_pointer, "is a pointer of Git LFS"),
        (CONFIG, write(b""), "is damaged"),
        (CONFIG, write(b"\xff\xfe{\0}\0"), "is damaged"),
        (CONFIG, write(b"[]"), "is damaged (it is not a JSON object): fetch it again"),
        ("generation_config.json", write(b"{"), "is damaged"),
        ("tokenizer_config.json", write(b"[]"), "is damaged"),
        (CONFIG, lambda path: edit(path, eos_token_id="</s>"), "eos_token_id is '</s>', which is not a token id"),
        (CONFIG, lambda path: edit(path, bos_token_id=True), "bos_token_id is True"),
        ("generation_config.json", lambda path: edit(path, eos_token_id=[1, "x"]), "eos_token_id is [1, 'x']"),
    ],
)  # fmt: skip
def test_a_damaged_file_is_named_with_a_remedy(folder, name, damage, message):
    damage(folder / name)
    for read in (identify_model, load):
        line = refusal(folder, read)
        assert name in line
        assert message in line


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, "."])
def test_an_unreadable_file_is_not_reported_as_missing(folder, monkeypatch, name):
    # By a stand-in, as the tests may run as root.
    original_open, original_iterdir, denied = Path.open, Path.iterdir, folder / name

    def read(original, path, *args, **kwargs):
        if path == denied:
            raise PermissionError(13, "Permission denied", str(path))
        return original(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", lambda path, *args, **kwargs: read(original_open, path, *args, **kwargs))
    monkeypatch.setattr(Path, "iterdir", lambda path: read(original_iterdir, path))
    assert f"{denied.name} cannot be read (Permission denied): change its permissions" in refusal(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_act": "frob"},
        {"num_attention_heads": 0},
        {"hidden_size": None},
        {"rms_norm_eps": None},
        {"dtype": "float99", "torch_dtype": "float99"},
        {"quantization_config": "frob"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_unexpected_settings_name_the_failing_part_and_a_remedy(folder, changes):
    edit(folder / CONFIG, **changes)
    line = refusal(folder)
    assert "config.json" in line
    assert line.endswith(": fetch the model again, or choose another one")


def test_a_damaged_tokenizer_is_named(folder):
    (folder / TOKENIZER).write_text("{")
    assert "its tokenizer cannot be read (" in refusal(folder)


def test_an_unknown_model_type_is_named(folder):
    edit(folder / CONFIG, model_type="frob")
    assert "transformers knows no model_type frob (config.json): upgrade it" in refusal(folder)


def test_an_unknown_tokenizer_class_is_named_or_replaced_by_its_file(folder):
    before = load(folder).tokenizer
    edit(folder / "tokenizer_config.json", tokenizer_class="FrobTokenizer")
    if TRANSFORMERS_MAJOR < 5:  # version 5 needs no class beside `tokenizer.json`
        assert "no tokenizer_class FrobTokenizer" in refusal(folder)
    else:
        assert load(folder).tokenizer(WORDS)["input_ids"] == before(WORDS)["input_ids"]


def test_a_gguf_file_that_is_a_git_lfs_pointer_is_named(own_cache, tmp_path):
    write_pointer(tmp_path / "model.gguf")
    assert "model.gguf is a pointer of Git LFS" in refusal(tmp_path / "model.gguf")


def test_unrelated_files_are_ignored(folder):
    (folder / "README.md").symlink_to("nowhere")
    write_pointer(folder / "picture.png")
    (folder / "loop").symlink_to(".")
    (folder / "onnx").mkdir()
    assert load(folder).warnings == ()


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        OSError(12, "Cannot allocate memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_lack_of_memory_is_not_reported_as_a_damaged_folder(error):
    with pytest.raises(type(error)) as caught, explaining("it cannot be read"):
        raise error
    assert reason_of(caught.value) == ("this machine has not enough memory: choose a smaller model or a 16-bit dtype")


def test_a_missing_package_is_not_reported_as_a_damaged_folder():
    with pytest.raises(ImportError), explaining("it cannot be read"):
        raise ImportError("needs frob: pip install frob")


@pytest.mark.parametrize("name", ["num_hidden_layers", "n_layer"])
@pytest.mark.parametrize("nested", [False, True])
def test_an_absurd_number_of_layers_is_refused(folder, name, nested):
    edit(folder / "config.json", **({"text_config": {name: 10**8}} if nested else {name: 10**8}))
    with pytest.raises(ModelLoadError, match=f"config.json: {name} is 100,000,000, which no model has"):
        refuse_damaged(folder)


def test_too_deeply_nested_settings_are_refused(folder):
    (folder / "config.json").write_text('{"a": ' + "[" * 100_000)
    with pytest.raises(ModelLoadError, match=r"config\.json is damaged"):
        refuse_damaged(folder)
