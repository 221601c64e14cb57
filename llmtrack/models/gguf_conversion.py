"""Convert a GGUF file to a model folder: float32 safetensors and a correct tokenizer.

transformers reads the weights. Its tokenizer conversion is only a fallback: it loses the pre-tokenizer
(`tokenizer.ggml.pre`) and, before version 5, the special tokens, so that the model would receive other tokens than it
was trained on.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmtrack.errors import ModelLoadError
from llmtrack.models import bytelevel
from llmtrack.models.cache import build_once, file_digest, safe_name
from llmtrack.models.disk import Weights, room_for
from llmtrack.models.durations import timed_step
from llmtrack.models.gguf_file import open_gguf, read_metadata
from llmtrack.models.safe_view import LOCAL, isolated_file

if TYPE_CHECKING:
    from gguf import GGUFReader
    from tokenizers import Tokenizer


# Part of the name of every converted folder: increment it when the conversion changes.
CONVERTER_VERSION = 1

TOKEN_TYPE_UNKNOWN, TOKEN_TYPE_CONTROL, TOKEN_TYPE_USER_DEFINED = 2, 3, 4

_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")

# Pre-tokenizers by `tokenizer.ggml.pre`: (split single digits first, regex or None for GPT-2's, NFC). Other names fall
# back to transformers' conversion.
PRE_TOKENIZERS: Mapping[str, tuple[bool, str | None, bool]] = {
    "gpt-2": (False, None, False),
    "olmo": (False, None, False),
    "smollm": (True, None, False),
    "starcoder": (True, None, False),
    "llama-bpe": (False, _LLAMA3_WORDS, False),
    "qwen2": (False, _QWEN2_WORDS, True),
}


def entry_name(name: str, gguf_sha256: str) -> str:
    """Return the name of the cache entry of a converted GGUF file."""
    return f"{name}-gguf{gguf_sha256[:16]}-v{CONVERTER_VERSION}"


def ensure(path: Path) -> Path:
    """Return the model folder of a user's GGUF file; convert it if necessary.

    Raises:
        ModelLoadError: the file cannot be converted, or the cache cannot be used.
    """
    digest = file_digest(path)
    return build_once(
        entry_name(safe_name(path.stem), digest),
        lambda folder: {**convert_gguf(path, folder), "gguf_sha256": digest},
    )


def describe(path: Path) -> Path:
    """Return a folder with the config and tokenizer of a GGUF file, equal to those from `ensure`, without its weights.

    Raises:
        ModelLoadError: the file or its tokenizer cannot be read.
    """
    digest = file_digest(path)

    def build(folder: Path) -> dict[str, str]:
        reader = open_gguf(path)
        metadata = read_metadata(reader)
        with _read_once(reader, path):
            bytelevel.write(*_tokenizer(path, metadata), folder)
            _write_config(path, folder, metadata)
        return {"gguf_sha256": digest}

    return build_once(f"{safe_name(path.stem)}-about-gguf{digest[:16]}-v{CONVERTER_VERSION}", build)


def convert_gguf(path: Path, folder: Path) -> dict[str, str]:
    """Write the model and tokenizer of a GGUF file into an existing folder; return facts for its manifest.

    Raises:
        ModelLoadError: the file cannot be read or converted, or the disk is too small.
    """
    import transformers

    reader = open_gguf(path)
    weights = Weights(sum(int(tensor.n_elements) for tensor in reader.tensors))
    step = timed_step("converting a GGUF file to safetensors", path.name)
    with room_for(folder, weights.stored()), step, _read_once(reader, path):
        metadata = read_metadata(reader)
        tokenizer, settings = _tokenizer(path, metadata)
        bytelevel.write(tokenizer, settings, folder)
        _write_model(path, folder, metadata)
    return {"converted_by": f"transformers {transformers.__version__}"}


@contextmanager
def _read_once(reader: GGUFReader, path: Path) -> Iterator[None]:
    """Let transformers take the open reader of a file: it would read the metadata anew for each of config and weights.

    It also derives the names of all tensors once per module, which takes as long again.
    """
    import gguf

    original, names = gguf.GGUFReader, gguf.get_tensor_name_map
    gguf.GGUFReader = lambda file: reader if path.samefile(file) else original(file)  # type: ignore[assignment, misc]
    gguf.get_tensor_name_map = cache(names)
    try:
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = original, names  # type: ignore[misc]


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build a byte-level BPE tokenizer from metadata with `tokenizer.ggml.model` gpt2 and `tokenizer.ggml.pre` in
    `PRE_TOKENIZERS`.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    digits, words, nfc = PRE_TOKENIZERS[metadata["tokenizer.ggml.pre"]]

    tokenizer = Tokenizer(
        models.BPE(
            vocab={token: number for number, token in enumerate(tokens)},
            merges=merges,
            ignore_merges=metadata["tokenizer.ggml.pre"] == "llama-bpe",
        )
    )
    steps: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if digits else []
    if words is not None:
        steps.append(pre_tokenizers.Split(Regex(words), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=words is None))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    if nfc:
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = _post_processor(metadata, tokens)
    tokenizer.add_tokens(
        [
            AddedToken(token, special=kind != TOKEN_TYPE_USER_DEFINED, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in (TOKEN_TYPE_UNKNOWN, TOKEN_TYPE_CONTROL, TOKEN_TYPE_USER_DEFINED)
        ]
    )
    return tokenizer


def special_ids(metadata: Mapping[str, Any]) -> dict[str, int | None]:
    """Return the file's bos, eos, pad and unk ids, None if missing."""
    names = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
    return {role: metadata.get(f"tokenizer.ggml.{name}_token_id") for role, name in names.items()}


