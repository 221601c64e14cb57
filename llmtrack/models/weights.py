"""Find and read the weight files of a model folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

from llmtrack.errors import ModelLoadError
from llmtrack.models.load_errors import known_reason

if TYPE_CHECKING:
    import torch


_MASK_DIMENSIONS = 4
"""Dimensions of the masks in old checkpoints, which are called `bias` and are not floats."""


INDEXES = {"safetensors": "model.safetensors.index.json", "pickle": "pytorch_model.bin.index.json"}
"""Index of several weight files by format; a single file has its name without the suffixes."""


def listed_weights(folder: Path) -> tuple[str, list[Path]]:
    """Return the format (`safetensors`, `pickle` or `none`) and files, by name, of a model's weights.

    A single file precedes an index of several, whose files may be missing, and safetensors precede pickle. Other files
    (the same weights for another program, adapters, unindexed parts) do not belong to the model.

    Raises:
        ModelLoadError: the index is damaged.
    """
    for kind, index in INDEXES.items():
        single = folder / index.removesuffix(".index.json")
        if single.is_file():
            return kind, [single]
        if (folder / index).is_file():
            return kind, _indexed(folder / index)
    return "none", []


def weight_files(folder: Path) -> tuple[str, list[Path]]:
    """Return the format and files of the weights that loading reads; see `listed_weights`.

    Raises:
        ModelLoadError: the index is damaged, or names a missing file.
    """
    kind, files = listed_weights(folder)
    if missing := [path.relative_to(folder) for path in files if not path.is_file()]:
        raise ModelLoadError(
            f"{missing[0]}, named by {INDEXES[kind]}, does not exist: {len(missing)} of {len(files)} files are missing"
        )
    return kind, files


def require_weights(folder: Path) -> tuple[str, list[Path]]:
    """Like `weight_files`, but raise a ModelLoadError without weights or config.json."""
    kind, files = weight_files(folder)
    if not files:
        raise ModelLoadError(
            f"{folder} holds no model.safetensors or pytorch_model.bin, nor an index of their parts: give a complete model "
            "folder"
        )
    if not (folder / "config.json").is_file():
        raise ModelLoadError(f"{folder} holds no config.json: give a complete model folder")
    return kind, files


def read_tensors(
    files: Sequence[Path], select: Iterable[str] | Callable[[str], bool]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors by name or predicate, memory-mapped; raise a ModelLoadError for an unreadable pickle file."""
    from safetensors import safe_open

    selected = select if callable(select) else set(select).__contains__
    for path in files:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as file:
                yield from ((name, file.get_tensor(name)) for name in file.keys() if selected(name))  # noqa: SIM118
        else:
            yield from ((name, tensor) for name, tensor in _unpickled(path).items() if selected(name))


def refuse_unscaled(files: Sequence[Path], config: Any) -> None:
    """Raise a ModelLoadError for weights of a dtype that needs scales if the config names no quantization.

    transformers 4.57 fails on some of them, and 5 uses them as plain weights.
    """
    quantized = any(getattr(part, "quantization_config", None) for part in (config, config.get_text_config()))
    for name, tensor in read_tensors(files, lambda name: name.endswith((".weight", ".bias"))):
        if not quantized and tensor.ndim < _MASK_DIMENSIONS and not _is_plain(tensor.dtype):
            raise ModelLoadError(
                f"its weights are stored as {str(tensor.dtype).removeprefix('torch.')} ({name} ...), which needs scales, "
                "and config.json names no quantization: choose the model with 16- or 32-bit weights"
            )


def _indexed(index: Path) -> list[Path]:
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelLoadError(f"{index.name} is damaged: fetch it again") from error
    if not all(isinstance(name, str) for name in names):
        raise ModelLoadError(f"{index.name} is damaged: fetch it again")
    if outside := [name for name in names if ".." in Path(name).parts or Path(name).is_absolute()]:
        raise ModelLoadError(f"{index.name} names {outside[0]} outside of the folder: fetch the model again")
    return [index.parent / name for name in names]


def _unpickled(path: Path) -> dict[str, torch.Tensor]:
    import torch

    try:
        # Files from before PyTorch 1.6 are not archives and cannot be mapped.
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
        return {name: value for name, value in content.items() if isinstance(value, torch.Tensor)}
    except Exception as error:
        if isinstance(error, OSError) or known_reason(error):
            raise
        raise ModelLoadError(
            "its pickle file is damaged, or contains more than weights, which llmtrack never runs: fetch it again, or choose "
            "the model as safetensors"
        ) from error


def _is_plain(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize > 1
