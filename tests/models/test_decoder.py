"""Only complete causal decoders are loaded, exactly as in their files; anything else is refused in one line."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto import modeling_auto

from llmtrack.errors import ModelLoadError
from llmtrack.host.transformers_compat import TRANSFORMERS_MAJOR
from llmtrack.models import synthetic
from llmtrack.models.decoder import looks_ahead
from llmtrack.models.digests import folder_digest
from llmtrack.models.load import identify_model
from llmtrack.models.weights import weight_files
from tests.models.folders import edit, load

SIZES = {
    "vocab_size": 300,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "pad_token_id": 258,
}


pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def save(tmp_path):
    """Save a small random model of an architecture for a task as a folder with a tokenizer."""

    def saved(architecture, task="CausalLM", name="model", **settings):
        if "roberta" in architecture:  # the pad's id has a place among its positions
            settings = {"pad_token_id": 1, **settings}
        config = AutoConfig.for_model(architecture, **{**SIZES, **settings})
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = getattr(modeling_auto, f"AutoModelFor{task}" if task else "AutoModel").from_config(config)
        folder = tmp_path / name
        model.save_pretrained(str(folder))
        synthetic.build_tokenizer(synthetic.PRESETS["tiny"]).save_pretrained(str(folder))
        return folder

    return saved


def refused(folder):
    """Return the one-line reason why a folder is refused."""
    with pytest.raises(ModelLoadError) as caught:
        load(folder)
    _, line = str(caught.value).splitlines()
    return line


def change(folder, weights=(), without=()):
    """Add tensors to a folder's file, and take some out of it."""
    held = load_file(folder / "model.safetensors")
    held = {name: tensor for name, tensor in held.items() if name not in without} | dict(weights)
    save_file(held, folder / "model.safetensors", metadata={"format": "pt"})


def shard(folder, parts=2):
    """Divide a folder's weights into files with an index."""
    held = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    where = {}
    for part in range(parts):
        name = f"model-{part + 1:05d}-of-{parts:05d}.safetensors"
        own = {key: held[key] for key in sorted(held)[part::parts]}
        where |= dict.fromkeys(own, name)
        save_file(own, folder / name, metadata={"format": "pt"})
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))


@pytest.mark.parametrize(
    ("architecture", "task", "settings"),
    [
        ("bert", "MaskedLM", {}),
        ("roberta", "MaskedLM", {}),
        ("llama", "SequenceClassification", {"tie_word_embeddings": True}),
        ("gpt2", "SequenceClassification", {}),
        ("gpt2", "TokenClassification", {}),
        ("llama", "QuestionAnswering", {"tie_word_embeddings": True}),
        ("bert", "PreTraining", {}),
    ],
)
def test_what_was_made_for_another_task_is_refused_by_its_config(save, architecture, task, settings):
    assert "was not made to predict the next token" in refused(save(architecture, task, **settings))


@pytest.mark.parametrize(
    ("architecture", "task", "settings"),
    [
        ("llama", "SequenceClassification", {"tie_word_embeddings": True}),
        ("gpt2", "TokenClassification", {}),
    ],
)
def test_a_classifier_is_refused_by_its_weights_where_the_config_does_not_say_so(save, architecture, task, settings):
    folder = save(architecture, task, **settings)
    edit(folder / "config.json", architectures=None)
    assert "does not use" in refused(folder)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "xlm", "electra", "roformer", "rembert"])
def test_a_model_that_reads_in_both_directions_is_refused_whatever_it_is_called(save, architecture):
    settings = {"xlm": {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "n_words": 300}}.get(architecture, {})
    folder = save(architecture, **settings)  # as a causal model, with is_decoder false
    edit(folder / "config.json", architectures=None)
    assert "a later token changes earlier logits" in refused(folder)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "electra"])
def test_the_same_families_are_measured_as_decoders(save, architecture):
    assert load(save(architecture, is_decoder=True)).model.config.is_decoder


