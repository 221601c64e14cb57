"""Building exported and quantized models: one-line errors, cache keys, and no partial cache entries."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace

import psutil
import pytest

from llmtrack.cli import doctor
from llmtrack.engines.registry import load_variant
from llmtrack.errors import MissingDependencyError, ScenarioError, UsageError
from llmtrack.host import packages as available
from llmtrack.host.isolated import run_isolated
from llmtrack.host.processes import child_environment
from llmtrack.models.cache import MANIFEST
from llmtrack.models.load import identify_model
from llmtrack.quantize import build
from llmtrack.quantize.options import SmallBlocks
from llmtrack.quantize.recipe import Recipe, recipes
from llmtrack.spec.parameter import NONE
from llmtrack.spec.scenario import Variant
from tests.conftest import HANG_S
from tests.quantize.work import dies, full_disk, imported, leaves, odd, wrapped


@pytest.mark.parametrize("work", [full_disk, odd, wrapped])
def test_a_full_disk_is_reported_as_such(tmp_path, monkeypatch, work):
    almost_full = shutil.disk_usage(tmp_path)._replace(free=1000)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: almost_full)
    with pytest.raises(OSError, match="No space left on device"):
        build._guarded(str(tmp_path), "exporting", work)


def test_an_error_of_the_work_is_one_line(tmp_path):
    with pytest.raises(ScenarioError) as caught:
        build._guarded(str(tmp_path), "exporting", odd)
    assert "\n" not in str(caught.value)
    assert "Unsupported operator" in str(caught.value)
    assert caught.value.kind == "unsupported"


@pytest.mark.slow(1)
def test_a_killed_process_is_out_of_memory(tmp_path):
    with pytest.raises(ScenarioError, match="exporting: the process was killed, most likely out of memory") as caught:
        build.build_isolated("exporting", "m", tmp_path, dies)
    assert caught.value.kind == "out_of_memory"


@pytest.mark.slow(1)
def test_the_last_output_of_a_process_that_exited_is_quoted(tmp_path):
    with pytest.raises(ScenarioError, match=r"exporting: .* exit code 9 \(libfast.so is missing\)") as caught:
        build.build_isolated("exporting", "m", tmp_path, leaves)
    assert caught.value.kind == "unsupported"


@pytest.mark.slow(1)
def test_the_child_process_ends_with_its_parent(tmp_path):
    code = """
import os, sys
from llmtrack.host.isolated import run_isolated
from tests.quantize.work import waits
run_isolated("waiting", waits, sys.argv[1], float(sys.argv[2]))
"""
    note = tmp_path / "pid"
    parent = subprocess.Popen([sys.executable, "-c", code, str(note), str(2 * HANG_S)])
    wait_until(lambda: note.exists() and note.read_text())
    worker = int(note.read_text())
    parent.kill()
    parent.wait()
    wait_until(lambda: not psutil.pid_exists(worker) or psutil.Process(worker).status() == psutil.STATUS_ZOMBIE)


def wait_until(holds):
    end = time.monotonic() + HANG_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.mark.parametrize("guard", ["", "if __name__ == '__main__':"])
def test_a_script_needs_no_guard(guard, tmp_path):
    """A child process that ran the script again would print twice, and wait for its parent's lock."""
    script = tmp_path / "script.py"
    lines = [
        "from filelock import FileLock",
        "from llmtrack.host.isolated import run_isolated",
        "print('started', flush=True)",
        guard or "if True:",
        f"    with FileLock({str(tmp_path / 'lock')!r}, timeout=30):",
        "        print(run_isolated('counting', sum, (1, 2, 3)))",
    ]
    script.write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=child_environment(),
        capture_output=True,
        text=True,
        timeout=HANG_S,
    )
    assert done.stdout.split() == ["started", "6"], done.stderr


@pytest.mark.slow(1)
def test_errors_keep_their_kind_across_processes(tmp_path):
    with pytest.raises(ScenarioError, match="exporting failed: RuntimeError: Unsupported operator") as caught:
        build.build_isolated("exporting", "m", tmp_path, odd)
    assert caught.value.kind == "unsupported"
    # The cache, which knows the required space, completes the message.
    with pytest.raises(OSError, match="No space left on device") as full:
        build.build_isolated("exporting", "m", tmp_path, full_disk)
    assert full.value.errno == errno.ENOSPC


