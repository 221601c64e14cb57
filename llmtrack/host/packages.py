"""Which backends and recipes can run with what is installed, without importing any of it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

ONNX_MODULES = ("onnx", "onnxruntime", "optimum-onnx")

OWN_RECIPES: Mapping[str, tuple[str, ...]] = {"onnx": ("onnx_ir",), "torch": ("torchao",)}
"""What llmtrack's own recipes of a backend need beside it; those of other packages say themselves what they need."""

RUNTIMES: Mapping[str, tuple[str, ...]] = {
    "genai": ("onnxruntime_genai", "onnx"),
    "llamacpp": ("llama_cpp",),  # or what stands in for it: `_PREBUILT`
    "openvino": ("openvino",),
}
"""What the backends need that convert a model by a tool of their own: each is an extra of its name."""

_PREBUILT, _PREBUILT_GLIBC = {"llama_cpp": "llama_cpp_py_sync"}, (2, 38)
"""A module that runs a backend without compiling, and the glibc that its libraries need, whatever its wheel says."""

_BEFOREHAND = {
    "onnx": " (brings transformers 4.57)",
    "llamacpp": " (compiles llama.cpp, in minutes: needs a C++ compiler)",
}


def install(backend: str) -> str:
    """Return the command that installs what a backend needs."""
    return f'pip install "llmtrack[{backend}]"{_BEFOREHAND.get(backend, "")}'


INSTALL_ONNX = install("onnx")
INSTALL_TORCHAO = install("torchao")


def missing_modules(backend: str, recipe: str = "none") -> list[str]:
    """Return what would have to be installed for a backend and, unless it is `none`, a recipe of llmtrack's own for it."""
    wanted = ONNX_MODULES if backend == "onnx" else RUNTIMES.get(backend, ())
    return not_installed((*wanted, *(OWN_RECIPES.get(backend, ()) if recipe != "none" else ())))


def not_installed(modules: Iterable[str]) -> list[str]:
    """Return which modules, or packages of a shared namespace, are not installed."""
    return [name for name in modules if not _importable(name)]


def available(backend: str, recipe: str = "none") -> bool:
    """Return whether a backend, and a recipe of llmtrack's own for it, can run."""
    return not missing_modules(backend, recipe)


def why_missing() -> str:
    """Say in one line which recipes cannot run here and what to do about it; empty if all can."""
    found = []
    if absent := missing_modules("onnx", "any"):
        found.append(f"those of the onnx backend ({', '.join(absent)} missing{why_kept_out()}: {INSTALL_ONNX})")
    if missing_modules("torch", "any"):
        found.append(f"torchao's ({INSTALL_TORCHAO})")
    return f"Recipes that cannot run here: {'; '.join(found)}." if found else ""


def find_uv() -> list[str] | None:
    """Return the command that runs uv, or None where there is none."""
    if find_spec("uv"):
        return [sys.executable, "-m", "uv"]
    path = os.environ.get("UV") or shutil.which("uv")
    return [path] if path else None


def why_kept_out() -> str:
    """Say what keeps the onnx backend from being installed beside what is here; empty if nothing does."""
    fits = not installed_version("transformers").startswith("5.")
    return "" if fits else ", and no release of optimum-onnx works with transformers 5"


def installed_version(package: str) -> str:
    """Return the version of an installed package, or nothing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _importable(name: str) -> bool:
    # Optimum's part for ONNX is a package of a shared namespace, whose parent would be imported by a search for it.
    if "-" in name:
        return bool(installed_version(name))
    return find_spec(name) is not None or (name in _PREBUILT and _loadable(_PREBUILT[name]))


def _loadable(prebuilt: str) -> bool:
    return find_spec(prebuilt) is not None and (sys.platform != "linux" or _glibc() >= _PREBUILT_GLIBC)


def _glibc() -> tuple[int, ...]:
    """Return the version of glibc; nothing where the C library is another."""
    try:
        told = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        return ()
    return tuple(int(part) for part in told.removeprefix("glibc ").split(".") if part.isdigit())
