"""The library llama.cpp as llama-cpp-python brings it, and what it says while it works."""

from __future__ import annotations

import ctypes
from collections import deque
from functools import cache
from typing import Any

from llmtrack.errors import MissingDependencyError, in_words
from llmtrack.installed import install

# Levels of llama.cpp's log: 4 is an error, 5 goes on with the line before.
_ERROR, _CONTINUED = 4, 5
FLASH_ATTENTION = {"auto": -1, "on": 1, "off": 0}
"""Whether attention is computed by the fused kernel: the library's number by the word that it can be asked for."""

CACHE_TYPES = {"f16": 2.0, "f32": 4.0, "q8_0": 34 / 32}
"""Bytes of a cached key or value by what it is stored as; of q8_0, 32 of them and a scale take 34."""

_said: deque[str] = deque(maxlen=20)


@cache
def library() -> Any:
    """Return the module, its log kept here and not printed.

    Raises:
        MissingDependencyError: it is not installed, or was not built for this machine.
    """
    try:
        import llama_cpp
    except (ImportError, OSError, RuntimeError) as error:
        raise MissingDependencyError(
            f"the llamacpp backend needs llama-cpp-python ({in_words(error)[:200]}): {install('llamacpp')}"
        ) from error
    # The binding keeps no reference, and a callback that was collected would be called all the same.
    library.keep = _listener(llama_cpp)  # type: ignore[attr-defined]
    llama_cpp.llama_log_set(library.keep, ctypes.c_void_p(0))  # type: ignore[attr-defined]
    llama_cpp.llama_backend_init()
    return llama_cpp


def instruction_sets() -> list[str]:
    """Return what the library was compiled to use of the CPU.

    Raises:
        MissingDependencyError: as `library`.
    """
    info = library().llama_print_system_info().decode().partition(":")[2]
    return [part.split("=")[0].strip() for part in info.split("|") if part.strip().endswith("= 1")]


def last_error() -> str:
    """Return what the library last complained of, in one line, and forget it."""
    text = " ".join("".join(_said).split())
    _said.clear()
    return text[-300:]


def _listener(llama_cpp: Any) -> Any:
    heard = [0]

    def listen(level: int, text: bytes, _: Any) -> None:
        if level != _CONTINUED:
            heard[0] = level
        if heard[0] == _ERROR:
            _said.append(text.decode("utf-8", errors="replace"))

    return llama_cpp.llama_log_callback(listen)
