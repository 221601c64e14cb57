"""Read a GGUF file: its metadata, and facts such as sizes and storage types, after checking its header."""

from __future__ import annotations

import math
import mmap
import struct
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmtrack.errors import ModelLoadError
from llmtrack.models.load_errors import refuse_pointer

if TYPE_CHECKING:
    from gguf import GGUFReader

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# Bytes of the other value types, by number.
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MAX_DIMENSIONS = 4
_MAX_DEPTH = 4
# Maximum weights per byte of any quantization.
_MAX_PER_BYTE = 8


@dataclass(frozen=True)
class GgufFacts:
    """Facts of a GGUF file.

    Attributes:
        file_type: storage type of most weights, such as `Q4_1` or `Q4_K_M`.
        step_bytes: bytes of the weights that a decode step of one row reads.
        cached_values: keys and values per token, over all layers.
    """

    architecture: str
    file_type: str
    step_bytes: int
    cached_values: int


def open_gguf(path: Path) -> GGUFReader:
    """Open a GGUF file after checking its header.

    Raises:
        ModelLoadError: it is damaged, or one part of several.
    """
    import numpy as np
    from gguf import GGUFReader

    class ArrayReader(GGUFReader):
        """Slices an array: a memory map's own slices, one or two for each token, would take half of the time."""

        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, np.asarray(value) if name == "data" else value)

    try:
        refuse_pointer(path)
        check_header(path)
        reader = ArrayReader(path)
    except ModelLoadError:
        raise
    except Exception as error:  # the reader may fail in any way on a broken file
        raise ModelLoadError(f"{path.name} cannot be read as GGUF ({error}): fetch the file again") from error
    split = reader.fields.get("split.count")
    if split is not None and split.contents() > 1:
        raise ModelLoadError(
            f"{path.name} is one part of a split GGUF: join the parts first (llama-gguf-split --merge)"
        )
    return reader


def check_header(path: Path) -> None:
    """Check the sizes in a GGUF header against the file's length before anything is allocated.

    The format's own reader trusts them: an array of 2**60 values would fill the memory.

    Raises:
        ValueError: more values, longer texts or larger tensors than fit into the file.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise ValueError("it is too short for a header")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _HeaderWalk(data).check()


def read_metadata(reader: GGUFReader) -> dict[str, Any]:
    """Return the key-value pairs of a GGUF file, including the tokenizer's lists."""
    return {name: field.contents() for name, field in reader.fields.items()}


def read_facts(path: Path) -> GgufFacts:
    """Read the facts of a GGUF file; see `open_gguf` for errors."""
    reader = open_gguf(path)
    metadata = read_metadata(reader)
    architecture = str(metadata["general.architecture"])
    prefix = f"{architecture}."
    settings = {name.removeprefix(prefix): value for name, value in metadata.items() if name.startswith(prefix)}
    sizes = {str(tensor.name): int(tensor.n_bytes) for tensor in reader.tensors}
    types: Counter[str] = Counter()
    for tensor in reader.tensors:
        types[tensor.tensor_type.name] += int(tensor.n_bytes)
    return GgufFacts(
        architecture,
        file_type(metadata.get("general.file_type"), types),
        step_bytes(sizes, settings.get("expert_count") or 0, settings.get("expert_used_count") or 0),
        cached_values(settings),
    )


def file_type(declared: int | None, types: Mapping[str, int]) -> str:
    """Return the storage type of the weights: `general.file_type`, which names mixtures, or the one of most bytes."""
    from gguf import LlamaFileType

    main_type = max(types, key=types.__getitem__)
    names = {kind.value: kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in LlamaFileType}
    name = names.get(-1 if declared is None else declared, "")
    if name.startswith(main_type):
        return name
    # Tensors not divisible into a type's blocks are stored as another type.
    return f"{name} (mostly {main_type})" if name else main_type


def step_bytes(sizes: Mapping[str, int], experts: int, used: int) -> int:
    """Return the bytes of the weights that a decode step of one row reads, by the bytes of each tensor.

    A step reads one row of an untied embedding, and the `used` experts of a layer that a token is routed to.
    """
    read = 0.0
    for name, size in sizes.items():
        if name == "token_embd.weight" and "output.weight" in sizes:
            continue
        read += size * used / experts if "_exps." in name and experts and used else size
    return round(read)


def cached_values(metadata: Mapping[str, Any]) -> int:
    """Return the keys and values per token over all layers, by the architecture's metadata without its prefix."""
    layers = int(metadata.get("block_count") or 0)
    heads = _per_layer(metadata.get("attention.head_count"), layers)
    kv_heads = _per_layer(metadata.get("attention.head_count_kv", metadata.get("attention.head_count")), layers)
    width = int(metadata.get("embedding_length") or 0)
    total = 0
    for count, kv in zip(heads, kv_heads, strict=True):
        head = width // count if count else 0
        key, value = (int(metadata.get(f"attention.{kind}_length") or head) for kind in ("key", "value"))
        total += kv * (key + value)
    return total


def _per_layer(value: int | Sequence[int] | None, layers: int) -> list[int]:
    return list(map(int, value)) if isinstance(value, Sequence) else [int(value or 0)] * layers


class _HeaderWalk:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self._offset = 0
        self._order = "<"

    def check(self) -> None:
        if self._data[:4] != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = struct.unpack_from("<I", self._data, 4)[0]
        if version & 0xFFFF == 0:
            self._order, version = ">", struct.unpack_from(">I", self._data, 4)[0]
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is not known")
        self._offset = 8
        tensors, fields = self._number("Q"), self._number("Q")
        for _ in range(fields):
            self._text()
            self._value(self._number("I"))
        for _ in range(tensors):
            self._tensor()

    def _tensor(self) -> None:
        self._text()
        dimensions = self._number("I")
        if dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"a tensor of {dimensions} dimensions")
        elements = math.prod(self._number("Q") for _ in range(dimensions))
        if elements > self._size * _MAX_PER_BYTE:
            raise ValueError(f"a tensor of {elements:,} values in a file of {self._size:,} bytes")
        self._number("I")
        self._number("Q")

    def _value(self, kind: int, depth: int = 0) -> None:
        if kind == _STRING:
            self._text()
        elif kind == _ARRAY:
            self._array(depth)
        elif kind in _WIDTHS:
            self._skip(_WIDTHS[kind])
        else:
            raise ValueError(f"a value of unknown type {kind}")

    def _array(self, depth: int) -> None:
        if depth == _MAX_DEPTH:
            raise ValueError("arrays of arrays too deep")
        kind, count = self._number("I"), self._number("Q")
        if kind in _WIDTHS:
            self._skip(count * _WIDTHS[kind])
            return
        for _ in range(count):  # Each takes some bytes, so the loop ends with the file.
            self._value(kind, depth + 1)

    def _text(self) -> None:
        self._skip(self._number("Q"))

    def _number(self, kind: str) -> int:
        start = self._offset
        self._skip(struct.calcsize(f"{self._order}{kind}"))
        return int(struct.unpack_from(f"{self._order}{kind}", self._data, start)[0])

    def _skip(self, count: int) -> None:
        if count > self._size - self._offset:
            raise ValueError(f"{count:,} bytes are declared where only {self._size - self._offset:,} remain")
        self._offset += count
