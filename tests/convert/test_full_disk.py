"""Everything that writes a model reports a full disk in one line, before it starts and midway."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections import namedtuple
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from llmtrack.convert import genai, openvino
from llmtrack.convert.conversion import convert_folder
from llmtrack.convert.environment import BuildEnvironment
from llmtrack.errors import ModelLoadError
from llmtrack.host.formatting import MIB
from llmtrack.models import hub
from llmtrack.models.digests import ModelDigests
from llmtrack.models.disk import Weights, count_weights
from llmtrack.models.folder import ModelFolder, model_folder
from llmtrack.models.load import ModelIdentity
from llmtrack.models.source import PRESETS, parse_candidates
from llmtrack.quantize import build, gguf
from llmtrack.quantize.recipe import find_recipe
from llmtrack.run.executors.ray.files import Parcel, unpack
from llmtrack.spec.scenario import Variant
from llmtrack.train import checkpoint

Usage = namedtuple("Usage", "total used free")
WEIGHTS = 30 * MIB
"""Of a model whose float32 weights take 120 MiB."""


@pytest.fixture
def free(own_cache, tmp_path, monkeypatch):
    """Set the free MiB of the cache's disk; other disks have plenty."""
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    cache_disk: dict[str, float] = {"MiB": 14}

    def usage(path):
        return Usage(0, 0, int(cache_disk["MiB"] * MIB) if Path(path).is_relative_to(tmp_path) else 2**40)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    return cache_disk


