"""Whatever is wrong with the files of a model folder ends in one line that names the cause and a remedy."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmtrack.errors import ModelLoadError
from llmtrack.host.transformers_compat import TRANSFORMERS_MAJOR
from llmtrack.models import synthetic
from llmtrack.models.load import clean_generation, identify_model
from llmtrack.models.load_errors import POINTER, explaining, reason_of, refuse_damaged
from tests.models.folders import edit, load

CONFIG, WEIGHTS, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
WORDS = "A few words, 12 of them."


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "whole"
    model, tokenizer = synthetic.build("tiny", device="cpu", dtype=torch.float32)
    model.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    return folder


@pytest.fixture
def folder(whole, tmp_path, own_cache):
    return Path(shutil.copytree(whole, tmp_path / "model"))


def linked_to(target):
    def damage(path):
        path.unlink()
        path.symlink_to(target)

    return damage


def a_folder(path):
    path.unlink()
    path.mkdir()


def a_pipe(path):
    path.unlink()
    os.mkfifo(path)


def holding(content):
    return lambda path: path.write_bytes(content)


POINTS = holding(POINTER + b"v1\noid sha256:0\nsize 538090408\n")


def refused(folder, by=load):
    with pytest.raises(ModelLoadError) as caught:
        by(str(folder))
    (line,) = str(caught.value).splitlines()[1:]
    assert ": " in line.removeprefix(f"  {folder}: ")
    return line


@pytest.mark.parametrize(
    ("name", "damage", "told"),
    [
        (WEIGHTS, linked_to("nowhere"), "is a link that leads nowhere: fetch the model again"),
        (CONFIG, linked_to(CONFIG), "is a link that leads nowhere"),
        (TOKENIZER, linked_to("nowhere"), "is a link that leads nowhere"),
        (WEIGHTS, a_folder, "is not a file: fetch the model again"),
        (CONFIG, a_pipe, "is not a file"),
        (WEIGHTS, POINTS, "is a pointer of Git LFS and not the file itself: run `git lfs pull`"),
        (TOKENIZER, POINTS, "is a pointer of Git LFS"),
        ("pytorch_model-00001-of-00002.bin", POINTS, "is a pointer of Git LFS"),
        ("tokenizer.model", POINTS, "is a pointer of Git LFS"),
        (CONFIG, holding(b""), "is damaged"),
        (CONFIG, holding(b"\xff\xfe{\0}\0"), "is damaged"),
        (CONFIG, holding(b"[]"), "is damaged (it holds no settings by name): fetch it again"),
        ("generation_config.json", holding(b"{"), "is damaged"),
        ("tokenizer_config.json", holding(b"[]"), "is damaged"),
        (CONFIG, lambda path: edit(path, eos_token_id="</s>"), "eos_token_id is '</s>', which is no id of a token"),
        (CONFIG, lambda path: edit(path, bos_token_id=True), "bos_token_id is True"),
        ("generation_config.json", lambda path: edit(path, eos_token_id=[1, "x"]), "eos_token_id is [1, 'x']"),
    ],
)  # fmt: skip
def test_a_file_that_is_none_is_named_with_a_remedy_before_a_library_stumbles(folder, name, damage, told):
    damage(folder / name)
    for by in (identify_model, load):
        line = refused(folder, by)
        assert name in line
        assert told in line


@pytest.mark.parametrize("name", [CONFIG, WEIGHTS, "."])
def test_what_may_not_be_read_says_so_and_not_that_it_is_not_there(folder, monkeypatch, name):
    # By a stand-in: the tests may run as a user who may read everything.
    opened, iterdir, denied = Path.open, Path.iterdir, folder / name

    def ask(real, path, *how, **more):
        if path == denied:
            raise PermissionError(13, "Permission denied", str(path))
        return real(path, *how, **more)

    monkeypatch.setattr(Path, "open", lambda path, *how, **more: ask(opened, path, *how, **more))
    monkeypatch.setattr(Path, "iterdir", lambda path: ask(iterdir, path))
    assert f"{denied.name} cannot be read (Permission denied): permit it" in refused(folder)


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
def test_settings_that_nobody_foresaw_say_which_part_cannot_be_used_and_what_to_do(folder, changes):
    edit(folder / CONFIG, **changes)
    line = refused(folder)
    assert "config.json" in line
    assert line.endswith(": fetch the model again, or choose another one")


def test_a_damaged_tokenizer_is_called_one(folder):
    (folder / TOKENIZER).write_text("{")
    assert "its tokenizer cannot be read (" in refused(folder)


def test_a_model_that_the_installed_transformers_does_not_know_is_named(folder):
    edit(folder / CONFIG, model_type="frob")
    assert "transformers knows no model_type frob (config.json): upgrade it" in refused(folder)


def test_a_tokenizer_whose_class_nobody_knows_is_named_or_is_what_its_file_says(folder):
    before = load(folder).tokenizer
    edit(folder / "tokenizer_config.json", tokenizer_class="FrobTokenizer")
    if TRANSFORMERS_MAJOR < 5:  # 5 asks for no class where `tokenizer.json` has all of it
        assert "no tokenizer_class FrobTokenizer" in refused(folder)
    else:
        assert load(folder).tokenizer(WORDS)["input_ids"] == before(WORDS)["input_ids"]


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize("some", ["", "layers.1.mlp.down_proj"])
def test_weights_of_a_dtype_that_nothing_scales_are_refused(folder, dtype, some):
    held = load_file(folder / WEIGHTS)
    held |= {name: tensor.to(dtype) for name, tensor in held.items() if some in name}
    save_file(held, folder / WEIGHTS, metadata={"format": "pt"})
    line = refused(folder)
    assert f"its weights are stored as {str(dtype).removeprefix('torch.')} (" in line
    assert "and config.json names no quantization: choose the model with" in line


def pickled(folder, by=torch.save, **how):
    """Store a folder's weights as a pickle file."""
    by(load_file(folder / WEIGHTS), folder / "pytorch_model.bin", **how)
    (folder / WEIGHTS).unlink()
    return folder / "pytorch_model.bin"


