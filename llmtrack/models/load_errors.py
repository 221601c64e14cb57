"""Explain in one line why a model cannot be loaded, with the remedy: damaged files and library errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from llmtrack.errors import LlmtrackError, ModelLoadError, in_words
from llmtrack.host.formatting import truncate

MAX_CHARACTERS = 400

NEEDS_CODE = "it needs code from its own repository, which llmtrack never runs: choose another model"

# (class name of the exception or of a base, pattern in its message, message for the user with the pattern's groups).
_KNOWN: tuple[tuple[str, str, str], ...] = (
    (
        "Exception",
        "trust_remote_code",
        NEEDS_CODE,
    ),
    ("GatedRepoError", "", "the hub asks for permission: accept its terms and log in with `hf auth login`"),
    ("RevisionNotFoundError", "", "the hub has no such revision: check the name"),
    (
        "RepositoryNotFoundError",
        "",
        "the hub has no such model, or it is private: check the id, or log in with `hf auth login`",
    ),
    (
        "OfflineModeIsEnabled",
        "",
        "it is not in the hub's local cache, and offline mode is on: unset HF_HUB_OFFLINE, or fetch it first",
    ),
    (
        "OutOfMemoryError",
        "",
        "the device has not enough memory: choose a smaller model, a 16-bit dtype or device=cpu",
    ),
    (
        "OSError",
        "No space left on device|Disk quota exceeded",
        "the disk of the hub's cache is full: free some space there, or set HF_HOME to a folder on another disk",
    ),
    *(
        (name, text, "this machine has not enough memory: choose a smaller model or a 16-bit dtype")
        for name, text in (
            ("MemoryError", ""),
            ("RuntimeError", "can't allocate memory"),
            ("OSError", "Cannot allocate memory"),
        )
    ),
    (
        "ValueError",
        "Unrecognized configuration class",
        "it is not a causal language model: choose a decoder-only one",
    ),
    (
        "ValueError",
        "Unrecognized model in",
        "its config.json is missing or names no model_type: give a complete model folder",
    ),
    (
        "RuntimeError",
        "size mismatch|ignore_mismatched_sizes",
        "the checkpoint's weights have other shapes than config.json says: they do not belong together",
    ),
    (
        "ValueError",
        "model type `([^`]+)` but Transformers does not recognize",
        "the installed transformers knows no model_type {0} (config.json): upgrade it, or choose another model",
    ),
    (
        "ValueError",
        "Tokenizer class (\\S+) does not exist",
        "the installed transformers knows no tokenizer_class {0} (tokenizer_config.json): upgrade it, or choose another "
        "model",
    ),
    ("SafetensorError", "", "its safetensors file is damaged: fetch it again"),
)

# Packages that read pre-quantized weights, by transformers' method name.
_QUANTIZERS = {
    "gptq": "gptqmodel optimum",
    "bitsandbytes": "bitsandbytes",
    "awq": "autoawq",
    "compressed-tensors": "compressed-tensors",
    "hqq": "hqq",
    "aqlm": "aqlm[gpu,cpu]",
    "torchao": "torchao",
}
_SENTENCEPIECE = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")

_OTHER_VERSION = re.compile(r"(Max|Min)imum required is ([\w.]+), got: ([\w.]+)")
"""optimum's message for a model that it exports only with other versions of transformers."""
_UNSUPPORTED = re.compile(
    r"KeyError|NotImplementedError|AttributeError|(un|not (yet |currently )?)supported|does not support"
    r"|not implemented|not recognize|Unrecognized",
    re.IGNORECASE,
)
"""Converters' errors for unsupported models, such as a missing setting."""

POINTER = b"version https://git-lfs.github.com/spec/"
_FETCH = "fetch the model again"

_SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_MAX_LAYERS = 10_000
# Files that loading may read, in any format.
_READ = ("*.json", "*.safetensors", "*.bin", "*.model", "merges.txt", "vocab.*")


def refuse_damaged(folder: Path) -> None:
    """Reject a folder with damaged files.

    Raises:
        ModelLoadError: a file is unreadable, a dangling link or a Git LFS pointer, or settings are invalid.
    """
    try:
        for path in _files(folder):
            refuse_pointer(path)
    except OSError as error:
        raise _unreadable(Path(error.filename or folder), error) from error
    for name in _SETTINGS:
        if (folder / name).is_file():
            _check_settings(folder / name)


def read_settings(path: Path) -> Any:
    """Parse a JSON file of a model; raise a ModelLoadError if it is damaged or (perhaps temporarily) unreadable."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path.name} is damaged ({in_words(error)}): fetch it again") from error


def refuse_pointer(path: Path) -> None:
    """Raise a ModelLoadError for a Git LFS pointer, left by a checkout without Git LFS."""
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise ModelLoadError(
                f"{path.name} is a pointer of Git LFS and not the file itself: run `git lfs pull` in {path.parent}"
            )


@contextmanager
def explaining(failure: str) -> Iterator[None]:
    """Convert unexpected library errors on a model's files to a line that begins with the failure."""
    try:
        yield
    except Exception as error:
        # A missing dependency has its own message.
        if isinstance(error, (LlmtrackError, ImportError)) or known_reason(error):
            raise
        raise ModelLoadError(
            f"{failure} ({type(error).__name__}: {_flat(str(error))[:200]}): fetch the model again, or choose another one"
        ) from error


