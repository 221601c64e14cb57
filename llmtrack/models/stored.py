"""Read the tensors in a model's weight files directly."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zipfile import is_zipfile

from llmtrack.errors import ModelLoadError
from llmtrack.models.reasons import advice

if TYPE_CHECKING:
    import torch

_MASK_DIMENSIONS = 4
"""Dimensions of the masks in old checkpoints, which are called `bias` and are not floats."""


def tensors(files: Sequence[Path], wanted: Iterable[str] | Callable[[str], bool]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors by name or predicate; they are memory-mapped and read on access.

    Raises:
        ModelLoadError: a pickle file cannot be read, or has no weights.
    """
    from safetensors import safe_open

    names = wanted if callable(wanted) else set(wanted).__contains__
    for path in files:
        if path.suffix == ".safetensors":
            with safe_open(path, framework="pt") as held:
                yield from ((name, held.get_tensor(name)) for name in held.keys() if names(name))  # noqa: SIM118
        else:
            yield from ((name, each) for name, each in _unpickled(path).items() if names(name))


def _unpickled(path: Path) -> dict[str, torch.Tensor]:
    import torch

    try:
        # Files from before PyTorch 1.6 are not archives and cannot be mapped.
        held: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))
        return {name: each for name, each in held.items() if isinstance(each, torch.Tensor)}
    except Exception as error:
        if isinstance(error, OSError) or advice(error):
            raise
        raise ModelLoadError(
            "its pickle file is damaged, or holds what is no weights, which llmtrack never runs: fetch it again, or choose "
            "the model as safetensors"
        ) from error


def refuse_unscaled(files: Sequence[Path], config: Any) -> None:
    """Reject weights of a dtype that needs scales if the config names no quantization.

    transformers 4.57 fails on some of them, and 5 uses them as plain weights.

    Args:
        files: the weight files.
        config: the model's config.

    Raises:
        ModelLoadError: there are such weights, or a pickle file cannot be read.
    """
    quantized = any(getattr(each, "quantization_config", None) for each in (config, config.get_text_config()))
    for name, held in tensors(files, lambda name: name.endswith((".weight", ".bias"))):
        if not quantized and held.ndim < _MASK_DIMENSIONS and not _is_plain(held.dtype):
            raise ModelLoadError(
                f"its weights are stored as {str(held.dtype).removeprefix('torch.')} ({name} ...), which is nothing without "
                "scales, and config.json names no quantization: choose the model with 16- or 32-bit weights"
            )


def _is_plain(dtype: torch.dtype) -> bool:
    return dtype.is_floating_point and dtype.itemsize > 1