def _post_processor(metadata: Mapping[str, Any], tokens: list[str]) -> Any:
    from tokenizers import processors

    plain = processors.ByteLevel(trim_offsets=False)
    bos = special_ids(metadata)["bos"]
    # As in llama.cpp, a missing key means true in Llama 3 files.
    if bos is None or not metadata.get("tokenizer.ggml.add_bos_token", metadata["tokenizer.ggml.pre"] == "llama-bpe"):
        return plain
    template = processors.TemplateProcessing(
        single=f"{tokens[bos]} $A",
        pair=f"{tokens[bos]} $A {tokens[bos]}:1 $B:1",
        special_tokens=[(tokens[bos], bos)],
    )
    return processors.Sequence([plain, template])


def _tokenizer(path: Path, metadata: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    tokens: list[str] = metadata.get("tokenizer.ggml.tokens") or []
    if not tokens:
        raise ModelLoadError(f"{path.name} holds no tokenizer: give a GGUF file that does, or a model folder")
    specials = {
        f"{role}_token": tokens[number] if number is not None and 0 <= number < len(tokens) else None
        for role, number in special_ids(metadata).items()
    }
    context = int(metadata.get(f"{metadata['general.architecture']}.context_length", 2048))
    settings = bytelevel.tokenizer_settings(specials, context, metadata.get("tokenizer.chat_template"))
    byte_level = metadata.get("tokenizer.ggml.model") == "gpt2"
    if byte_level and metadata.get("tokenizer.ggml.pre") in PRE_TOKENIZERS:
        return build_tokenizer(metadata), settings

    from transformers import AutoTokenizer

    with isolated_file(path) as view:
        converted = AutoTokenizer.from_pretrained(str(view), gguf_file=path.name, **LOCAL)
    return converted.backend_tokenizer, settings


def _write_model(path: Path, folder: Path, metadata: Mapping[str, Any]) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from llmtrack.host.transformers_compat import custom_code_refused

    with isolated_file(path) as view, custom_code_refused():
        model = AutoModelForCausalLM.from_pretrained(str(view), gguf_file=path.name, dtype=torch.float32, **LOCAL)
    _set_special_ids(model, metadata)
    model.save_pretrained(str(folder))
    _make_portable(folder / "config.json")


def _write_config(path: Path, folder: Path, metadata: Mapping[str, Any]) -> None:
    """Write the settings of a model; if transformers does not support it, only the ids."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    try:
        with isolated_file(path) as view:
            config = AutoConfig.from_pretrained(str(view), gguf_file=path.name, **LOCAL)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
    except Exception:  # llama.cpp may support architectures that transformers does not
        _write_ids(folder, metadata)
        return
    _set_special_ids(model, metadata)
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(str(folder))
    model.generation_config.save_pretrained(str(folder))
    _make_portable(folder / "config.json")


def _write_ids(folder: Path, metadata: Mapping[str, Any]) -> None:
    ids = _id_settings(metadata)
    vocab_size = len(metadata["tokenizer.ggml.tokens"])
    config = {"architectures": [metadata["general.architecture"]], "vocab_size": vocab_size, **ids}
    for name, content in (("config.json", config), ("generation_config.json", ids)):
        (folder / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def _id_settings(metadata: Mapping[str, Any]) -> dict[str, int | None]:
    return {f"{role}_token_id": number for role, number in special_ids(metadata).items() if role != "unk"}


def _set_special_ids(model: Any, metadata: Mapping[str, Any]) -> None:
    from transformers import GenerationConfig

    from llmtrack.host.transformers_compat import make_savable

    ids = _id_settings(metadata)
    for name, number in ids.items():
        setattr(model.config, name, number)
    make_savable(model)
    model.generation_config = GenerationConfig(**ids)


def _make_portable(config: Path) -> None:
    from llmtrack.host.transformers_compat import portable_rope

    content = portable_rope(json.loads(config.read_text(encoding="utf-8")))
    config.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