@pytest.mark.parametrize(
    ("transformers", "why"),
    [("4.57.6", ""), ("5.24.0", ", and no release of optimum-onnx works with transformers 5")],
)
def test_without_the_extra_the_error_names_reason_and_remedy(transformers, why, monkeypatch):
    versions = {"transformers": transformers}
    monkeypatch.setattr(available, "installed_version", lambda name: versions.get(name, ""))
    monkeypatch.setattr(available, "find_spec", lambda name: None)
    with pytest.raises(
        MissingDependencyError, match=r'needs onnx, onnxruntime, optimum-onnx: pip install "llmtrack\[onnx\]"'
    ):
        build.require_onnx("none")
    check = doctor._onnx()
    assert check.text.endswith(f"optimum-onnx, onnx_ir not installed{why}")
    assert check.remedy == available.INSTALL_ONNX
    assert doctor._backends().text == "torch"
    assert doctor._recipes().state == "missing"
    line = available.missing_recipes()
    assert f"optimum-onnx, onnx_ir missing{why}: pip install" in line
    assert 'torchao\'s (pip install "llmtrack[torchao]")' in line
    assert not available.available("onnx")
    assert available.available("torch")


@pytest.mark.parametrize("backend", ["torch", "onnx", "genai"])
def test_a_recipe_lacks_only_its_own_requirements(backend, monkeypatch):
    monkeypatch.setattr(available, "missing_modules", lambda backend, recipe="none": [])
    monkeypatch.setattr("llmtrack.quantize.recipe.missing_modules", lambda backend, recipe="none": [])
    monkeypatch.setattr(available, "_importable", lambda name: name not in ("torchao", "onnx_ir", "theirs"))
    ours = {recipe.label: recipe.lacking for recipe in recipes()}
    assert ours["torch/int8-dynamic"] == ["torchao"]
    assert {tuple(lacking) for label, lacking in ours.items() if label.startswith("onnx/")} == {("onnx_ir",)}
    theirs = Recipe("theirs", backend, "words", "int8", lambda model: None)
    assert theirs.lacking == []
    assert replace(theirs, needs=("theirs", "os")).lacking == ["theirs"]


@pytest.fixture
def entries(monkeypatch, tmp_path):
    """Return the names of the cache entries of a variant, without building them."""
    monkeypatch.setattr(build, "require_onnx", lambda quantization: None)

    def names(folder, quantization="none", **options):
        entries = []
        monkeypatch.setattr(build, "build_once", lambda name, make, needed: entries.append(name) or tmp_path / name)
        variant = Variant(
            str(folder), backend="onnx", quantization=quantization, options=tuple(sorted(options.items()))
        )
        build.onnx_folder(variant, identify_model(str(folder)))
        return entries

    return names