@pytest.fixture
def model(tmp_path):
    """A folder with `WEIGHTS` float16 weights by its header, a third of them an embedding that is not the head."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "llama", "vocab_size": 300}')
    names = ("model.embed_tokens.weight", "model.layers.0.mlp.up_proj.weight", "lm_head.weight")
    entry = {"dtype": "F16", "shape": [10 * 1024, 1024], "data_offsets": [0, 0]}
    header = json.dumps({"__metadata__": {}, **dict.fromkeys(names, entry)}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    return folder


def never(*args, **kwargs):
    raise AssertionError("it was started")


def by_tool(converter, recipe):
    def make(model, monkeypatch):
        monkeypatch.setattr(BuildEnvironment, "python", never)
        bits = find_recipe(converter.backend, recipe).bits if recipe else 32
        convert_folder(converter, ModelFolder(model, "model"), [], recipe or "float32", bits, never)

    return make


def to_onnx(recipe):
    def make(model, monkeypatch):
        source = parse_candidates(str(model))[0]
        identity = ModelIdentity(source, model, None, ModelDigests("w", "c", "t"))
        monkeypatch.setattr(build, "require_onnx", lambda quantization: None)
        monkeypatch.setattr(build, "build_isolated", never)
        build.onnx_folder(Variant(str(model), backend="onnx", quantization=recipe), identity)

    return make


def to_gguf(recipe):
    def make(model, monkeypatch):
        monkeypatch.setattr(gguf, "converter", lambda: model)
        monkeypatch.setattr(gguf, "build_isolated", never)
        gguf.gguf_of(ModelFolder(model, "model"), recipe)

    return make


def write_synthetic(model, monkeypatch):
    monkeypatch.setattr("llmtrack.models.folder._save_synthetic", never)
    model_folder("synthetic:smollm2-135m")


def download(model, monkeypatch):
    files = {"config.json": 100, "tokenizer.json": 100, "model.safetensors": 60 * MIB, "pytorch_model.bin": 60 * MIB}
    info = SimpleNamespace(sha="0" * 40, siblings=[SimpleNamespace(rfilename=n, size=s) for n, s in files.items()])
    monkeypatch.setattr("huggingface_hub.HfApi.model_info", lambda *_, **__: info)
    monkeypatch.setattr("huggingface_hub.snapshot_download", never)
    hub.snapshot("org/model")


def receive(model, monkeypatch):
    unpack(Parcel("m", str(model / "gone"), "0" * 64, 60 * MIB, object()), never)


WRITERS = {
    "genai": (by_tool(genai.CONVERTER, ""), 120),
    "genai int8": (by_tool(genai.CONVERTER, "int8"), 60),
    "genai int4": (by_tool(genai.CONVERTER, "int4"), 50),
    "openvino": (by_tool(openvino.CONVERTER, ""), 120),
    "openvino int4": (by_tool(openvino.CONVERTER, "int4"), 140),  # by way of float32
    "onnx": (to_onnx("none"), 120),
    "onnx int4": (to_onnx("int4-weight-only"), 120),  # the float export comes first
    "llamacpp": (to_gguf("none"), 120),
    "llamacpp f16": (to_gguf("f16"), 60),
    "llamacpp q8_0": (to_gguf("q8_0"), 90),
    "synthetic": (write_synthetic, 513),
    "hub": (download, 60),
    "ray": (receive, 60),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_model_that_does_not_fit_is_refused_before_writing(free, model, monkeypatch, writer):
    make, needed = WRITERS[writer]
    setting = "HF_HOME" if writer == "hub" else "LLMTRACK_CACHE"
    line = f"the disk of .* is full: 14 MiB are free, and {needed} MiB are needed: free some space there, or set {setting} "
    with pytest.raises(ModelLoadError, match=line) as caught:
        make(model, monkeypatch)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("output", ["OSError: [Errno 28] No space left on device", "thread panicked: (os error 28)"])
def test_a_tool_that_fills_the_disk_gets_the_same_message(free, model, monkeypatch, tmp_path, output):
    tool = tmp_path / "tool.py"
    tool.write_text(
        "import os, tempfile\n"
        "assert os.path.dirname(tempfile.gettempdir()) == os.getcwd()\n"  # temporary files are on the same disk
        f"open('half', 'wb').write(bytes(2 * {MIB}))\nraise SystemExit({output!r})"
    )
    monkeypatch.setattr(BuildEnvironment, "python", lambda self: sys.executable)
    free["MiB"] = 130  # enough as predicted, and then not
    for converter in (genai.CONVERTER, openvino.CONVERTER):
        failing = type(converter)(converter.backend, converter.tool, converter.environment, lambda *_: [str(tool)], ())
        with pytest.raises(ModelLoadError) as caught:
            convert_folder(failing, ModelFolder(model, "model"), [], "float32", 32, never)
        assert re.fullmatch(
            r"the disk of \S+ is full: 132 MiB are free, and more are needed: free some space there, or set LLMTRACK_CACHE to a "
            "folder on another disk",
            str(caught.value),
        )
        assert not list(tmp_path.glob("cache/models/.*.new"))


class Layer(torch.nn.Linear):
    """A model of 4 MiB."""

    def __init__(self):
        super().__init__(1024, 1024, bias=False)

    def save_pretrained(self, folder):
        Path(folder, "config.json").write_text("{}")


@pytest.mark.parametrize(("saves", "needed"), [(1, 12), (2, 24), (3, 28), (40, 28)])
def test_a_training_whose_checkpoints_do_not_fit_is_not_started(free, tmp_path, saves, needed):
    free["MiB"] = needed
    checkpoint.require_room_for_all(tmp_path / "training", Layer(), saves)
    free["MiB"] = needed - 1
    with pytest.raises(ModelLoadError, match=f"and {needed} MiB are needed: .* set output to a folder on another disk"):
        checkpoint.require_room_for_all(tmp_path / "training", Layer(), saves)


def test_a_checkpoint_that_fills_the_disk_reports_it(free, tmp_path, monkeypatch):
    def fill(tensors, path):
        free["MiB"] = 0.25
        raise RuntimeError("PytorchStreamWriter failed writing file data/1: file write failed")

    monkeypatch.setattr(torch, "save", fill)
    tokenizer = SimpleNamespace(save_pretrained=lambda folder: None)
    model = Layer()
    optimizer = torch.optim.AdamW(model.parameters())
    with pytest.raises(ModelLoadError, match=r"0 MiB are free, and 12 MiB are needed: .* set output to a folder"):
        checkpoint.save(tmp_path / "training", 1, model, tokenizer, optimizer, {})
    assert checkpoint.newest(tmp_path / "training") is None


def test_weights_are_counted_by_file_headers(model, tmp_path):
    assert count_weights([model / "model.safetensors"]) == Weights(WEIGHTS, embedding=10 * MIB)
    (tmp_path / "pytorch_model.bin").write_bytes(bytes(1000))
    (tmp_path / "damaged.safetensors").write_bytes(b"\xff" * 100)
    assert count_weights(tmp_path.glob("*.*")) == Weights(500 + 50)
    assert PRESETS["llama-1b"].weights.stored() == pytest.approx(4 * 1.236e9, rel=0.01)
