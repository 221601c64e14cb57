"""Weight files are found as loading reads them; those that cannot be used are refused in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmtrack.models.digests import folder_digest
from llmtrack.models.weights import weight_files
from tests.models.folders import load, refusal

WEIGHTS = "model.safetensors"

pytestmark = pytest.mark.usefixtures("own_cache")


def write_bytes(content):
    return lambda path: path.write_bytes(content)


def shard(folder, parts=2):
    """Split a folder's weights into files with an index."""
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    weight_map = {}
    for part in range(parts):
        name = f"model-{part + 1:05d}-of-{parts:05d}.safetensors"
        shard_weights = {key: weights[key] for key in sorted(weights)[part::parts]}
        weight_map |= dict.fromkeys(shard_weights, name)
        save_file(shard_weights, folder / name, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_only_files_that_are_read_are_counted_and_digested(folder, tmp_path):
    shard(folder)
    copy = shutil.copytree(folder, tmp_path / "copy")
    before, digest = load(folder), folder_digest(folder)
    for name in (
        "consolidated.safetensors",
        "consolidated.00.pth",
        "pytorch_model.bin",
        "model-00003-of-00003.safetensors",
    ):
        (folder / name).write_bytes(b"something else entirely")
    (folder / "original").mkdir()
    (folder / "original" / "consolidated.00.pth").write_bytes(b"x")
    after = load(folder)
    assert weight_files(folder)[1] == [folder / f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    assert (after.file_size_bytes, after.digests.weights) == (before.file_size_bytes, digest)
    assert folder_digest(copy) == digest


def test_a_single_file_precedes_an_index(folder):
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    assert weight_files(folder) == ("safetensors", [folder / "model.safetensors"])
    load(folder)


def test_a_pickle_is_used_despite_unrelated_safetensors(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")
    assert weight_files(folder) == ("pickle", [folder / "pytorch_model.bin"])
    assert load(folder).facts["weights_format"] == "pickle"


def test_an_index_naming_missing_or_no_files_is_refused(folder):
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "1 of 2 files are missing" in refusal(folder)
    for content in ("{}", "[]", '{"weight_map": {"a": 1}}', '{"weight_map": {"a": null, "b": "c"}}'):
        (folder / "model.safetensors.index.json").write_text(content)
        assert "model.safetensors.index.json is damaged" in refusal(folder)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int32, torch.bool, torch.float8_e4m3fn])
@pytest.mark.parametrize("layer", ["", "layers.1.mlp.down_proj"])
def test_weights_of_a_dtype_without_scales_are_refused(folder, dtype, layer):
    weights = load_file(folder / WEIGHTS)
    weights |= {name: tensor.to(dtype) for name, tensor in weights.items() if layer in name}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    line = refusal(folder)
    assert f"its weights are stored as {str(dtype).removeprefix('torch.')} (" in line
    assert "and config.json names no quantization: choose the model with" in line


def pickled(folder, save=torch.save, **options):
    """Store a folder's weights as a pickle file."""
    save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin", **options)
    (folder / WEIGHTS).unlink()
    return folder / "pytorch_model.bin"


def test_pickled_weights_without_scales_are_refused(folder):
    pickled(folder, lambda weights, path: torch.save({name: tensor.char() for name, tensor in weights.items()}, path))
    assert "its weights are stored as int8 (" in refusal(folder)


@pytest.mark.parametrize("archive", [True, False])
def test_a_pickle_loads_in_both_formats(folder, archive):
    before = load(folder).model.state_dict()
    pickled(folder, _use_new_zipfile_serialization=archive)
    after = load(folder).model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        write_bytes(b""),
        write_bytes(b"frob"),
        lambda path: torch.save([torch.ones(1)], path),
        lambda path: torch.save({"model.norm.weight": Path("code")}, path),
    ],
    ids=["cut", "empty", "no pickle", "a list", "code"],
)
def test_a_pickle_that_is_damaged_or_contains_more_than_weights_is_refused(folder, damage):
    damage(pickled(folder))
    assert "its pickle file is damaged, or contains more than weights" in refusal(folder)
