"""A model from scratch: a tokenizer that is trained on the text, and weights as training wants them to begin."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from llmtrack.models import bytelevel, synthetic

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

START, PAD = "<|endoftext|>", "<|pad|>"


def train_tokenizer(texts: Sequence[str], vocab: int, context: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer; whatever text it is given later, no byte of it is unknown.

    Args:
        texts: what to learn from: the text that is trained on, never the one that is held out.
        vocab: number of tokens at most, the 256 bytes and 2 special tokens among them.
        context: positions of the model.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
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
    """Return a model of a preset's shape in float32 and `eval()`, with the weights that its architecture begins training with.

    They are small (a standard deviation of 0.02), other than those of `models.synthetic`, whose scale is that of
    trained weights: with those, training would begin from confident guesses. torch's global random state is left
    as it was.
    """
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: PreTrainedModel = AutoModelForCausalLM.from_config(
            synthetic.config_of(preset, tokenizer), dtype=torch.float32
        )
    return model.eval()