@pytest.mark.parametrize(
    ("architecture", "settings"),
    [
        ("bart", {"d_model": 16, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 16}),
        ("t5", {"d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}),
    ],
)
def test_an_encoder_decoder_is_refused(save, architecture, settings):
    settings |= {"decoder_ffn_dim": 16, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    assert "is an encoder-decoder" in refused(save(architecture, "Seq2SeqLM", **settings))


@pytest.mark.parametrize(
    "architecture",
    ["llama", "gpt2", "mixtral", "gemma2", "qwen2_moe", "bloom", "opt", "mpt", "openai-gpt", "mamba", "rwkv"],
)
def test_causal_decoders_load(save, architecture):
    settings = {
        "mixtral": {"num_local_experts": 4, "num_key_value_heads": 1},
        "gemma2": {"num_key_value_heads": 1, "head_dim": 8},
        "qwen2_moe": {
            "num_key_value_heads": 1,
            "num_experts": 4,
            "moe_intermediate_size": 8,
            "shared_expert_intermediate_size": 8,
        },
        "opt": {"ffn_dim": 16, "word_embed_proj_dim": 16},
        "mpt": {"d_model": 16, "n_heads": 2, "n_layers": 1},
        "rwkv": {"attention_hidden_size": 16},
    }
    loaded = load(save(architecture, **settings.get(architecture, {})))
    assert loaded.model.get_output_embeddings() is not None
    ignored = "the faster implementation of transformers ignores attn_logit_softcapping"
    # Version 5 has no faster one of gemma2.
    slowed = architecture == "gemma2" and loaded.model._supports_sdpa
    assert loaded.warnings == ((f"attention is eager, and slower: {ignored}",) if slowed else ())


@pytest.mark.parametrize(
    "extra",
    [
        "model.layers.2.mlp.up_proj.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "model.layers.1.mlp.down_proj.bias",
        "model.norm.bias",
        "lm_head.bias",
        "score.weight",
        "v_head.summary.weight",
        "vision_tower.patch.weight",
    ],
)
def test_weights_that_the_model_does_not_use_are_refused(save, extra):
    folder = save("llama")
    change(folder, {extra: torch.ones(16)})
    assert f"1 weights that LlamaForCausalLM does not use ({extra} ...)" in refused(folder)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("llama", "model.layers.0.self_attn.bias"),
        ("mistral", "model.layers.1.self_attn.bias"),
    ],
)
def test_a_bias_that_is_called_as_masks_are_is_refused(save, architecture, name):
    folder = save(architecture)
    change(folder, {name: torch.ones(16)})
    assert f"does not use ({name} ...)" in refused(folder)


def test_rotary_frequencies_of_another_base_than_the_configs_are_refused_and_rounded_ones_load(save):
    folder = save("llama")
    own = 10000.0 ** -(torch.arange(0, 8, 2) / 8)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    for same in (own, own.to(torch.bfloat16), own.half()):
        change(folder, {name: same})
        load(folder)
    change(folder, {name: 500000.0 ** -(torch.arange(0, 8, 2) / 8)})
    assert f"rotary frequencies ({name}) that config.json does not give" in refused(folder)


def test_layers_that_only_guess_ahead_are_harmless_where_the_config_tells_of_them(save):
    folder = save("llama")
    change(folder, {"model.layers.2.mlp.up_proj.weight": torch.ones(16)})
    edit(folder / "config.json", num_nextn_predict_layers=1)
    load(folder)
    change(folder, {"model.layers.3.mlp.up_proj.weight": torch.ones(16)})
    assert "does not use (model.layers.3." in refused(folder)


@pytest.mark.parametrize(("architecture", "body"), [("llama", "LlamaModel"), ("gpt2", "GPT2Model")])
def test_a_body_that_was_saved_without_a_head_is_said_to_be_one(save, architecture, body):
    (warning,) = load(save(architecture, task=None, tie_word_embeddings=True)).warnings
    assert warning.startswith(f"config.json names {body}, a body without a head")


def test_fewer_layers_in_the_config_than_in_the_file_are_refused(save):
    folder = save("llama")
    edit(folder / "config.json", num_hidden_layers=1)
    assert "does not use (model.layers.1." in refused(folder)


def test_more_layers_in_the_config_and_renamed_weights_are_refused(save):
    folder = save("llama")
    edit(folder / "config.json", num_hidden_layers=3)
    assert "lacks 9 weights" in refused(folder)
    edit(folder / "config.json", num_hidden_layers=2)
    held = load_file(folder / "model.safetensors")
    change(folder, {f"language_model.{name}": each for name, each in held.items()}, without=held)
    assert "weights of LlamaForCausalLM" in refused(folder)


@pytest.mark.parametrize(
    ("architecture", "settings", "names"),
    [
        ("llama", {}, ["model.layers.0.self_attn.rotary_emb.inv_freq"]),
        ("gpt2", {}, ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"]),
        ("gptj", {"rotary_dim": 4}, ["transformer.h.0.attn.bias", "transformer.h.0.attn.masked_bias"]),
        ("codegen", {"rotary_dim": 4, "num_attention_heads": 4}, ["transformer.h.0.attn.causal_mask"]),
        ("gpt_neox", {}, ["gpt_neox.layers.0.attention.bias", "gpt_neox.layers.0.attention.masked_bias"]),
        ("opt", {"ffn_dim": 16, "word_embed_proj_dim": 16}, ["model.decoder.version"]),
        ("llama", {}, ["mtp.layers.0.mlp.up_proj.weight"]),
    ],
)
def test_masks_and_tables_of_old_checkpoints_are_harmless(save, architecture, settings, names):
    folder = save(architecture, **settings)
    change(folder, {name: torch.ones(1, 1, 4, 4) for name in names})
    load(folder)


def test_a_tied_model_needs_no_head_in_its_file_and_may_have_the_same_one(save):
    folder = save("llama", tie_word_embeddings=True)
    held = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in held
    load(folder)
    change(folder, {"lm_head.weight": held["model.embed_tokens.weight"].clone()})
    load(folder)


def test_a_head_of_its_own_is_never_left_out_by_tying(save):
    folder = save("llama", tie_word_embeddings=False)
    own = load(folder).model.lm_head.weight
    edit(folder / "config.json", tie_word_embeddings=True)
    if TRANSFORMERS_MAJOR < 5:
        assert "holds a head of its own (lm_head.weight), which would be left out" in refused(folder)
    else:  # which ties nothing where the checkpoint has both
        assert torch.equal(load(folder).model.lm_head.weight, own)


def test_a_body_saved_without_the_name_of_the_whole_loads(save):
    folder = save("gpt2")
    held = load_file(folder / "model.safetensors")
    change(folder, {name.removeprefix("transformer."): each for name, each in held.items()}, without=held)
    load(folder)


def test_an_adapter_is_refused_beside_its_base_and_alone(save):
    folder = save("llama")
    save_file({"base_model.x.lora_A.weight": torch.ones(1)}, folder / "adapter_model.safetensors")
    assert "an adapter (LoRA) beside its base that is not merged: merge it" in refused(folder)
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert "beside its base" in refused(folder)
    with pytest.raises(ModelLoadError, match="adapter"):
        identify_model(str(folder))
    (folder / "model.safetensors").unlink()
    assert "holds an adapter (LoRA) that is not merged" in refused(folder)


def test_only_the_files_that_are_read_are_counted_and_digested(save):
    one, other = save("llama"), save("llama", name="other")
    for folder in (one, other):
        shard(folder)
    before, digest = load(one), folder_digest(one)
    for name in (
        "consolidated.safetensors",
        "consolidated.00.pth",
        "pytorch_model.bin",
        "model-00003-of-00003.safetensors",
    ):
        (one / name).write_bytes(b"something else entirely")
    (one / "original").mkdir()
    (one / "original" / "consolidated.00.pth").write_bytes(b"x")
    after = load(one)
    assert weight_files(one)[1] == [one / f"model-0000{part}-of-00002.safetensors" for part in (1, 2)]
    assert (after.file_size_bytes, after.digests.weights) == (before.file_size_bytes, digest)
    assert folder_digest(other) == digest


def test_one_file_comes_before_an_index_as_in_loading(save):
    folder = save("llama")
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {"a": "gone.safetensors"}}')
    assert weight_files(folder) == ("safetensors", [folder / "model.safetensors"])
    load(folder)


def test_a_pickle_is_not_taken_for_what_lies_beside_it(save):
    folder = save("llama")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").rename(folder / "consolidated.safetensors")
    assert weight_files(folder) == ("pickle", [folder / "pytorch_model.bin"])
    assert load(folder).facts["weights_format"] == "pickle"


def test_an_index_that_names_missing_or_no_files_is_one_line(save):
    folder = save("llama")
    shard(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "1 of 2 files are missing" in refused(folder)
    for content in ("{}", "[]", '{"weight_map": {"a": 1}}', '{"weight_map": {"a": null, "b": "c"}}'):
        (folder / "model.safetensors.index.json").write_text(content)
        assert "model.safetensors.index.json is damaged" in refused(folder)


@pytest.mark.parametrize("method", ["gptq", "bitsandbytes", "awq", "compressed-tensors"])
def test_weights_that_were_stored_quantized_end_with_a_remedy(save, method, monkeypatch):
    folder = save("llama")
    edit(
        folder / "config.json",
        quantization_config={"quant_method": method, "bits": 4, "load_in_8bit": True, "group_size": 32},
    )

    def lacking(*args, **settings):
        raise NameError("name 'QuantizeConfig' is not defined")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lacking)
    line = refused(folder)
    assert f"its weights were stored by {method} and cannot be read here: install" in line
    assert "or choose the model with float weights" in line


def test_a_sentencepiece_file_alone_asks_for_sentencepiece(save, monkeypatch):
    folder = save("llama")
    for path in [*folder.glob("tokenizer*"), *folder.glob("special*")]:
        path.unlink()
    assert "holds no tokenizer" in refused(folder)
    (folder / "tokenizer.model").write_bytes(b"pieces")
    monkeypatch.setattr("llmtrack.models.load_errors.find_spec", lambda name: None)
    assert "pip install sentencepiece protobuf" in refused(folder)


def test_other_shapes_than_the_config_says_are_one_line(save):
    folder = save("llama")
    edit(folder / "config.json", intermediate_size=48)
    assert "have other shapes than config.json says" in refused(folder)


def test_the_probe_looks_at_numbers_only():
    model, _ = synthetic.build("tiny", device="cpu", dtype=torch.float32)
    assert not looks_ahead(model)
    with torch.no_grad():
        model.lm_head.weight.zero_()  # every token alike
        assert not looks_ahead(model)
        model.model.norm.weight.fill_(torch.nan)  # found while measuring
        assert not looks_ahead(model)
