"""Small tokenizers of every kind, and an engine that scores 1 nat per predicted token with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizer, PreTrainedTokenizerFast

from llmtrack.engines.base import WithTokenizer
from llmtrack.engines.scripted import FakeClock, Script, ScriptedEngine
from llmtrack.models.bytelevel import byte_symbols
from llmtrack.tensors import tokens

LETTERS = "abcdefghijklmnopqrstuvwxyz"


class TokenizingEngine(WithTokenizer, ScriptedEngine):
    """A scripted engine with a transformers tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(FakeClock(), Script(1.0, 1.0))
        self.tokenizer = tokenizer
        self._info = replace(self._info, special_tokens=tokens.special_tokens(tokenizer))


def wrap(tokenizer: Tokenizer, **roles: str) -> TokenizingEngine:
    return TokenizingEngine(PreTrainedTokenizerFast(tokenizer_object=tokenizer, **roles))


def byte_level(*merges: tuple[str, str], trim_offsets: bool = False) -> Tokenizer:
    """One token per byte, and merges; `<s>` is 0 and `</s>` is 1."""
    vocab = {symbol: number for number, symbol in enumerate(["<s>", "</s>", *byte_symbols()])}
    for pair in merges:
        vocab["".join(pair)] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=list(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in ("<s>", "</s>")])
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Letters, a space as `▁`, also before each text, and bytes for all else; `<s>` is 1 and `</s>` is 2."""
    symbols = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *LETTERS]
    vocab = {symbol: number for number, symbol in enumerate(symbols)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


def unigram() -> Tokenizer:
    """Some words as one token each; neighbouring unknown characters are one `<unk>`."""
    words = [("<unk>", 0.0), ("▁", -5.0), *((f"▁{word}", -1.0) for word in ("one", "two", "three"))]
    tokenizer = Tokenizer(models.Unigram(words, unk_id=0))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer


def word_piece() -> Tokenizer:
    """`one`, `two` and pieces of `twofold`, in lower case and without accents; `[CLS]` and `[SEP]` around a text."""
    vocab = {name: n for n, name in enumerate(["[UNK]", "[CLS]", "[SEP]", "one", "two", "##fold", "e", "##a"])}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def without_unknown() -> Tokenizer:
    """Letters only; all else vanishes."""
    tokenizer = Tokenizer(models.BPE(vocab={letter: n for n, letter in enumerate(LETTERS)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def around(tokenizer: Tokenizer, template: str) -> Tokenizer:
    """Add `<s>` and `</s>` to every text by a template such as `<s> $A </s>`."""
    names = [name for name in ("<s>", "</s>") if name in template.split()]
    added = processors.TemplateProcessing(
        single=template, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names]
    )
    before = tokenizer.post_processor
    tokenizer.post_processor = processors.Sequence([before, added]) if before else added
    return tokenizer


class SlowTokenizer(PreTrainedTokenizer):
    """A tokenizer in Python, without offsets: one token per character, `?` for unknown ones."""

    model_input_names = ("input_ids", "attention_mask")  # type: ignore[assignment]

    def __init__(self, adds_bos: bool = False, **options: Any) -> None:
        self._symbols = ["<unk>", "<s>", "</s>", *LETTERS, " "]
        self._adds_bos = adds_bos
        roles = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>"}
        super().__init__(**{**roles, **options})

    @property
    def vocab_size(self) -> int:
        return len(self._symbols)

    def get_vocab(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self._symbols)}

    def _tokenize(self, text: str, **options: Any) -> list[str]:
        return list(text)

    def _convert_token_to_id(self, token: str) -> int:
        return self._symbols.index(token) if token in self._symbols else 0

    def _convert_id_to_token(self, index: int) -> str:
        return self._symbols[index]

    def convert_tokens_to_string(self, tokens: list[str]) -> str:
        return "".join(tokens)

    def build_inputs_with_special_tokens(self, token_ids_0: list[int], token_ids_1: Any = None) -> list[int]:
        return [*([1] if self._adds_bos else []), *token_ids_0, 2]
