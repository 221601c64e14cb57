"""Check which backends and recipes are installed, without importing them."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec

ONNX_MODULES = ("onnx", "onnxruntime", "optimum-onnx")

OWN_RECIPES: Mapping[str, tuple[str, ...]] = {"onnx": ("onnx_ir",), "torch": ("torchao",)}
"""Modules required by llmtrack's own recipes of a backend; plug-ins declare theirs themselves."""

RUNTIMES: Mapping[str, tuple[str, ...]] = {
    "genai": ("onnxruntime_genai", "onnx"),
    "llamacpp": ("llama_cpp",),  # or its prebuilt replacement: `_PREBUILT`
    "openvino": ("openvino",),
}
"""Modules of the backends with a converter of their own, each an extra of the same name."""

_PREBUILT, _PREBUILT_GLIBC = {"llama_cpp": "llama_cpp_py_sync"}, (2, 38)
"""Prebuilt replacement modules, and the glibc that they really need, whatever their wheel declares."""

_NOTES = {"onnx": " (brings transformers 4.57)", "llamacpp": " (compiles llama.cpp, in minutes: needs a C++ compiler)"}


def install_command(backend: str) -> str:
    """Return the command that installs a backend's requirements."""
    return f'pip install "llmtrack[{backend}]"{_NOTES.get(backend, "")}'


INSTALL_ONNX = install_command("onnx")
INSTALL_TORCHAO = install_command("torchao")


def missing_modules(backend: str, recipe: str = "none") -> list[str]:
    """Return the modules missing for a backend and, unless `none`, for one of llmtrack's own recipes."""
    required = ONNX_MODULES if backend == "onnx" else RUNTIMES.get(backend, ())
    return not_installed((*required, *(OWN_RECIPES.get(backend, ()) if recipe != "none" else ())))


def not_installed(modules: Iterable[str]) -> list[str]:
    """Return the modules, or distributions of a namespace package, that are not installed."""
    return [name for name in modules if not _importable(name)]


def available(backend: str, recipe: str = "none") -> bool:
    """Return whether a backend and one of llmtrack's own recipes for it are installed."""
    return not missing_modules(backend, recipe)


def missing_recipes() -> str:
    """Name unavailable recipes and how to install them, in one line; empty if there are none."""
    missing = []
    if absent := missing_modules("onnx", "any"):
        missing.append(
            f"those of the onnx backend ({', '.join(absent)} missing{why_onnx_is_excluded()}: {INSTALL_ONNX})"
        )
    if missing_modules("torch", "any"):
        missing.append(f"torchao's ({INSTALL_TORCHAO})")
    return f"Recipes that cannot run here: {'; '.join(missing)}." if missing else ""


def find_uv() -> list[str] | None:
    """Return the command that runs uv, or None if it is not installed."""
    if find_spec("uv"):
        return [sys.executable, "-m", "uv"]
    path = os.environ.get("UV") or shutil.which("uv")
    return [path] if path else None


def error_line(output: str) -> str:
    """Return the most informative line of an installer's or converter's output, without URLs."""
    lines = [line.strip() for line in output.replace("\r", "\n").splitlines() if line.strip()]
    errors = [line for line in lines if line.lower().startswith(("error", "×", "╰─▶", "cause:"))]
    chosen = " ".join(errors[-2:]) if errors else (lines or ["no output"])[-1]
    return " ".join(word for word in chosen.split() if "://" not in word)[:300]


def why_onnx_is_excluded() -> str:
    """Explain why the onnx backend cannot be installed here; empty if it can."""
    compatible = not installed_version("transformers").startswith("5.")
    return "" if compatible else ", and no release of optimum-onnx works with transformers 5"


def installed_version(package: str) -> str:
    """Return the version of an installed package, or an empty text."""
    return _version(package, import_folders())


@lru_cache(maxsize=256)
def _version(package: str, folders: tuple[tuple[str, int], ...]) -> str:
    """Parse the metadata of a package, which takes milliseconds: once until `import_folders` change."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def import_folders() -> tuple[tuple[str, int], ...]:
    """Return the folders of installed packages, each with when one was last added or removed."""
    return tuple((os.path.abspath(folder), _changed(folder)) for folder in sys.path)


def _changed(folder: str) -> int:
    try:
        return os.stat(folder or os.curdir).st_mtime_ns
    except OSError:
        return 0


def _importable(name: str) -> bool:
    # optimum-onnx is a namespace package; `find_spec` would import its parent.
    if "-" in name:
        return bool(installed_version(name))
    if find_spec(name) is not None:
        return True
    prebuilt_works = sys.platform != "linux" or _glibc() >= _PREBUILT_GLIBC
    return name in _PREBUILT and prebuilt_works and find_spec(_PREBUILT[name]) is not None


def _glibc() -> tuple[int, ...]:
    """Return the glibc version; empty with another C library."""
    try:
        text = os.confstr("CS_GNU_LIBC_VERSION") or ""
    except (AttributeError, ValueError, OSError):
        return ()
    return tuple(int(part) for part in text.removeprefix("glibc ").split(".") if part.isdigit())
