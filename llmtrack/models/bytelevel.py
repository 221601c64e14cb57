"""Byte-level tokenizers whose files all transformers versions read alike."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast


def byte_symbols() -> list[str]:
    """Return the printable character for each byte 0-255 in byte-level vocabularies.

    This is GPT-2's table: printable Latin-1 characters stand for themselves, the others start at U+0100.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    moved = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(moved)) for byte in range(256)]


def tokenizer_of(model: Any) -> Tokenizer:
    """Create a byte-level tokenizer around a model of `tokenizers`."""
    from tokenizers import Tokenizer, decoders, pre_tokenizers, processors

    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def tokenizer_settings(
    specials: Mapping[str, str | None], context_length: int, chat_template: str | None = None
) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`, given tokens by role (`bos_token`, `pad_token` ...)."""
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # Otherwise token_type_ids are emitted, which a decoder's `generate` rejects.
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": context_length,
        "clean_up_tokenization_spaces": False,
        **{role: token for role, token in specials.items() if token is not None},
    }
    return {**settings, "chat_template": chat_template} if chat_template else settings


def wrap(tokenizer: Tokenizer, settings: Mapping[str, Any]) -> PreTrainedTokenizerFast:
    """Wrap the tokenizer as a transformers tokenizer, with `tokenizer_settings`."""
    from transformers import PreTrainedTokenizerFast

    options = {name: value for name, value in settings.items() if name != "tokenizer_class"}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **options)


def write(tokenizer: Tokenizer, settings: Mapping[str, Any], folder: Path) -> None:
    """Write the tokenizer's files into a model folder, without transformers: its versions write other class names."""
    tokenizer.save(str(folder / "tokenizer.json"))
    text = json.dumps(settings, indent=2, ensure_ascii=False)
    (folder / "tokenizer_config.json").write_text(text + "\n", encoding="utf-8")
