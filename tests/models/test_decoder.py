"""Only complete causal decoders load, exactly as in their files; anything else is refused in one line."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.models.auto import modeling_auto

from llmtrack.errors import ModelLoadError
from llmtrack.host.transformers_compat import TRANSFORMERS_MAJOR
from llmtrack.models import synthetic
from llmtrack.models.decoder import looks_ahead
from llmtrack.models.load import identify_model
from tests.models.folders import edit, load, refusal

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
    """Save a small random model of an architecture for a task, with a tokenizer."""

    def saved(architecture, task="CausalLM", name="model", **settings):
        if "roberta" in architecture:  # the pad's id is one of its positions
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


def change(folder, weights=(), without=()):
    """Add tensors to a folder's file, and remove some."""
    stored = load_file(folder / "model.safetensors")
    stored = {name: tensor for name, tensor in stored.items() if name not in without} | dict(weights)
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})


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
def test_a_model_for_another_task_is_refused_by_its_config(save, architecture, task, settings):
    assert "was not trained to predict the next token" in refusal(save(architecture, task, **settings))


@pytest.mark.parametrize(
    ("architecture", "task", "settings"),
    [
        ("llama", "SequenceClassification", {"tie_word_embeddings": True}),
        ("gpt2", "TokenClassification", {}),
    ],
)
def test_a_classifier_is_refused_by_its_weights_without_a_config(save, architecture, task, settings):
    folder = save(architecture, task, **settings)
    edit(folder / "config.json", architectures=None)
    assert "does not use" in refusal(folder)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "xlm", "electra", "roformer", "rembert"])
def test_a_bidirectional_model_is_refused_whatever_its_name(save, architecture):
    settings = {"xlm": {"emb_dim": 16, "n_layers": 2, "n_heads": 2, "n_words": 300}}.get(architecture, {})
    folder = save(architecture, **settings)  # as a causal model, with is_decoder false
    edit(folder / "config.json", architectures=None)
    assert "a later token changes earlier logits" in refusal(folder)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "electra"])
def test_the_same_architectures_load_as_decoders(save, architecture):
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
    assert "is an encoder-decoder" in refusal(save(architecture, "Seq2SeqLM", **settings))


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
    is_slow = architecture == "gemma2" and loaded.model._supports_sdpa
    assert loaded.warnings == ((f"attention is eager, and slower: {ignored}",) if is_slow else ())


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
def test_unused_weights_are_refused(save, extra):
    folder = save("llama")
    change(folder, {extra: torch.ones(16)})
    assert f"1 weights that LlamaForCausalLM does not use ({extra} ...)" in refusal(folder)


@pytest.mark.parametrize(
    ("architecture", "name"),
    [
        ("llama", "model.layers.0.self_attn.bias"),
        ("mistral", "model.layers.1.self_attn.bias"),
    ],
)
def test_a_bias_named_like_a_mask_is_refused(save, architecture, name):
    folder = save(architecture)
    change(folder, {name: torch.ones(16)})
    assert f"does not use ({name} ...)" in refusal(folder)


def test_rotary_frequencies_of_another_base_are_refused_but_rounded_ones_load(save):
    folder = save("llama")
    frequencies = 10000.0 ** -(torch.arange(0, 8, 2) / 8)
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    for equal in (frequencies, frequencies.to(torch.bfloat16), frequencies.half()):
        change(folder, {name: equal})
        load(folder)
    change(folder, {name: 500000.0 ** -(torch.arange(0, 8, 2) / 8)})
    assert f"rotary frequencies ({name}) differ from those of config.json" in refusal(folder)


def test_layers_for_multi_token_prediction_are_ignored_if_the_config_names_them(save):
    folder = save("llama")
    change(folder, {"model.layers.2.mlp.up_proj.weight": torch.ones(16)})
    edit(folder / "config.json", num_nextn_predict_layers=1)
    load(folder)
    change(folder, {"model.layers.3.mlp.up_proj.weight": torch.ones(16)})
    assert "does not use (model.layers.3." in refusal(folder)


@pytest.mark.parametrize(("architecture", "body"), [("llama", "LlamaModel"), ("gpt2", "GPT2Model")])
def test_a_body_saved_without_a_head_is_a_warning(save, architecture, body):
    (warning,) = load(save(architecture, task=None, tie_word_embeddings=True)).warnings
    assert warning.startswith(f"config.json names {body}, a body without a head")