def test_weights_without_scales_are_refused_of_a_pickle_too(folder):
    pickled(folder, lambda held, path: torch.save({name: each.char() for name, each in held.items()}, path))
    assert "its weights are stored as int8 (" in refused(folder)


@pytest.mark.parametrize("archive", [True, False])
def test_a_pickle_loads_in_the_form_of_either_age(folder, archive):
    before = load(folder).model.state_dict()
    pickled(folder, _use_new_zipfile_serialization=archive)
    after = load(folder).model.state_dict()
    assert all(torch.equal(after[name], each) for name, each in before.items())


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        holding(b""),
        holding(b"frob"),
        lambda path: torch.save([torch.ones(1)], path),
        lambda path: torch.save({"model.norm.weight": Path("code")}, path),
    ],
    ids=["cut", "empty", "no pickle", "a list", "code"],
)
def test_a_pickle_that_is_damaged_or_holds_no_weights_says_so(folder, damage):
    damage(pickled(folder))
    assert "its pickle file is damaged, or contains more than weights" in refused(folder)


def test_a_gguf_file_that_is_a_pointer_says_so(own_cache, tmp_path):
    POINTS(tmp_path / "model.gguf")
    assert "model.gguf is a pointer of Git LFS" in refused(tmp_path / "model.gguf")


def test_what_is_beside_a_model_may_be_anything(folder):
    (folder / "README.md").symlink_to("nowhere")
    POINTS(folder / "picture.png")
    (folder / "loop").symlink_to(".")
    (folder / "onnx").mkdir()
    assert load(folder).warnings == ()


@pytest.mark.parametrize(("given", "kept"), [([1, 10**9], [1]), (10**9, None), ([-1], None), (7, 7)])
def test_ids_that_the_model_has_no_row_for_are_forgotten(given, kept):
    model, tokenizer = synthetic.build("tiny", device="cpu", dtype=torch.float32)
    model.generation_config.eos_token_id = given
    clean_generation(model, tokenizer)
    assert model.generation_config.eos_token_id == kept


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
        OSError(12, "Cannot allocate memory"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_machine_that_is_too_small_is_not_taken_for_a_damaged_folder(error):
    with pytest.raises(type(error)) as caught, explaining("it cannot be read"):
        raise error
    assert reason_of(caught.value) == ("this machine has not enough memory: choose a smaller model or a 16-bit dtype")


def test_a_package_that_is_not_installed_is_not_taken_for_a_damaged_folder():
    with pytest.raises(ImportError), explaining("it cannot be read"):
        raise ImportError("needs frob: pip install frob")


@pytest.mark.parametrize("name", ["num_hidden_layers", "n_layer"])
@pytest.mark.parametrize("nested", [False, True])
def test_a_number_of_layers_that_no_model_has_is_refused_at_once(folder, name, nested):
    edit(folder / "config.json", **({"text_config": {name: 10**8}} if nested else {name: 10**8}))
    with pytest.raises(ModelLoadError, match=f"config.json: {name} is 100,000,000, which no model has"):
        refuse_damaged(folder)


def test_settings_that_are_nested_too_deeply_are_damaged(folder):
    (folder / "config.json").write_text('{"a": ' + "[" * 100_000)
    with pytest.raises(ModelLoadError, match=r"config\.json is damaged"):
        refuse_damaged(folder)
