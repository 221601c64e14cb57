"""Digest everything that affects a model's output, to identify it in tracked runs."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmtrack.host.transformers_compat import portable_rope, portable_tokenizer
from llmtrack.models.cache import file_digest, sha256_of
from llmtrack.models.weights import weight_files

NO_FILES = "none"
"""Digest of missing files."""

_CONFIG, _GENERATION, _TOKENIZER = "config.json", "generation_config.json", "tokenizer_config.json"

# Config keys that do not affect the output: origin, storage of the weights, and llmtrack's own choices.
_IRRELEVANT = frozenset(
    {
        "_name_or_path",
        "name_or_path",
        "_commit_hash",
        "_from_model_config",
        "transformers_version",
        "torch_dtype",
        "dtype",
        "use_cache",
        "_attn_implementation_autoset",
    }
)
# Tokenizer settings that the library records about itself.
_IRRELEVANT_TO_TOKENS = frozenset({"name_or_path", "_name_or_path", "transformers_version", "is_local", "backend"})

# Vocabularies, merges and templates under all common names.
TOKENIZER_FILES = (
    "tokenizer*",
    "vocab*",
    "*merges*",
    "special_tokens_map*",
    "added_tokens*",
    "normalizer.json",
    "encoder.json",
    "emoji.json",
    "dict.txt",
    "tekken.json",
    "chat_template*",
    "*.model",
    "*.spm",
    "*.bpe",
    "*.codes",
    "*.tiktoken",
)


@dataclass(frozen=True)
class ModelDigests:
    """Digests of a model; models with equal ones have equal output.

    Attributes:
        weights: with a format prefix: `safetensors:`, `gguf:`, `synthetic:` ...
        config: of the relevant model and generation settings.
    """

    weights: str
    config: str
    tokenizer: str

    @property
    def tags(self) -> dict[str, str]:
        """The digests by tag name."""
        return {
            "weights_digest": self.weights,
            "config_digest": self.config,
            "tokenizer_digest": self.tokenizer,
        }


def model_digests(folder: Path) -> ModelDigests:
    """Return the digests of a model folder."""
    return ModelDigests(folder_digest(folder), config_digest(folder), tokenizer_digest(folder))


def config_digest(folder: Path) -> str:
    """Return the digest of `config.json` and `generation_config.json`, or `NO_FILES`.

    It ignores key order, storage dtype, name and writer version, and whether rotary settings are spelled as by
    transformers 4 or 5.
    """
    contents = {name: _settings(folder / name) for name in (_CONFIG, _GENERATION) if (folder / name).is_file()}
    return _sha256(contents) if contents else NO_FILES


def tokenizer_digest(folder: Path) -> str:
    """Return the digest of the tokenizer's files, or `NO_FILES`."""
    names = {path.name for pattern in TOKENIZER_FILES for path in folder.glob(pattern) if path.is_file()}
    digests = {name: file_digest(folder / name) for name in names - {_TOKENIZER}}
    if _TOKENIZER in names:
        settings = _read(folder / _TOKENIZER)
        if isinstance(settings, dict):
            settings = _without(portable_tokenizer(settings), _IRRELEVANT_TO_TOKENS)
        digests[_TOKENIZER] = _sha256(settings)
    return _sha256(digests) if digests else NO_FILES


def _settings(path: Path) -> Any:
    content = _read(path)
    return _without(_normalized_rope(content), _IRRELEVANT) if isinstance(content, dict) else content


def _normalized_rope(config: dict[str, Any]) -> dict[str, Any]:
    """Return a config with all rotary settings in version 4's spelling."""
    config = {name: _normalized_rope(value) if isinstance(value, dict) else value for name, value in config.items()}
    portable = portable_rope(config)
    if portable is not config:
        portable = _without(portable, frozenset({"rope_parameters"}))
    scaling = portable.get("rope_scaling")
    if scaling is None:
        return _without(portable, frozenset({"rope_scaling"}))
    if isinstance(scaling, dict) and "type" in scaling:
        scaling = {"rope_type": scaling["type"], **_without(scaling, frozenset({"type"}))}
        return {**portable, "rope_scaling": scaling}
    return portable


def _read(path: Path) -> Any:
    """Parse a JSON file; return the digest of an invalid one."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return sha256_of(path)


def _without(settings: dict[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {
        name: _without(value, names) if isinstance(value, dict) else value
        for name, value in settings.items()
        if name not in names
    }


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def folder_digest(folder: Path) -> str:
    """Return `FORMAT:sha256` of a model folder's weights: of a single file, or of the list of several."""
    kind, files = weight_files(folder)
    if len(files) == 1:
        return f"{kind}:{file_digest(files[0])}"
    listing = "".join(f"{path.name} {file_digest(path)}\n" for path in files)
    return f"{kind}:{hashlib.sha256(listing.encode()).hexdigest()}"