@contextmanager
def explaining_quantization(config: Any) -> Iterator[None]:
    """Convert errors on reading quantized weights to one line naming the requirements."""
    quantization = getattr(config, "quantization_config", None)
    try:
        yield
    except Exception as error:
        if quantization is None or "OutOfMemory" in type(error).__name__:
            raise
        settings = quantization if isinstance(quantization, dict) else getattr(quantization, "to_dict", dict)()
        method = str(settings.get("quant_method") or "bitsandbytes")
        package = _QUANTIZERS.get(method.rsplit(".", 1)[-1].lower())
        install = f"install what reads them (pip install {package}; most need a GPU)" if package else "use a GPU"
        raise ModelLoadError(
            f"its weights were stored by {method} and cannot be read here: {install}, or choose the model with float "
            f"weights and quantize it with quantization=... ({type(error).__name__}: {_flat(str(error))[:160]})"
        ) from error


@contextmanager
def explaining_tokenizer(folder: Path) -> Iterator[None]:
    """Convert errors on reading a tokenizer to one line naming the missing package or file, if known."""
    try:
        yield
    except Exception as error:
        sentencepiece = [name for name in _SENTENCEPIECE if (folder / name).is_file()]
        if sentencepiece and find_spec("sentencepiece") is None:
            raise ModelLoadError(
                f"its tokenizer is a SentencePiece file ({sentencepiece[0]}), and the package that reads it is not installed: pip "
                "install sentencepiece protobuf"
            ) from error
        if not sentencepiece and not any(folder.glob("tokenizer.*")) and not any(folder.glob("vocab*")):
            raise ModelLoadError(
                f"{folder} holds no tokenizer (tokenizer.json, tokenizer.model, vocab.json): copy it from the model that "
                "these weights were made from"
            ) from error
        raise


def reason_of(error: BaseException) -> str:
    """Return an error's reason and remedy in one line, without library paths."""
    if isinstance(error, LlmtrackError):
        return _flat(str(error))
    return known_reason(error) or f"{type(error).__name__}: {_flat(str(error))}"


def known_reason(error: BaseException) -> str:
    """Return cause and remedy of a known error; empty for others."""
    bases = {base.__name__ for base in type(error).__mro__}
    for name, pattern, message in _KNOWN:
        if name in bases and (match := re.search(pattern, str(error))):
            return message.format(*match.groups())
    return ""


def conversion_failure(tool: str, architecture: str, output: str, remedy: str) -> str:
    """Explain why a tool cannot convert a model; its output is omitted if it only means "unsupported"."""
    if match := _OTHER_VERSION.search(output):
        direction = "older" if match[1] == "Max" else "newer"
        return (
            f"{tool} supports {architecture} only with transformers {match[2]} or {direction}, and the environment that it "
            f"runs in has {match[3]}: {remedy}"
        )
    if _UNSUPPORTED.search(output):
        return f"{tool} does not support {architecture}: {remedy}"
    return f"{tool} cannot convert this {architecture} model ({truncate(output, 300)}): {remedy}"


def _flat(text: str) -> str:
    return truncate(" ".join(text.split()), MAX_CHARACTERS, "...")


def _unreadable(path: Path, error: OSError) -> ModelLoadError:
    return ModelLoadError(f"{path.name} cannot be read ({error.strerror}): change its permissions, or {_FETCH}")


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files that loading may read; raise a ModelLoadError for a dangling link or a non-file."""
    next(folder.iterdir(), None)  # `glob` treats an unreadable folder as empty
    for path in sorted(set(chain.from_iterable(map(folder.glob, _READ)))):
        if path.is_symlink() and not path.exists():
            raise ModelLoadError(f"{path.name} is a dangling link: {_FETCH}")
        if path.is_file():
            yield path
        elif path.name in _SETTINGS or path.suffix == ".safetensors":
            raise ModelLoadError(f"{path.name} is not a file: {_FETCH}")


def _check_settings(path: Path) -> None:
    content = read_settings(path)
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path.name} is damaged (it is not a JSON object): fetch it again")
    if path.name == "config.json":
        _check_layers(content)
    for name in _SPECIAL_IDS if path.name in _SETTINGS[:2] else ():
        if not all(map(_is_id, _as_list(content.get(name)))):
            raise ModelLoadError(f"{path.name}: {name} is {content[name]!r}, which is not a token id: write its number")


def _check_layers(config: dict[str, Any]) -> None:
    """Reject an absurd number of layers, which libraries would allocate before reading the weights."""
    for name, value in config.items():
        if name in _LAYERS and _is_id(value) and value > _MAX_LAYERS:
            raise ModelLoadError(
                f"config.json: {name} is {value:,}, which no model has: write the number of its layers"
            )
        if isinstance(value, dict):
            _check_layers(value)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
