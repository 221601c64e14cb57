"""Detect damaged files of a model folder and explain them in one line before a library fails on them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from llmtrack.errors import ModelLoadError, in_words

POINTER = b"version https://git-lfs.github.com/spec/"
_FETCH = "fetch the model again"

_SETTINGS = ("config.json", "generation_config.json", "tokenizer_config.json", "special_tokens_map.json")
_SPECIAL_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_MOST_LAYERS = 10_000
# Files read by loading, in any format.
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
    """Parse a JSON file of a model.

    Raises:
        ModelLoadError: it is damaged, or cannot be read, perhaps only now.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise _unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path.name} is damaged ({in_words(error)}): fetch it again") from error


def _unreadable(path: Path, error: OSError) -> ModelLoadError:
    return ModelLoadError(f"{path.name} cannot be read ({error.strerror}): permit it, or {_FETCH}")


def refuse_pointer(path: Path) -> None:
    """Reject a Git LFS pointer, as left by a checkout without Git LFS.

    Raises:
        ModelLoadError: it is one.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        if file.read(len(POINTER)) == POINTER:
            raise ModelLoadError(
                f"{path.name} is a pointer of Git LFS and not the file itself: run `git lfs pull` in {path.parent}"
            )


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files that loading may read.

    Raises:
        ModelLoadError: one is a dangling link or not a file.
        OSError: the folder cannot be read.
    """
    next(folder.iterdir(), None)  # `glob` treats an unreadable folder as empty
    for path in sorted(set(chain.from_iterable(map(folder.glob, _READ)))):
        if path.is_symlink() and not path.exists():
            raise ModelLoadError(f"{path.name} is a link that leads nowhere: {_FETCH}")
        if path.is_file():
            yield path
        elif path.name in _SETTINGS or path.suffix == ".safetensors":
            raise ModelLoadError(f"{path.name} is not a file: {_FETCH}")


def _check_settings(path: Path) -> None:
    content = read_settings(path)
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path.name} is damaged (it holds no settings by name): fetch it again")
    if path.name == "config.json":
        _check_layers(content)
    for name in _SPECIAL_IDS if path.name in _SETTINGS[:2] else ():
        if not all(map(_is_id, _listed(content.get(name)))):
            raise ModelLoadError(
                f"{path.name}: {name} is {content[name]!r}, which is no id of a token: write its number"
            )


def _check_layers(config: dict[str, Any]) -> None:
    """Reject an absurd number of layers, which libraries would allocate before reading the weights."""
    for name, value in config.items():
        if name in _LAYERS and _is_id(value) and value > _MOST_LAYERS:
            raise ModelLoadError(
                f"config.json: {name} is {value:,}, which no model has: write the number of its layers"
            )
        if isinstance(value, dict):
            _check_layers(value)


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _is_id(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
