import json

import pytest
import torch

from llmtrack.models import synthetic
from llmtrack.models.digests import NO_FILES, model_digests
from llmtrack.models.load import identify_model, load_model
from tests.models.folders import edit


def differing(folder, change):
    before = model_digests(folder)
    change(folder)
    after = model_digests(folder)
    return {name for name, digest in before.tags.items() if after.tags[name] != digest}


@pytest.mark.parametrize(
    "changes",
    [
        {"rope_theta": 1234.0, "rope_parameters": {"rope_type": "default", "rope_theta": 1234.0}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {"rms_norm_eps": 1e-3},
        {"hidden_act": "gelu"},
        {"sliding_window": 8},
        {"architectures": ["MistralForCausalLM"]},
        {"eos_token_id": 5},
        {"attention_bias": True},
        {"attn_implementation": "eager"},  # other rounding
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_setting_that_changes_the_output_changes_the_config_digest_only(folder, changes):
    assert differing(folder, lambda at: edit(at / "config.json", **changes)) == {"config_digest"}


def test_a_nested_setting_counts(folder):
    edit(folder / "config.json", text_config={"rope_theta": 1.0})
    assert differing(folder, lambda at: edit(at / "config.json", text_config={"rope_theta": 2.0})) == {"config_digest"}


@pytest.mark.parametrize("eos", [7, [7, 8], None])
def test_generation_settings_are_part_of_the_config(folder, eos):
    assert differing(folder, lambda at: edit(at / "generation_config.json", eos_token_id=eos)) == {"config_digest"}


@pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
@pytest.mark.parametrize(
    "changes",
    [
        {"_name_or_path": "elsewhere"},
        {"transformers_version": "9.9"},
        {"torch_dtype": "bfloat16", "dtype": "bfloat16"},
        {"use_cache": False},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_setting_that_does_not_affect_the_output_is_ignored(folder, file, changes):
    assert differing(folder, lambda at: edit(at / file, **changes)) == set()


def test_key_order_and_indent_are_ignored(folder):
    def reverse(at):
        settings = json.loads((at / "config.json").read_text())
        (at / "config.json").write_text(json.dumps(dict(reversed(settings.items())), indent=7))

    assert differing(folder, reverse) == set()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
        (
            {"rope_theta": 5e5, "rope_scaling": None},
            {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
        ),
        (
            {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4.0}},
            {"rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}},
        ),
    ],
)
def test_both_spellings_of_rotary_settings_have_one_digest(tmp_path, old, new):
    digests = []
    for name, settings in (("old", old), ("new", new)):
        (tmp_path / name).mkdir()
        edit(tmp_path / name / "config.json", **settings)
        edit(tmp_path / name / "config.json", text_config=settings)
        digests.append(model_digests(tmp_path / name).config)
    assert digests[0] == digests[1]


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.json",
        "tokenizer.model",
        "vocab.json",
        "merges.txt",
        "special_tokens_map.json",
        "qwen.tiktoken",
    ],
)
def test_every_file_of_a_tokenizer_counts(folder, name):
    def change(at):
        (at / name).write_bytes((at / name).read_bytes() + b" " if (at / name).exists() else b"new")

    assert differing(folder, change) == {"tokenizer_digest"}


def test_a_tokenizers_settings_count_except_its_origin(folder):
    path = folder / "tokenizer_config.json"
    assert differing(folder, lambda at: edit(path, add_bos_token=True)) == {"tokenizer_digest"}
    assert differing(folder, lambda at: edit(path, name_or_path="elsewhere")) == set()


def test_unrelated_files_are_ignored(folder):
    assert differing(folder, lambda at: (at / "README.md").write_text("words")) == set()


def test_an_invalid_config_is_digested_by_its_bytes(folder):
    (folder / "config.json").write_text("{half")
    assert differing(folder, lambda at: (at / "config.json").write_text("{halg")) == {"config_digest"}


def test_missing_files_have_no_digest(tmp_path):
    digests = model_digests(tmp_path)
    assert (digests.config, digests.tokenizer) == (NO_FILES, NO_FILES)


def test_identifying_and_loading_give_the_same_digests(folder):
    loaded = load_model(str(folder), device="cpu", dtype=torch.float32)
    assert loaded.digests == identify_model(str(folder)).digests == model_digests(folder)


def test_a_synthetic_models_config_digest_depends_on_its_preset_only():
    tiny, other = synthetic.digests("tiny", 0, "cpu"), synthetic.digests("tiny", 1, "cuda:1")
    assert (tiny.config, tiny.tokenizer) == (other.config, other.tokenizer)
    assert tiny.weights != other.weights
    assert synthetic.digests("1m", 0, "cpu").config != tiny.config
    assert synthetic.digests("tiny", 0, "cuda:0") == synthetic.digests("tiny", 0, "cuda:1")
