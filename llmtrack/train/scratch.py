"""Create a model from scratch: a tokenizer trained on the text, and initial weights."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from llmtrack.engines.torch.pytorch import TorchEngine
from llmtrack.models import bytelevel, synthetic
from llmtrack.models.digests import ModelDigests, config_digest, tokenizer_digest
from llmtrack.models.load import clean_generation
from llmtrack.models.probe_cache import ProbeCache
from llmtrack.models.source import parse_candidates
from llmtrack.spec.task import TrainTask
from llmtrack.train.data import Split

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

START, PAD = "<|endoftext|>", "<|pad|>"


def train_tokenizer(texts: Sequence[str], vocab: int, context: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer, which has no unknown tokens, on the training text.

    `vocab` is its maximum size, including 256 bytes and 2 special tokens; `context` the positions of the model.
    """
    from tokenizers import models, trainers

    tokenizer = bytelevel.tokenizer_of(models.BPE())
    trainer = trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[START, PAD],
        initial_alphabet=sorted(bytelevel.byte_symbols()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    specials = {"bos_token": START, "eos_token": START, "pad_token": PAD}
    return bytelevel.wrap(tokenizer, bytelevel.tokenizer_settings(specials, context))


def new_model(preset: synthetic.Preset, tokenizer: PreTrainedTokenizerFast, seed: int) -> PreTrainedModel:
    """Create a model of a preset's shape in float32 and `eval()`, with the initial weights of its architecture.

    They are small (a standard deviation of 0.02), unlike those of `models.synthetic`, which have the scale of trained
    weights and would start training from confident guesses. torch's global random state is preserved.
    """
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            synthetic.config_of(preset, tokenizer), dtype=torch.float32
        )
    return model.eval()


def fresh_engine(model: str, task: TrainTask, split: Split, device: str) -> TorchEngine:
    """Create an engine with a preset's shape, fresh weights, and a tokenizer trained on the training text."""
    source = parse_candidates(model)[0]
    preset = synthetic.PRESETS[source.location]
    tokenizer = train_tokenizer(split.train, preset.vocab, preset.context)
    fresh = new_model(preset, tokenizer, task.seed).to(torch.device(device))
    clean_generation(fresh, tokenizer)
    # The seed, config and tokenizer determine the weights.
    digests = _fresh_digests(fresh, tokenizer, f"fresh:{source.location}:{task.seed}")
    return TorchEngine(
        fresh,
        tokenizer,
        model_id=source.spec,
        facts={
            "architecture": type(fresh).__name__,
            "parameters": sum(weight.numel() for weight in fresh.parameters()),
            "model_source": source.kind,
            "weights_format": "fresh",
            "tokenizer_tokens": len(tokenizer),
        },
        tags=digests.tags,
        probe_cache=ProbeCache(digests.tags),
    )


def _fresh_digests(model: Any, tokenizer: Any, weights: str) -> ModelDigests:
    """Digest config and tokenizer of an unsaved model as they would be saved."""
    with tempfile.TemporaryDirectory() as name:
        for part in (model.config, model.generation_config, tokenizer):
            part.save_pretrained(name)
        return ModelDigests(weights, config_digest(Path(name)), tokenizer_digest(Path(name)))
