"""What is wrong with the files of a model folder, told in a line before a library stumbles over it."""

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
# What loading reads, in whatever form a model has it.
_READ = ("*.json", "*.safetensors", "*.bin", "*.model", "merges.txt", "vocab.*")


def refuse_damaged(folder: Path) -> None:
    """Refuse a folder in which a file that loading reads is none, or not what its name says.

    Raises:
        ModelLoadError: a file may not be read, is a link that leads nowhere or the pointer of a large file, or settings are
            no settings.
    """
    try:
        for path in _files(folder):
            refuse_pointer(path)
    except OSError as error:
        name = Path(error.filename or folder).name
        raise ModelLoadError(f"{name} cannot be read ({error.strerror}): permit it, or {_FETCH}") from error
    for name in _SETTINGS:
        if (folder / name).is_file():
            _check_settings(folder / name)


def refuse_pointer(path: Path) -> None:
    """Refuse a file that stands for a large one, as a checkout without Git LFS leaves it.

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
        ModelLoadError: one of that name is a link that leads nowhere, or no file.
        OSError: the folder cannot be read.
    """
    next(folder.iterdir(), None)  # `glob` takes a folder that may not be read for an empty one
    for path in sorted(set(chain.from_iterable(map(folder.glob, _READ)))):
        if path.is_symlink() and not path.exists():
            raise ModelLoadError(f"{path.name} is a link that leads nowhere: {_FETCH}")
        if path.is_file():
            yield path
        elif path.name in _SETTINGS or path.suffix == ".safetensors":
            raise ModelLoadError(f"{path.name} is no file: {_FETCH}")


def _check_settings(path: Path) -> None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelLoadError(f"{path.name} is damaged ({in_words(error)}): fetch it again") from error
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
    """Refuse a number of layers that no model has: libraries would make a list of them before they look at the weights."""
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