def test_fewer_layers_in_the_config_than_in_the_file_are_refused(save):
    folder = save("llama")
    edit(folder / "config.json", num_hidden_layers=1)
    assert "does not use (model.layers.1." in refusal(folder)


def test_more_layers_in_the_config_and_renamed_weights_are_refused(save):
    folder = save("llama")
    edit(folder / "config.json", num_hidden_layers=3)
    assert "lacks 9 weights" in refusal(folder)
    edit(folder / "config.json", num_hidden_layers=2)
    weights = load_file(folder / "model.safetensors")
    change(folder, {f"language_model.{name}": tensor for name, tensor in weights.items()}, without=weights)
    assert "weights of LlamaForCausalLM" in refusal(folder)


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
def test_masks_and_tables_of_old_checkpoints_are_ignored(save, architecture, settings, names):
    folder = save(architecture, **settings)
    change(folder, {name: torch.ones(1, 1, 4, 4) for name in names})
    load(folder)


def test_a_tied_model_needs_no_head_in_its_file_but_may_have_an_equal_one(save):
    folder = save("llama", tie_word_embeddings=True)
    weights = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in weights
    load(folder)
    change(folder, {"lm_head.weight": weights["model.embed_tokens.weight"].clone()})
    load(folder)


def test_a_separate_head_is_never_dropped_by_tying(save):
    folder = save("llama", tie_word_embeddings=False)
    head = load(folder).model.lm_head.weight
    edit(folder / "config.json", tie_word_embeddings=True)
    if TRANSFORMERS_MAJOR < 5:
        assert "holds another head (lm_head.weight), which would be ignored" in refusal(folder)
    else:  # it ties nothing if the checkpoint has both
        assert torch.equal(load(folder).model.lm_head.weight, head)


def test_weights_without_the_models_prefix_load(save):
    folder = save("gpt2")
    weights = load_file(folder / "model.safetensors")
    renamed = {name.removeprefix("transformer."): tensor for name, tensor in weights.items()}
    change(folder, renamed, without=weights)
    load(folder)


def test_an_adapter_is_refused_beside_its_base_and_alone(save):
    folder = save("llama")
    save_file({"base_model.x.lora_A.weight": torch.ones(1)}, folder / "adapter_model.safetensors")
    assert "an adapter (LoRA) beside its base that is not merged: merge it" in refusal(folder)
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    assert "beside its base" in refusal(folder)
    with pytest.raises(ModelLoadError, match="adapter"):
        identify_model(str(folder))
    (folder / "model.safetensors").unlink()
    assert "holds an adapter (LoRA) that is not merged" in refusal(folder)


@pytest.mark.parametrize("method", ["gptq", "bitsandbytes", "awq", "compressed-tensors"])
def test_unreadable_quantized_weights_name_a_remedy(save, method, monkeypatch):
    folder = save("llama")
    edit(
        folder / "config.json",
        quantization_config={"quant_method": method, "bits": 4, "load_in_8bit": True, "group_size": 32},
    )

    def fail(*args, **settings):
        raise NameError("name 'QuantizeConfig' is not defined")

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fail)
    line = refusal(folder)
    assert f"its weights were stored by {method} and cannot be read here: install" in line
    assert "or choose the model with float weights" in line


def test_a_missing_tokenizer_or_sentencepiece_is_named(save, monkeypatch):
    folder = save("llama")
    for path in [*folder.glob("tokenizer*"), *folder.glob("special*")]:
        path.unlink()
    assert "holds no tokenizer" in refusal(folder)
    (folder / "tokenizer.model").write_bytes(b"pieces")
    monkeypatch.setattr("llmtrack.models.load_errors.find_spec", lambda name: None)
    assert "pip install sentencepiece protobuf" in refusal(folder)


def test_weights_of_other_shapes_than_in_the_config_are_refused(save):
    folder = save("llama")
    edit(folder / "config.json", intermediate_size=48)
    assert "have other shapes than config.json says" in refusal(folder)


def test_equal_or_nan_logits_do_not_count_as_looking_ahead():
    model, _ = synthetic.build("tiny", device="cpu", dtype=torch.float32)
    assert not looks_ahead(model)
    with torch.no_grad():
        model.lm_head.weight.zero_()  # equal logits for all tokens
        assert not looks_ahead(model)
        model.model.norm.weight.fill_(torch.nan)  # reported while measuring
        assert not looks_ahead(model)
