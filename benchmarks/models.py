"""Models of the benchmarks, as local folders that every program can read; created once, in the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from llmtrack.models import packaged
from llmtrack.models.cache import build_once


def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct."""
    return packaged.ensure("smollm2")


def tiny() -> Path:
    """Return the folder of a tiny model for trials, created without a network."""

    def build(folder: Path) -> dict[str, str]:
        import torch

        from llmtrack.models.load import load_model

        loaded = load_model("synthetic:tiny", device="cpu", dtype=torch.float32)
        loaded.model.save_pretrained(folder)
        loaded.tokenizer.save_pretrained(folder)
        return {}

    return build_once("benchmark-tiny", build)


def large_vocabulary(source: Path, vocabulary: int, width: int, layers: int) -> Path:
    """Return the folder of a Llama with random weights and a vocabulary of any size.

    Args:
        source: a model whose tokenizer is used; ids beyond its vocabulary are never read, but are predicted.
        vocabulary: number of ids.
        width: hidden size, a multiple of 64.
        layers: number of layers.
    """

    def build(folder: Path) -> dict[str, str]:
        import torch
        from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

        tokenizer: Any = AutoTokenizer.from_pretrained(source, local_files_only=True)
        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=width,
            intermediate_size=3 * width,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
            num_key_value_heads=width // 64,
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return {}

    return build_once(f"benchmark-{source.name}-vocabulary-{vocabulary}-{width}-{layers}", build)
