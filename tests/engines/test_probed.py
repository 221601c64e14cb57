"""Probes of a model are asked once, and anew when anything changes that their answer may depend on."""

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
from tests.engines.test_rare_decoders import STATES, byte_tokenizer, random_model

PROBES = ["looks ahead", "agrees", "step", "batching"]


def watched(names, probe, real, *given):
    names.append(probe)
    return real(*given)


@pytest.fixture
def asked(monkeypatch, own_cache):
    """The probes that were really asked, in order."""
    names = []
    for module, name, probe in (
        (decoder, "looks_ahead", "looks ahead"),
        (probes, "_agrees", "agrees"),
        (step, "observe_step", "step"),
        (probes, "_probe_batching", "batching"),
    ):
        monkeypatch.setattr(module, name, partial(watched, names, probe, getattr(module, name)))
    return names


def load(folder, dtype="float32"):
    return pytorch.load(Variant(str(folder), device="cpu", dtype=dtype))


def test_a_second_load_asks_nothing_and_knows_the_same(asked, tiny_model_dir):
    first = load(tiny_model_dir)
    assert asked == PROBES
    second = load(tiny_model_dir)
    assert asked == PROBES
    for field in (
        "step_weight_bytes",
        "kv_bytes_per_token",
        "kv_windows",
        "state_bytes",
        "operations",
        "warnings",
    ):
        assert getattr(second.info, field) == getattr(first.info, field)
    assert second.info.step_weight_bytes > 0
    assert second._generating == first._generating


def version(monkeypatch):
    real = probe_cache.installed_version
    monkeypatch.setattr(probe_cache, "installed_version", lambda name: "9.9" if name == "transformers" else real(name))


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


def answer(model, origin=("weights",), probe="probe", given=7):
    """Return the answer of a probe for a number."""
    return ProbeCache(*origin).answer(probe, model, int, lambda: given)


@pytest.mark.parametrize("change", CHANGES)
def test_another_machine_or_version_asks_anew(own_cache, model, monkeypatch, change):
    assert answer(model) == 7
    assert answer(model, given=8) == 7
    CHANGES[change](monkeypatch)
    assert answer(model, given=8) == 8


def test_another_origin_probe_or_model_asks_anew(own_cache, model):
    assert answer(model) == 7
    assert answer(model, ("weights", "recipe"), given=1) == 1
    assert answer(model, probe="other", given=2) == 2
    assert answer(copy.deepcopy(model).bfloat16(), given=3) == 3
    assert answer(random_model("llama", rms_norm_eps=1e-3), given=4) == 4
    attention = random_model("llama")
    attention.config._attn_implementation = "eager"
    assert answer(attention, given=5) == 5
    assert answer(model, given=9) == 7


def test_of_no_known_origin_nothing_is_kept(own_cache, model):
    assert [answer(model, (), given=given) for given in (1, 2)] == [1, 2]


def test_of_code_without_a_version_nothing_is_kept(own_cache):
    class Own(torch.nn.Linear):
        pass

    model = random_model("llama")
    model.model.layers[0].mlp.up_proj = Own(16, 24, bias=False)
    assert [answer(model, given=given) for given in (1, 2)] == [1, 2]


@pytest.mark.parametrize("content", ["", "{", '"text"', '{"weight_bytes": 1}', "7.5"])
def test_a_note_that_is_damaged_is_asked_again(own_cache, model, content):
    answer(model)
    (note,) = probe_cache.folder().iterdir()
    note.write_text(content)
    assert answer(model, given=8) == 8
    assert note.read_text() == "8"


def test_a_cache_that_cannot_be_written_costs_time_only(own_cache, model):
    own_cache.write_text("a file")
    assert [answer(model, given=given) for given in (1, 2)] == [1, 2]


@pytest.mark.slow(1)
def test_other_weights_in_the_same_folder_ask_anew(asked, tiny_model_dir, tmp_path):
    folder = shutil.copytree(tiny_model_dir, tmp_path / "model")
    load(folder)
    held = load_file(folder / "model.safetensors")
    name = next(name for name in held if name.endswith("q_proj.weight"))
    save_file({**held, name: held[name] * 1.5}, folder / "model.safetensors", {"format": "pt"})
    load(folder)
    assert asked == PROBES * 2


@pytest.mark.slow(1)
def test_a_step_that_modules_hold_state_of_is_looked_at_each_time(asked, tmp_path):
    """Which modules remember something is learnt by looking: without it they would remember the text before."""
    random_model("recurrent_gemma", **STATES["recurrent_gemma"]).save_pretrained(str(tmp_path))
    byte_tokenizer().save_pretrained(str(tmp_path))
    load(tmp_path)
    del asked[:]
    load(tmp_path)
    assert asked == ["step"]


def test_a_refusal_is_found_again(asked, tiny_model_dir, monkeypatch):
    monkeypatch.setattr(decoder, "looks_ahead", lambda *given: asked.append("looks ahead") or True)
    for _ in range(2):
        with pytest.raises(Exception, match="reads in both directions"):
            load(tiny_model_dir)


@pytest.mark.slow(1)
def test_a_recipe_of_another_package_is_probed_each_time(asked, tiny_model_dir, monkeypatch):
    """Its version is not known here."""
    recipe = replace(find_recipe("torch", "int8-weight-only"), apply=lambda model: None, options=type(None))
    monkeypatch.setattr(pytorch, "find_recipe", lambda *given: recipe)
    monkeypatch.setattr(type(recipe), "settled", lambda recipe, options: {})
    monkeypatch.setattr(type(recipe), "applied", lambda recipe, model, options: None)
    for _ in range(2):
        pytorch.load(Variant(str(tiny_model_dir), device="cpu", dtype="float32", quantization="x"))
    # What the float model was asked is known.
    assert asked == [*PROBES, "step", "batching"]
