"""Answers of a model's probes are cached until anything changes that they may depend on."""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from functools import partial

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmtrack.engines.torch import probes, pytorch, step
from llmtrack.models import decoder, probe_cache
from llmtrack.models.probe_cache import ProbeCache
from llmtrack.quantize.recipe import find_recipe
from llmtrack.spec.scenario import Variant
from tests.engines.models import byte_tokenizer, random_model

PROBES = ["looks ahead", "agrees", "step", "batching"]


def recorded(names, probe, original, *arguments):
    names.append(probe)
    return original(*arguments)


@pytest.fixture
def probed(monkeypatch, own_cache):
    """Names of the probes that were run, in order."""
    names = []
    for module, name, probe in (
        (decoder, "looks_ahead", "looks ahead"),
        (probes, "_agrees", "agrees"),
        (step, "observe_step", "step"),
        (probes, "_probe_batching", "batching"),
    ):
        monkeypatch.setattr(module, name, partial(recorded, names, probe, getattr(module, name)))
    return names


def load(folder, dtype="float32"):
    return pytorch.load(Variant(str(folder), device="cpu", dtype=dtype))


def test_a_second_load_uses_the_cached_answers(probed, tiny_model_dir):
    first = load(tiny_model_dir)
    assert probed == PROBES
    second = load(tiny_model_dir)
    assert probed == PROBES
    for field in ("step_weight_bytes", "kv_bytes_per_token", "kv_windows", "state_bytes", "operations", "warnings"):
        assert getattr(second.info, field) == getattr(first.info, field)
    assert second.info.step_weight_bytes > 0
    assert second._generating == first._generating


def version(monkeypatch):
    original = probe_cache.installed_version
    monkeypatch.setattr(
        probe_cache, "installed_version", lambda name: "9.9" if name == "transformers" else original(name)
    )


CHANGES = {
    "transformers": version,
    "llmtrack": lambda monkeypatch: monkeypatch.setattr(probe_cache, "_code", lambda: "other"),
    "cpu": lambda monkeypatch: monkeypatch.setattr(probe_cache, "cpu_model", lambda: "other"),
    "threads": lambda monkeypatch: monkeypatch.setattr(torch, "get_num_threads", lambda: 7),
    "kernels": lambda monkeypatch: monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "one that no machine has"),
}


@pytest.fixture(scope="module")
def model():
    return random_model("llama")


def answer(model, origin=("weights",), probe="probe", result=7):
    """Return the cached answer of a probe that would give `result`."""
    return ProbeCache(*origin).answer(probe, model, int, lambda: result)


@pytest.mark.parametrize("change", CHANGES)
def test_another_machine_or_version_is_probed_anew(own_cache, model, monkeypatch, change):
    assert answer(model) == 7
    assert answer(model, result=8) == 7
    CHANGES[change](monkeypatch)
    assert answer(model, result=8) == 8


def test_another_origin_probe_or_model_is_probed_anew(own_cache, model):
    assert answer(model) == 7
    assert answer(model, ("weights", "recipe"), result=1) == 1
    assert answer(model, probe="other", result=2) == 2
    assert answer(copy.deepcopy(model).bfloat16(), result=3) == 3
    assert answer(random_model("llama", rms_norm_eps=1e-3), result=4) == 4
    attention = random_model("llama")
    attention.config._attn_implementation = "eager"
    assert answer(attention, result=5) == 5
    assert answer(model, result=9) == 7


def test_without_a_known_origin_nothing_is_cached(own_cache, model):
    assert [answer(model, (), result=result) for result in (1, 2)] == [1, 2]


def test_answers_of_unversioned_code_are_not_cached(own_cache):
    class Custom(torch.nn.Linear):
        pass

    model = random_model("llama")
    model.model.layers[0].mlp.up_proj = Custom(16, 24, bias=False)
    assert [answer(model, result=result) for result in (1, 2)] == [1, 2]


@pytest.mark.parametrize("content", ["", "{", '"text"', '{"weight_bytes": 1}', "7.5"])
def test_a_damaged_answer_is_probed_anew(own_cache, model, content):
    answer(model)
    (note,) = probe_cache.folder().iterdir()
    note.write_text(content)
    assert answer(model, result=8) == 8
    assert note.read_text() == "8"


def test_an_unwritable_cache_is_ignored(own_cache, model):
    own_cache.write_text("a file")
    assert [answer(model, result=result) for result in (1, 2)] == [1, 2]


@pytest.mark.slow(1)
def test_other_weights_in_the_same_folder_are_probed_anew(probed, tiny_model_dir, tmp_path):
    folder = shutil.copytree(tiny_model_dir, tmp_path / "model")
    load(folder)
    weights = load_file(folder / "model.safetensors")
    name = next(name for name in weights if name.endswith("q_proj.weight"))
    save_file({**weights, name: weights[name] * 1.5}, folder / "model.safetensors", {"format": "pt"})
    load(folder)
    assert probed == PROBES * 2


@pytest.mark.slow(1)
def test_a_step_with_state_in_modules_is_observed_each_time(probed, tmp_path):
    """Observing it finds the state; otherwise, modules would remember the previous text."""
    model = random_model("recurrent_gemma", head_dim=8, block_types=["recurrent", "attention"])
    model.save_pretrained(str(tmp_path))
    byte_tokenizer().save_pretrained(str(tmp_path))
    load(tmp_path)
    del probed[:]
    load(tmp_path)
    assert probed == ["step"]


def test_a_refusal_is_not_cached(probed, tiny_model_dir, monkeypatch):
    monkeypatch.setattr(decoder, "looks_ahead", lambda *arguments: probed.append("looks ahead") or True)
    for _ in range(2):
        with pytest.raises(Exception, match="reads in both directions"):
            load(tiny_model_dir)


@pytest.mark.slow(1)
def test_a_recipe_of_another_package_is_probed_each_time(probed, tiny_model_dir, monkeypatch):
    """Its version is unknown."""
    recipe = replace(find_recipe("torch", "int8-weight-only"), apply=lambda model: None, options=type(None))
    monkeypatch.setattr(pytorch, "find_recipe", lambda *arguments: recipe)
    monkeypatch.setattr(type(recipe), "resolve_options", lambda recipe, options: {})
    monkeypatch.setattr(type(recipe), "run", lambda recipe, model, options: None)
    for _ in range(2):
        pytorch.load(Variant(str(tiny_model_dir), device="cpu", dtype="float32", quantization="x"))
    # Answers about the float model are cached.
    assert probed == [*PROBES, "step", "batching"]
