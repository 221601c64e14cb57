"""The library llama.cpp through either of two packages, and what it says while it works.

llama-cpp-python compiles it for the machine and binds it by ctypes. llama-cpp-py-sync brings it compiled for CPUs with AVX2 and binds
it by CFFI. Both have llama.cpp's own functions, structs and constants by their names; what the two ways of binding
differ in is all that stands here.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmtrack.errors import MissingDependencyError, in_words
from llmtrack.host.packages import available, install

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Levels of llama.cpp's log: 4 is an error, 5 goes on with the line before.
_ERROR, _CONTINUED = 4, 5
FLASH_ATTENTION = {"auto": -1, "on": 1, "off": 0}
"""Whether attention is computed by the fused kernel: the library's number by the word that it can be asked for."""

CACHE_TYPES = {"f16": 2.0, "f32": 4.0, "q8_0": 34 / 32}
"""Bytes of a cached key or value by what it is stored as; of q8_0, 32 of them and a scale take 34."""

_said: deque[str] = deque(maxlen=20)


class Compiled:
    """llama.cpp by llama-cpp-python; functions and constants are attributes by their own names.

    Attributes:
        package: what brings it.
        version: of that package.
        files: the compiled libraries.
        remedy: what to do where they are of another CPU.
    """

    package = "llama-cpp-python"
    remedy = (
        "it was compiled for another CPU, or by a compiler that gets AMX wrong (GCC 12 does): compile it anew by "
        "CMAKE_ARGS='-DCMAKE_C_FLAGS=-mno-amx-int8 -DCMAKE_CXX_FLAGS=-mno-amx-int8' pip install --force-reinstall "
        "--no-cache-dir --no-deps llama-cpp-python"
    )

    def __init__(self) -> None:
        import llama_cpp

        self._functions: Any = llama_cpp
        self.version = str(llama_cpp.__version__)
        self.files = sorted(Path(llama_cpp.__file__).parent.glob("lib/*"))
        self._no_devices = (ctypes.c_void_p * 1)(None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, name)

    def no_devices(self) -> Any:
        """Return an empty list of devices: without one a build with GPU code takes what it finds."""
        return ctypes.cast(self._no_devices, ctypes.c_void_p)

    def tokens(self, count: int) -> Any:
        """Return an array of so many tokens."""
        return (self._functions.llama_token * count)()

    def reference(self, struct: Any) -> Any:
        """Return a struct as it is given where a pointer is asked for."""
        return struct

    def text(self, found: Any) -> str:
        """Return the text that a function gave."""
        return str(found.decode())

    def floats(self, found: Any, shape: tuple[int, int]) -> NDArray[np.float32]:
        """Return a view of the floats that a function gave."""
        return np.ctypeslib.as_array(found, shape=shape)

    def listen(self, hear: Callable[[int, bytes], None]) -> None:
        """Have each part of the log heard and not printed."""
        # The binding keeps no reference, and a callback that was collected would be called all the same.
        self._listener = self._functions.llama_log_callback(lambda level, text, _: hear(level, text))
        self._functions.llama_log_set(self._listener, ctypes.c_void_p(0))


class Prebuilt:
    """llama.cpp by llama-cpp-py-sync; see `Compiled`."""

    package = "llama-cpp-py-sync"
    remedy = "it was compiled for CPUs with AVX2: pip install llama-cpp-python compiles it for this one"

    def __init__(self) -> None:
        import llama_cpp_py_sync
        from llama_cpp_py_sync import _cffi_bindings

        self._ffi: Any = _cffi_bindings.get_ffi()
        self._functions: Any = _cffi_bindings.get_lib()
        self.version = str(llama_cpp_py_sync.__version__)
        self.files = sorted(Path(llama_cpp_py_sync.__file__).parent.glob("lib*"))
        self._no_devices = self._ffi.new("ggml_backend_dev_t[1]")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._functions, name)

    def no_devices(self) -> Any:
        """See `Compiled`."""
        return self._no_devices

    def tokens(self, count: int) -> Any:
        """See `Compiled`."""
        return self._ffi.new("llama_token[]", count)

    def reference(self, struct: Any) -> Any:
        """See `Compiled`."""
        return self._ffi.addressof(struct)

    def text(self, found: Any) -> str:
        """See `Compiled`."""
        return str(self._ffi.string(found).decode())

    def floats(self, found: Any, shape: tuple[int, int]) -> NDArray[np.float32]:
        """See `Compiled`."""
        rows, columns = shape
        return np.frombuffer(self._ffi.buffer(found, 4 * rows * columns), dtype=np.float32).reshape(shape)

    def listen(self, hear: Callable[[int, bytes], None]) -> None:
        """See `Compiled`."""

        def heard(level: int, text: Any, _: Any) -> None:
            hear(level, self._ffi.string(text))

        self._listener = self._ffi.callback("ggml_log_callback", heard)
        self._functions.llama_log_set(self._listener, self._ffi.NULL)


@cache
def library() -> Compiled | Prebuilt:
    """Return llama.cpp as it is installed, compiled for this machine if possible, its log kept here and not printed.

    Raises:
        MissingDependencyError: it is not installed, or was not built for this machine.
    """
    try:
        found = Prebuilt() if find_spec("llama_cpp") is None and available("llamacpp") else Compiled()
    except (ImportError, OSError, RuntimeError) as error:
        raise MissingDependencyError(
            f"the llamacpp backend needs llama-cpp-python ({in_words(error)[:200]}): {install('llamacpp')}"
        ) from error
    found.listen(_listener())
    found.llama_backend_init()
    return found


def instruction_sets() -> list[str]:
    """Return what the library was compiled to use of the CPU.

    Raises:
        MissingDependencyError: as `library`.
    """
    info = library().text(library().llama_print_system_info()).partition(":")[2]
    return [part.split("=")[0].strip() for part in info.split("|") if part.strip().endswith("= 1")]


def last_error() -> str:
    """Return what the library last complained of, in one line, and forget it."""
    text = " ".join("".join(_said).split())
    _said.clear()
    return text[-300:]


def _listener() -> Callable[[int, bytes], None]:
    heard = [0]

    def listen(level: int, text: bytes) -> None:
        if level != _CONTINUED:
            heard[0] = level
        if heard[0] == _ERROR:
            _said.append(text.decode("utf-8", errors="replace"))

    return listen
