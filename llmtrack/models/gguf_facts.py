"""Facts of a GGUF file: sizes, and storage types of its weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmtrack.models.gguf import open_gguf, read_metadata


@dataclass(frozen=True)
class GgufFacts:
    """Facts of a GGUF file.

    Attributes:
        architecture: llama.cpp's name.
        file_type: storage type of most weights, such as `Q4_1` or `Q4_K_M`.
        step_bytes: bytes of the weights that a decode step of one row reads.
        cached_values: keys and values per token, over all layers.
    """

    architecture: str
    file_type: str
    step_bytes: int
    cached_values: int


def read_facts(path: Path) -> GgufFacts:
    """Read the facts of a GGUF file.

    Raises:
        ModelLoadError: the file cannot be read.
    """
    reader = open_gguf(path)
    metadata = read_metadata(reader)
    architecture = str(metadata["general.architecture"])
    own = {
        name.removeprefix(f"{architecture}."): value
        for name, value in metadata.items()
        if name.startswith(f"{architecture}.")
    }
    sizes = {str(tensor.name): int(tensor.n_bytes) for tensor in reader.tensors}
    types: Counter[str] = Counter()
    for tensor in reader.tensors:
        types[tensor.tensor_type.name] += int(tensor.n_bytes)
    return GgufFacts(
        architecture,
        file_type(metadata.get("general.file_type"), types),
        step_bytes(sizes, own.get("expert_count") or 0, own.get("expert_used_count") or 0),
        cached_values(own),
    )


def file_type(stated: int | None, types: Mapping[str, int]) -> str:
    """Return the storage type of a file's weights.

    Args:
        stated: `general.file_type`, which names mixtures such as Q4_K_M; None if missing.
        types: bytes of the weights by type.
    """
    from gguf import LlamaFileType

    commonest = max(types, key=lambda name: types[name])
    names = {kind.value: kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in LlamaFileType}
    name = names.get(-1 if stated is None else stated, "")
    if name.startswith(commonest):
        return name
    # Tensors not divisible into a type's blocks are stored as another type.
    return f"{name} (mostly {commonest})" if name else commonest


def step_bytes(sizes: Mapping[str, int], experts: int, used: int) -> int:
    """Return the bytes of the weights that a decode step of one row reads.

    A step reads one row of an untied embedding, and the experts that one token is routed to.

    Args:
        sizes: bytes of each tensor.
        experts: experts per layer.
        used: experts per token.
    """
    read = 0.0
    for name, size in sizes.items():
        if name == "token_embd.weight" and "output.weight" in sizes:
            continue
        read += size * used / experts if "_exps." in name and experts and used else size
    return round(read)


def cached_values(metadata: Mapping[str, Any]) -> int:
    """Return the keys and values per token over all layers.

    Args:
        metadata: the architecture's keys, without its prefix.
    """
    layers = int(metadata.get("block_count") or 0)
    heads = _of_each(metadata.get("attention.head_count"), layers)
    kv_heads = _of_each(metadata.get("attention.head_count_kv", metadata.get("attention.head_count")), layers)
    width = int(metadata.get("embedding_length") or 0)
    total = 0
    for count, kv in zip(heads, kv_heads, strict=True):
        head = width // count if count else 0
        key, value = (int(metadata.get(f"attention.{kind}_length") or head) for kind in ("key", "value"))
        total += kv * (key + value)
    return total


def _of_each(given: int | Sequence[int] | None, layers: int) -> list[int]:
    if isinstance(given, Sequence):
        return [int(each) for each in given]
    return [int(given or 0)] * layers
