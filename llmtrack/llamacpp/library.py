"""The llama.cpp library through either of two packages, and its log.

llama-cpp-python compiles it for the machine and binds it by ctypes. llama-cpp-py-sync ships it compiled for CPUs with
AVX2 and binds it by CFFI. Both expose llama.cpp's functions, structs and constants by name; this module only covers
their differences.
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
from llmtrack.host.packages import available, install_command

if TYPE_CHECKING:
    from numpy.typing import NDArray

# llama.cpp log levels: 4 is an error, 5 continues the previous line.
_ERROR, _CONTINUED = 4, 5
FLASH_ATTENTION = {"auto": -1, "on": 1, "off": 0}
"""Use of the fused attention kernel: the library's values by option value."""

CACHE_TYPES = {"f16": 2.0, "f32": 4.0, "q8_0": 34 / 32}
"""Bytes per cached value by type; in q8_0, 32 values and a scale take 34."""

_errors: deque[str] = deque(maxlen=20)


class Compiled:
    """llama.cpp through llama-cpp-python; functions and constants are attributes.

    Attributes:
        package: distribution name.
        files: the compiled libraries.
        remedy: what to do if they were compiled for another CPU.
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
        """Return an empty device list; otherwise a build with GPU support uses any GPU it finds."""
        return ctypes.cast(self._no_devices, ctypes.c_void_p)

    def tokens(self, count: int) -> Any:
        """Return an array of tokens."""
        return (self._functions.llama_token * count)()

    def reference(self, struct: Any) -> Any:
        """Return a struct in the form expected for a pointer argument."""
        return struct

    def text(self, value: Any) -> str:
        """Convert a returned text."""
        return str(value.decode())

    def floats(self, values: Any, shape: tuple[int, int]) -> NDArray[np.float32]:
        """Return a view of returned floats."""
        return np.ctypeslib.as_array(values, shape=shape)

    def redirect_log(self, write: Callable[[int, bytes], None]) -> None:
        """Pass level and text of log messages to a function."""
        # The binding keeps no reference: a collected callback would still be called.
        self._callback = self._functions.llama_log_callback(lambda level, text, _: write(level, text))
        self._functions.llama_log_set(self._callback, ctypes.c_void_p(0))


class Prebuilt:
    """llama.cpp through llama-cpp-py-sync; see `Compiled`."""

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

    def text(self, value: Any) -> str:
        """See `Compiled`."""
        return str(self._ffi.string(value).decode())

    def floats(self, values: Any, shape: tuple[int, int]) -> NDArray[np.float32]:
        """See `Compiled`."""
        rows, columns = shape
        return np.frombuffer(self._ffi.buffer(values, 4 * rows * columns), dtype=np.float32).reshape(shape)

    def redirect_log(self, write: Callable[[int, bytes], None]) -> None:
        """See `Compiled`."""

        def log(level: int, text: Any, _: Any) -> None:
            write(level, self._ffi.string(text))

        self._callback = self._ffi.callback("ggml_log_callback", log)
        self._functions.llama_log_set(self._callback, self._ffi.NULL)


@cache
def library() -> Compiled | Prebuilt:
    """Return the installed llama.cpp, preferably compiled for this machine, with its log captured.

    Raises:
        MissingDependencyError: it is not installed, or not built for this machine.
    """
    try:
        binding = Prebuilt() if find_spec("llama_cpp") is None and available("llamacpp") else Compiled()
    except (ImportError, OSError, RuntimeError) as error:
        raise MissingDependencyError(
            f"the llamacpp backend needs llama-cpp-python ({in_words(error)[:200]}): {install_command('llamacpp')}"
        ) from error
    binding.redirect_log(_error_log())
    binding.llama_backend_init()
    return binding


def instruction_sets() -> list[str]:
    """Return the CPU instruction sets that the library was compiled for.

    Raises:
        MissingDependencyError: as `library`.
    """
    info = library().text(library().llama_print_system_info()).partition(":")[2]
    return [part.split("=")[0].strip() for part in info.split("|") if part.strip().endswith("= 1")]


def last_error() -> str:
    """Return and clear the library's last error, as one line."""
    text = " ".join("".join(_errors).split())
    _errors.clear()
    return text[-300:]


def _error_log() -> Callable[[int, bytes], None]:
    current = 0

    def write(level: int, text: bytes) -> None:
        nonlocal current
        if level != _CONTINUED:
            current = level
        if current == _ERROR:
            _errors.append(text.decode("utf-8", errors="replace"))

    return write
