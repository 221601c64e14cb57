"""Check the sizes in a GGUF header against the file's length before anything is allocated.

The format's own reader trusts them: an array of 2**60 values would fill the memory.
"""

from __future__ import annotations

import math
import mmap
import struct
from pathlib import Path

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_STRING, _ARRAY = 8, 9
# Bytes of the other value types, by number.
_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_MOST_DIMENSIONS = 4
_DEEPEST = 4
# Maximum weights per byte of any quantization.
_MOST_PER_BYTE = 8


def check_header(path: Path) -> None:
    """Walk a GGUF file's header.

    Raises:
        ValueError: it states more values, longer texts or larger tensors than fit into the file.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        if path.stat().st_size < 24:
            raise ValueError("it is too short for a header")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            _Walk(data).header()


class _Walk:
    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._size = len(data)
        self._at = 0
        self._order = "<"

    def header(self) -> None:
        if self._data[:4] != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = struct.unpack_from("<I", self._data, 4)[0]
        if version & 0xFFFF == 0:
            self._order, version = ">", struct.unpack_from(">I", self._data, 4)[0]
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is not known")
        self._at = 8
        tensors, fields = self._number("Q"), self._number("Q")
        for _ in range(fields):
            self._text()
            self._value(self._number("I"))
        for _ in range(tensors):
            self._tensor()

    def _tensor(self) -> None:
        self._text()
        dimensions = self._number("I")
        if dimensions > _MOST_DIMENSIONS:
            raise ValueError(f"a tensor of {dimensions} dimensions")
        elements = math.prod(self._number("Q") for _ in range(dimensions))
        if elements > self._size * _MOST_PER_BYTE:
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
        if depth == _DEEPEST:
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
        start = self._at
        self._skip(struct.calcsize(f"{self._order}{kind}"))
        return int(struct.unpack_from(f"{self._order}{kind}", self._data, start)[0])

    def _skip(self, count: int) -> None:
        if count > self._size - self._at:
            raise ValueError(f"{count:,} bytes are stated where {self._size - self._at:,} are left")
        self._at += count
