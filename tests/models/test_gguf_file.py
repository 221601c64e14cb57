"""Sizes in a GGUF header are checked before anything is allocated."""

from __future__ import annotations

import resource
import struct
import time

import pytest

from llmtrack.errors import ModelLoadError
from llmtrack.models import gguf_conversion
from llmtrack.models.gguf_file import check_header
from tests.models.gguf_writer import write_gguf

HUGE = 2**60


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def file_of(tensors: int = 0, fields: int = 0, body: bytes = b"", version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, fields) + body + b"\0" * 64


def field(kind: int, value: bytes) -> bytes:
    return text(b"key") + struct.pack("<I", kind) + value


ABSURD = {
    "fields": file_of(fields=HUGE),
    "tensors": file_of(tensors=HUGE),
    "length of a key": file_of(fields=1, body=struct.pack("<Q", HUGE)),
    "length of a text": file_of(fields=1, body=field(8, struct.pack("<Q", HUGE))),
    "array of numbers": file_of(fields=1, body=field(9, struct.pack("<IQ", 4, HUGE))),
    "array of texts": file_of(fields=1, body=field(9, struct.pack("<IQ", 8, HUGE))),
    "array of arrays": file_of(fields=1, body=field(9, struct.pack("<IQ", 9, 1) * 50)),
    "unknown type": file_of(fields=1, body=field(99, b"")),
    "dimensions": file_of(tensors=1, body=text(b"t") + struct.pack("<I", 2**31)),
    "shape": file_of(tensors=1, body=text(b"t") + struct.pack("<IQQIQ", 2, 2**32, 2**32, 0, 0)),
    "version": file_of(version=77),
    "alignment": file_of(fields=1, body=text(b"general.alignment") + struct.pack("<II", 4, 0)),
    "another format": b"\x89PNG" + b"\0" * 64,
    "nothing": b"",
    "a few bytes": b"GGUF",
}


@pytest.mark.parametrize("name", sorted(ABSURD))
def test_absurd_sizes_are_refused_without_allocating_in_one_line(name, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(ABSURD[name])
    memory, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(ModelLoadError) as caught:
        gguf_conversion.convert_gguf(path, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert "model.gguf" in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory < 1_000_000  # KiB, including imports
    assert time.process_time() - start < 60


def test_a_file_truncated_in_its_header_is_refused(tmp_path):
    path = write_gguf(tmp_path / "complete.gguf")
    check_header(path)
    data = path.read_bytes()
    end = data.index(b"token_embd")
    for length in (30, end // 4, end // 2, end):
        (tmp_path / "cut.gguf").write_bytes(data[:length])
        with pytest.raises(ValueError, match=r"\w"):
            check_header(tmp_path / "cut.gguf")