def set_json(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


CHANGES = {
    "rope_theta": lambda at: set_json(at / "config.json", rope_theta=77.0, rope_parameters={"rope_theta": 77.0}),
    "norm": lambda at: set_json(at / "config.json", rms_norm_eps=0.1),
    "end": lambda at: set_json(at / "generation_config.json", eos_token_id=9),
    "tokenizer": lambda at: set_json(at / "tokenizer.json", normalizer={"type": "Lowercase"}),
    "tokenizer settings": lambda at: set_json(at / "tokenizer_config.json", add_bos_token=True),
    "weights": lambda at: (
        os.utime(at / "model.safetensors", ns=(1, 1)) or (at / "model.safetensors").write_bytes(b"other")
    ),
}


@pytest.mark.parametrize("quantization", ["none", "int8-weight-only", "int8-static"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_any_change_of_the_models_output_has_its_own_entry(change, quantization, tiny_model_dir, tmp_path, entries):
    folder = shutil.copytree(tiny_model_dir, tmp_path / "one" / "model")
    before = entries(folder, quantization)
    assert entries(folder, quantization) == before
    set_json(folder / "config.json", _name_or_path="elsewhere", transformers_version="9.9")
    assert entries(folder, quantization) == before
    change(folder)
    assert not set(entries(folder, quantization)) & set(before)


def test_a_moved_folder_has_the_same_entry(tiny_model_dir, tmp_path, entries):
    moved = shutil.copytree(tiny_model_dir, tmp_path / "elsewhere" / tiny_model_dir.name)
    assert entries(moved) == entries(tiny_model_dir)


@pytest.mark.parametrize(
    ("changes", "exported_too"),
    [
        ({"version": 99}, False),
        ({"options": SmallBlocks}, False),
        ({}, True),
    ],
    ids=["version", "default", "exporter"],
)
def test_another_version_default_or_exporter_has_another_entry(
    changes, exported_too, tiny_model_dir, monkeypatch, entries
):
    before = entries(tiny_model_dir, "int8-weight-only")
    recipe = dataclasses.replace(build.find_recipe("onnx", "int8-weight-only"), **changes)
    monkeypatch.setattr(build, "find_recipe", lambda backend, name: recipe)
    if exported_too:
        monkeypatch.setattr(build, "installed_version", lambda package: "99")
    after = entries(tiny_model_dir, "int8-weight-only")
    assert after[1] != before[1]
    assert (after[0] != before[0]) == exported_too


def test_an_option_and_the_calibration_text_are_part_of_the_entry(tiny_model_dir, tmp_path, entries):
    (tmp_path / "a.txt").write_text("some words")
    (tmp_path / "b.txt").write_text("other words")
    keys = {
        entries(tiny_model_dir, "int8-static", **options)[1]
        for options in (
            {},
            {"calibration_tokens": 64},
            {"calibration": str(tmp_path / "a.txt")},
            {"calibration": str(tmp_path / "b.txt")},
        )
    }
    assert len(keys) == 4


@pytest.mark.parametrize(
    ("quantization", "options", "message"),
    [
        ("int3", (), "no quantization 'int3'"),
        ("int8-static", (("calibration", "nowhere.txt"),), "nowhere.txt"),
    ],
    ids=["recipe", "text"],
)
def test_unknown_recipes_and_texts_are_refused_before_the_export(quantization, options, message, onnx_cache):
    variant = Variant("synthetic:tiny", backend="onnx", quantization=quantization, options=options)
    with pytest.raises(UsageError, match=message):
        build.onnx_folder(variant, identify_model("synthetic:tiny"))
    assert not [path for path in onnx_cache.glob("*onnx*") if path.is_dir()]


@pytest.mark.slow(2)
def test_weight_only_recipes_import_neither_torch_nor_transformers(exported, tmp_path):
    source = shutil.copytree(exported, tmp_path / "exported")
    (source / MANIFEST).write_text("{}")
    jobs = []
    for name in ("int8-weight-only", "int4-weight-only"):
        options = build.find_recipe("onnx", name).resolve_options(())
        (tmp_path / name).mkdir()
        jobs.append(("onnx", name, options, NONE, str(source), str(tmp_path / name)))
    assert run_isolated("quantizing", imported, jobs) == []
    assert all((tmp_path / name / "model.onnx").exists() for _, name, *_ in jobs)


@pytest.mark.slow(8)
def test_quantizing_end_to_end_records_its_facts(onnx_cache, monkeypatch):
    def isolate_export(action, work, *arguments):
        # Another process, for the recipe, would import the same for seconds.
        return run_isolated(action, work, *arguments) if build._export in arguments else work(*arguments)

    monkeypatch.setattr(build, "run_isolated", isolate_export)
    options = (("calibration_tokens", 512), ("keep_quality", "none"))
    variant = Variant("synthetic:tiny", backend="onnx", quantization="int8-dynamic", options=options)
    folder = build.onnx_folder(variant, identify_model("synthetic:tiny"))
    facts = build.read_manifest(folder)["recipe"]["facts"]
    assert facts["calibration"] == "pydoc"
    assert len(facts["calibration_digest"]) == 16
    assert facts["left_out_layers"] == 0
    assert {"model.onnx", "config.json", "tokenizer.json"} <= {path.name for path in folder.iterdir()}
    # With an option of another recipe, the entry is the same.
    other = Variant(**{**vars(variant), "options": (("block_size", 16), *options)})
    assert build.onnx_folder(other, identify_model("synthetic:tiny")) == folder
    assert [path.name for path in onnx_cache.iterdir() if path.is_dir() and ".new" in path.name] == []


@pytest.mark.parametrize(
    ("recipe", "options", "cpu", "why"),
    [
        ("int8-dynamic", (), frozenset(), "no int8 configuration fits this CPU"),
        ("int8-static", (), frozenset(), "no int8 configuration fits this CPU"),
        ("int8-mixed", (("block_size", 24),), frozenset({"avx2"}), "block_size 24 is not possible"),
        ("int8-weight-only", (("block_size", 24),), frozenset(), "block_size 24 is not possible"),
        ("int4-hqq", (("block_size", 8),), frozenset(), "block_size 8 is not possible"),
        ("int4-gptq", (("block_size", 8),), frozenset(), "block_size 8 is not possible"),
        ("int4-mixed", (("block_size", 8),), frozenset(), "block_size 8 is not possible"),
        ("int4-mixed", (("keep_quality", "much"),), frozenset(), "not a share of the perplexity"),
        ("int8-dynamic", (("keep_quality", "much"),), frozenset({"avx2"}), "not a share of the perplexity"),
        ("int8-static", (("calibration", "gone.txt"),), frozenset({"avx2"}), "no corpus 'gone.txt'"),
    ],
)
def test_unsupported_cpus_and_options_are_refused_before_the_export(recipe, options, cpu, why, monkeypatch):
    monkeypatch.setattr(build, "require_onnx", lambda quantization: None)
    monkeypatch.setattr("llmtrack.engines.onnx.choose_provider", lambda device, provider: provider)
    monkeypatch.setattr(build, "build_once", lambda *arguments: pytest.fail("it was exported"))
    monkeypatch.setattr("llmtrack.quantize.int8.cpu_flags", lambda: cpu)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    variant = Variant("synthetic:tiny", backend="onnx", quantization=recipe, options=options)
    with pytest.raises((ScenarioError, UsageError), match=why):
        load_variant(variant)
