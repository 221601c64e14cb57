"""Models with random weights in the shape of a named architecture: real speed and memory, no quality.

They need no network and no files, and come with a tokenizer of one token per byte, so that everything
that takes a model takes them too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llmtrack.models import bytelevel
from llmtrack.models.digests import ModelDigests

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer
    from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerFast

# Raise it when the same preset and seed give other weights than before.
WEIGHTS_VERSION = 1


@dataclass(frozen=True)
class Preset:
    """An architecture and its size.

    Attributes:
        architecture: `llama`, `qwen2` or `gpt2`, as transformers names model types.
        hidden: width of the residual stream.
        intermediate: width of the feed-forward layer.
        layers: number of blocks.
        heads: number of attention heads.
        kv_heads: number of key-value heads.
        vocab: number of token ids.
        context: positions.
        tied: whether the output head is the embedding.
        pad_token: whether the tokenizer has a pad token.
        rope_theta: base of the rotary embedding; unused where positions are learned.
    """

    architecture: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    tied: bool = True
    pad_token: bool = True
    rope_theta: float = 10000.0


PRESETS: Mapping[str, Preset] = {
    "tiny": Preset("llama", 128, 512, 4, 4, 2, 512, 1024),
    "tiny-gpt2": Preset("gpt2", 128, 512, 4, 4, 4, 512, 512, pad_token=False),
    # To be trained from scratch: about a million weights, a quarter of them in the embedding.
    "1m": Preset("llama", 128, 384, 4, 4, 4, 2048, 512),
    "smollm2-135m": Preset("llama", 576, 1536, 30, 9, 3, 49152, 8192, rope_theta=100000.0),
    "gpt2-124m": Preset("gpt2", 768, 3072, 12, 12, 12, 50257, 1024, pad_token=False),
    "qwen2-0.5b": Preset("qwen2", 896, 4864, 24, 14, 2, 151936, 32768, rope_theta=1000000.0),
    "llama-1b": Preset("llama", 2048, 8192, 16, 32, 8, 128256, 131072, rope_theta=500000.0),
    "llama-8b": Preset("llama", 4096, 14336, 32, 32, 8, 128256, 131072, tied=False, rope_theta=500000.0),
}


def build(
    name: str, *, device: str, dtype: torch.dtype, seed: int = 0
) -> tuple[PreTrainedModel, PreTrainedTokenizerFast]:
    """Make a model with random weights, directly on its device, and its tokenizer.

    The weights depend on the preset, the seed and the kind of device only: those of a 16-bit dtype are the
    rounded float32 ones. torch's global random state and default dtype are left as they were.

    Args:
        name: a key of `PRESETS`.
        device: `cpu` or `cuda:N`.
        dtype: dtype of the weights.
        seed: chooses the weights.

    Returns:
        The model in eval mode, and the tokenizer.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from llmtrack.compat import no_init_weights

    preset = PRESETS[name]
    place = torch.device(device)
    tokenizer = build_tokenizer(preset)
    config = config_of(preset, tokenizer)
    before = torch.get_default_dtype()
    cuda = [place] if place.type == "cuda" else []
    try:
        # The modules' own initialisation would be thrown away, and takes a minute for billions of weights.
        with torch.random.fork_rng(devices=cuda), torch.device(place), no_init_weights():
            model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    finally:
        torch.set_default_dtype(before)
    _fill(model, seed)
    model.tie_weights()
    return model.eval(), tokenizer


def digests(name: str, seed: int, device: str) -> ModelDigests:
    """Return `synthetic:sha256` of what weights, config and tokenizer depend on; they are never hashed themselves."""
    from llmtrack.compat import TRANSFORMERS_MAJOR

    kind, _, _ = device.partition(":")
    shape = _digest(name, PRESETS[name])
    return ModelDigests(
        weights=_digest(name, PRESETS[name], seed, kind, WEIGHTS_VERSION, TRANSFORMERS_MAJOR),
        config=shape,
        tokenizer=shape,
    )


def _digest(*parts: object) -> str:
    return f"synthetic:{hashlib.sha256(repr(list(parts)).encode()).hexdigest()}"


def build_tokenizer(preset: Preset) -> PreTrainedTokenizerFast:
    """Return a tokenizer of one token per UTF-8 byte, filled up to the preset's vocabulary.

    Ids 0-255 are the bytes, then come the special tokens, then reserved tokens that no text is encoded
    into, so that every id which a random model emits can be decoded.
    """
    specials = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "pad_token": "<|pad|>"}
    if not preset.pad_token:  # as GPT-2 has it: one token in both roles, and none for padding
        specials = {"bos_token": "<|eos|>", "eos_token": "<|eos|>"}
    settings = bytelevel.tokenizer_settings(specials, preset.context)
    return bytelevel.wrap(_byte_tokenizer(list(dict.fromkeys(specials.values())), preset.vocab), settings)


def _byte_tokenizer(specials: list[str], vocab: int) -> Tokenizer:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    tokens = [*bytelevel.byte_symbols(), *specials]
    tokens += [f"<|reserved_{number}|>" for number in range(len(tokens), vocab)]
    tokenizer = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in specials])
    return tokenizer


def config_of(preset: Preset, tokenizer: PreTrainedTokenizerFast) -> PretrainedConfig:
    """Return the configuration of a preset's model, with the special tokens of its tokenizer."""
    from transformers import AutoConfig

    from llmtrack.compat import rope_settings

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
        # By name, so that the order in which a version of transformers makes its modules does not matter.
        for name, weight in sorted(model.named_parameters()):
            if weight.ndim == 1:  # biases, and the scales of norms
                weight.fill_(0.0 if name.endswith("bias") else 1.0)
            else:
                values = torch.empty(weight.shape, dtype=torch.float32, device=weight.device)
                # Unit gain: with smaller weights a tied model repeats its last token whatever came before.
                std = weight.shape[-1] ** -0.5
                weight.copy_(values.normal_(0.0, std, generator=generator))
