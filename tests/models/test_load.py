import json
import sys

import pytest
import torch

from llmtrack.errors import ModelLoadError, UsageError
from llmtrack.models.load import RANDOM_WEIGHTS, clean_generation
from tests.models.folders import edit, load

pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_folder_loads_in_eval_mode_in_the_dtype(tiny_model_dir, dtype):
    loaded = load(tiny_model_dir, dtype)
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {dtype}
    assert not loaded.model.training
    assert (loaded.model_id, loaded.revision) == (str(tiny_model_dir), None)
    assert loaded.digests.weights.startswith("safetensors:")
    assert loaded.facts["trust_remote_code"] is False
    assert loaded.facts["parameters"] == 1049728
    assert loaded.warnings == ()
    assert loaded.tokenizer("hi 🎉")["input_ids"] == list("hi 🎉".encode())


def test_the_first_candidate_that_works_is_used_with_a_warning_for_others():
    loaded = load("/nowhere/model,synthetic:tiny,synthetic:tiny-gpt2")
    assert loaded.model_id == "synthetic:tiny"
    assert loaded.warnings[0].startswith("passed over /nowhere/model: ")
    assert loaded.warnings[-1] == RANDOM_WEIGHTS


def test_if_all_candidates_fail_each_has_a_line_with_its_reason(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelLoadError) as caught:
        load(f"/nowhere/a,{tmp_path / 'empty'},/nowhere/b.gguf")
    lines = str(caught.value).splitlines()
    assert len(lines) == 4
    assert "/nowhere/a: " in lines[1]
    assert "holds no model.safetensors" in lines[2]
    assert "/nowhere/b.gguf: GGUF file" in lines[3]


def test_a_bad_spec_is_a_usage_error():
    with pytest.raises(UsageError):
        load("synthetic:nothing")


def test_an_ignored_revision_is_a_warning():
    assert "revision v1 is ignored: synthetic:tiny" in load("synthetic:tiny", revision="v1").warnings[0]


@pytest.mark.parametrize("model_type", ["llama", "evil"])
def test_code_in_a_folder_is_never_run(folder, tmp_path, model_type):
    mark = tmp_path / "ran"
    (folder / "evil.py").write_text(f"open({str(mark)!r}, 'w').close()\nclass C: pass\n")
    edit(
        folder / "config.json",
        model_type=model_type,
        auto_map={"AutoConfig": "evil.C", "AutoModelForCausalLM": "evil.C"},
    )
    edit(folder / "tokenizer_config.json", auto_map={"AutoTokenizer": ["evil.C", "evil.C"]})
    if model_type == "llama":
        assert type(load(folder).model).__name__ == "LlamaForCausalLM"
    else:
        with pytest.raises(ModelLoadError, match="never runs"):
            load(folder)
    assert not mark.exists()
    assert not any("evil" in name for name in sys.modules)


def test_only_special_ids_remain_of_the_generation_settings(folder):
    path = folder / "generation_config.json"
    path.write_text(
        json.dumps(
            {"eos_token_id": [257, 3], "do_sample": True, "temperature": 0.3, "repetition_penalty": 1.3}
            | {"suppress_tokens": [1], "top_k": 3, "max_length": 5}
        )
    )
    config = load(folder).model.generation_config
    assert config.eos_token_id == [257, 3]
    assert (config.bos_token_id, config.pad_token_id) == (256, 258)
    remaining = set(config.to_diff_dict()) - {"do_sample", "transformers_version"}
    assert remaining == {"bos_token_id", "eos_token_id", "pad_token_id"}
    assert not config.do_sample


def test_special_ids_missing_from_the_model_come_from_the_tokenizer():
    loaded = load("synthetic:tiny")
    for name in ("bos_token_id", "eos_token_id", "pad_token_id"):
        setattr(loaded.model.config, name, None)
        setattr(loaded.model.generation_config, name, None)
    clean_generation(loaded.model, loaded.tokenizer)
    assert loaded.model.generation_config.eos_token_id == 257


@pytest.mark.parametrize(("configured", "expected"), [([1, 10**9], [1]), (10**9, None), ([-1], None), (7, 7)])
def test_ids_beyond_the_vocabulary_are_removed(configured, expected):
    loaded = load("synthetic:tiny")
    loaded.model.generation_config.eos_token_id = configured
    clean_generation(loaded.model, loaded.tokenizer)
    assert loaded.model.generation_config.eos_token_id == expected


def test_missing_weights_are_an_error(folder):
    from safetensors.torch import load_file, save_file

    weights = load_file(folder / "model.safetensors")
    weights.pop("model.layers.1.mlp.up_proj.weight")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelLoadError, match=r"lacks 1 weights .*up_proj"):
        load(folder)


def test_a_damaged_weight_file_names_a_remedy(folder):
    (folder / "model.safetensors").write_bytes(b"\x00" * 100)
    with pytest.raises(ModelLoadError, match="is damaged: fetch it again"):
        load(folder)


def test_a_pickle_is_a_warning(folder):
    from safetensors.torch import load_file

    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(weights, folder / "pytorch_model.bin")
    loaded = load(folder)
    assert loaded.facts["weights_format"] == "pickle"
    assert "pickle" in loaded.warnings[0]


def test_rotary_settings_of_version_5_are_used_in_version_4(folder):
    config = json.loads((folder / "config.json").read_text())
    for name in ("rope_theta", "rope_scaling"):
        config.pop(name, None)
    config["rope_parameters"] = {"rope_theta": 123456.0, "rope_type": "default"}
    (folder / "config.json").write_text(json.dumps(config))
    loaded = load(folder).model
    expected = 123456.0 ** -(torch.arange(0, 32, 2) / 32)
    torch.testing.assert_close(loaded.model.rotary_emb.inv_freq, expected)
