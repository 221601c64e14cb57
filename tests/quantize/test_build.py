"""What can go wrong while a model is exported or quantized ends in one line, and leaves no half entry."""

from __future__ import annotations

import errno
import os

import pytest

from llmtrack.errors import MissingDependencyError, ScenarioError, UsageError
from llmtrack.models.load import identify
from llmtrack.quantize import available, build
from llmtrack.scenario import Variant


def full_disk(*arguments):
    raise OSError(errno.ENOSPC, "No space left on device")


def odd(*arguments):
    raise RuntimeError("Unsupported operator\nin layer 3")


def dies(*arguments):
    os._exit(9)


def test_a_full_disk_is_said_with_the_remedy(tmp_path):
    with pytest.raises(
        ScenarioError, match=r"exporting: the disk is full \(.* GiB free\): free some, or set LLMTRACK_CACHE"
    ):
        build._guarded(str(tmp_path), "exporting", full_disk)


def test_a_disk_that_filled_up_explains_another_error(tmp_path, monkeypatch):
    nearly = build.shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr(build.shutil, "disk_usage", lambda folder: nearly)
    with pytest.raises(ScenarioError, match="the disk is full"):
        build._guarded(str(tmp_path), "exporting", odd)


def test_what_cannot_be_exported_is_one_line(tmp_path):
    with pytest.raises(ScenarioError) as caught:
        build._guarded(str(tmp_path), "exporting", odd)
    assert "\n" not in str(caught.value)
    assert "Unsupported operator" in str(caught.value)
    assert caught.value.kind == "unsupported"


def test_a_process_that_was_killed_is_out_of_memory(tmp_path):
    with pytest.raises(
        ScenarioError, match="exporting: the process was killed, most likely for want of memory"
    ) as caught:
        build._apart("exporting", tmp_path, dies)
    assert caught.value.kind == "out_of_memory"


def test_errors_keep_their_kind_from_another_process(tmp_path):
    with pytest.raises(ScenarioError, match="the disk is full") as caught:
        build._apart("exporting", tmp_path, full_disk)
    assert caught.value.kind == "unsupported"


@pytest.mark.parametrize(
    ("transformers", "why"), [("4.57.6", ""), ("5.24.0", ", no release works with transformers 5")]
)
def test_without_the_extra_the_reason_and_the_remedy_are_said(transformers, why, monkeypatch):
    versions = {"transformers": transformers}
    monkeypatch.setattr(available, "installed_version", lambda name: versions.get(name, ""))
    monkeypatch.setattr(available, "find_spec", lambda name: None)
    with pytest.raises(
        MissingDependencyError, match=r'needs onnx, onnxruntime, optimum-onnx: pip install "llmtrack\[onnx\]"'
    ):
        build.require_onnx("none")
    line = available.why_missing()
    assert f"optimum-onnx, onnx_ir missing{why}: pip install" in line
    assert 'torchao\'s (pip install "llmtrack[torchao]")' in line
    assert not available.available("onnx")
    assert available.available("torch")


def test_a_recipe_of_another_backend_is_refused_before_anything_is_exported(onnx_cache):
    variant = Variant("synthetic:tiny", backend="onnx", quantization="int3")
    base = onnx_cache / "left-over"
    with pytest.raises(UsageError, match="no quantization 'int3'"):
        build.onnx_folder(variant, identify("synthetic:tiny"))
    assert not base.exists()


def test_quantizing_from_end_to_end_tells_what_was_looked_at(onnx_cache):
    options = (("calibration_tokens", 512), ("keep_quality", "none"))
    variant = Variant("synthetic:tiny", backend="onnx", quantization="int8-dynamic", options=options)
    folder = build.onnx_folder(variant, identify("synthetic:tiny"))
    facts = build.read_manifest(folder)["recipe"]["facts"]
    assert facts["calibration"] == "pydoc"
    assert len(facts["calibration_digest"]) == 16
    assert facts["left_out_layers"] == 0
    assert {"model.onnx", "config.json", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    # Asked for again, with an option that belongs to another recipe, it is the same entry.
    other = Variant(**{**vars(variant), "options": (("block_size", 16), *options)})
    assert build.onnx_folder(other, identify("synthetic:tiny")) == folder
    assert [path.name for path in onnx_cache.iterdir() if path.is_dir() and ".new" in path.name] == []
