"""Create models with random weights in the shape of a named architecture: real speed and memory, no quality.

They need no network and no files, and have a tokenizer with one token per byte.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from llmtrack.devices import kind_of
from llmtrack.models import bytelevel
from llmtrack.models.digests import ModelDigests
from llmtrack.models.source import PRESETS, Preset

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

# Increment it when a preset and seed give other weights.
WEIGHTS_VERSION = 1


def build(
    name: str, *, device: str, dtype: torch.dtype, seed: int = 0
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Create the model (in eval mode) and tokenizer of a preset, directly on its device if that is a CPU or runs CUDA.

    The weights depend only on the preset, the seed and the kind of device: those of a 16-bit dtype are the rounded
    float32 ones. torch's global random state and default dtype do not change.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from llmtrack.host.transformers_compat import no_init_weights

    preset = PRESETS[name]
    place = torch.device(drawing_device(device))
    tokenizer = build_tokenizer(preset)
    config = config_of(preset, tokenizer)
    before = torch.get_default_dtype()
    cuda = [place] if place.type == "cuda" else []
    try:
        # Skip the modules' own initialisation, which takes a minute for billions of weights.
        with torch.random.fork_rng(devices=cuda), torch.device(place), no_init_weights():
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    finally:
        torch.set_default_dtype(before)
    _fill(model, seed)
    model.tie_weights()
    return model.to(device).eval(), tokenizer


def drawing_device(device: str) -> str:
    """Return the device to draw random weights on: other kinds than CPU and CUDA may not be reproducible."""
    return device if kind_of(device) in ("cpu", "cuda") else "cpu"


def digests(name: str, seed: int, device: str) -> ModelDigests:
    """Return `synthetic:sha256` of what determines weights, config and tokenizer, without hashing them."""
    from llmtrack.host.transformers_compat import TRANSFORMERS_MAJOR

    kind = kind_of(drawing_device(device))
    shape = _digest(name, PRESETS[name])
    return ModelDigests(
        weights=_digest(name, PRESETS[name], seed, kind, WEIGHTS_VERSION, TRANSFORMERS_MAJOR),
        config=shape,
        tokenizer=shape,
    )


def _digest(*parts: object) -> str:
    return f"synthetic:{hashlib.sha256(repr(list(parts)).encode()).hexdigest()}"


def build_tokenizer(preset: Preset) -> PreTrainedTokenizerFast:
    """Build a tokenizer with one token per UTF-8 byte, padded to the preset's vocabulary.

    Special tokens, to which only their names encode, and reserved ones follow ids 0-255, so that every id can be decoded.
    """
    specials = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"}
    if not preset.pad_token:  # like GPT-2: one token in both roles, and none for padding
        specials = {"bos_token": "<|eos|>", "eos_token": "<|eos|>"}
    settings = bytelevel.tokenizer_settings(specials, preset.context)
    return bytelevel.wrap(_byte_tokenizer(list(dict.fromkeys(specials.values())), preset.vocab), settings)


def _byte_tokenizer(specials: list[str], vocab: int) -> Tokenizer:
    from tokenizers import AddedToken, models

    tokens = [*bytelevel.byte_symbols(), *specials]
    tokens += [f"<|reserved_{number}|>" for number in range(len(tokens), vocab)]
    vocab_of = {token: number for number, token in enumerate(tokens)}
    tokenizer = bytelevel.tokenizer_of(models.BPE(vocab=vocab_of, merges=[]))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return tokenizer


def config_of(preset: Preset, tokenizer: PreTrainedTokenizerFast) -> PretrainedConfig:
    """Create the config of a preset, with its tokenizer's special tokens."""
    from transformers import AutoConfig

    from llmtrack.host.transformers_compat import rope_settings

    settings: dict[str, Any] = {
        "vocab_size": preset.vocab,
        "tie_word_embeddings": preset.tied,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    if preset.architecture == "gpt2":
        settings |= {
            "n_embd": preset.hidden,
            "n_inner": preset.intermediate,
            "n_layer": preset.layers,
            "n_head": preset.heads,
            "n_positions": preset.context,
        }
    else:
        settings |= {
            "hidden_size": preset.hidden,
            "intermediate_size": preset.intermediate,
            "num_hidden_layers": preset.layers,
            "num_attention_heads": preset.heads,
            "num_key_value_heads": preset.kv_heads,
            "max_position_embeddings": preset.context,
            **rope_settings(preset.rope_theta),
        }
    return AutoConfig.for_model(preset.architecture, **settings)


def _fill(model: PreTrainedModel, seed: int) -> None:
    import torch

    generator = torch.Generator(device=model.device).manual_seed(seed)
    with torch.no_grad():
        # By name, independent of the order in which transformers creates modules.
        for name, weight in sorted(model.named_parameters()):
            if weight.ndim == 1:  # biases and norm scales
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                values = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
                # Unit gain: with smaller weights a tied model just repeats its last token.
                std = weight.shape[-1] ** -0.5
                weight.copy_(values.normal_(0.0, std, generator=generator))
