"""Find engines by name: the built-in ones, and those of other packages through Python entry points."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any

from llmtrack.engine import Engine, EngineInfo
from llmtrack.errors import UsageError
from llmtrack.extensions import ENGINES, broken, extensions, load_extension
from llmtrack.scenario import Variant

# Known without an installation: `mlflow run` may start the project from its folder, where it is not installed.
BUILTIN = {"onnx": "llmtrack.engines.onnx", "torch": "llmtrack.engines.pytorch"}

Loader = Callable[[Variant], Engine]


def backends() -> list[str]:
    """Return the names of the backends that are there."""
    return sorted({*BUILTIN, *(point.name for point in extensions(ENGINES))})


def check_variant(variant: Variant) -> None:
    """Refuse a variant whose backend cannot be used, without loading a model.

    Raises:
        UsageError: no such backend is there.
        ExtensionError: it is there, and its package is broken.
    """
    if variant.backend not in BUILTIN:
        extension_loader(_point(variant.backend))


def load_variant(variant: Variant) -> Engine:
    """Load the engine that a variant asks for.

    Raises:
        UsageError: no such backend is there.
        ExtensionError: the backend's package is broken.
        ModelLoadError: no model could be loaded.
    """
    if variant.backend in BUILTIN:
        engine: Engine = import_module(BUILTIN[variant.backend]).load(variant)
        return engine
    point = _point(variant.backend)
    engine = extension_loader(point)(variant)
    if why := incomplete(engine):
        raise broken(point, why)
    return engine


def extension_loader(point: EntryPoint) -> Loader:
    """Return the function by which a backend of another package loads a model.

    Raises:
        ExtensionError: the entry point is broken.
    """
    load: Loader = load_extension(point)
    if not callable(load):
        raise broken(point, f"it is a {type(load).__name__}, and not a function load(variant)")
    return load


def incomplete(engine: Any) -> str:
    """Return in words what an object lacks to be an engine; empty if nothing."""
    missing = [name for name in vars(Engine) if not name.startswith("_") and not hasattr(engine, name)]
    if missing:
        return f"its engine {type(engine).__name__} lacks {', '.join(missing)}"
    if not isinstance(engine.info, EngineInfo):
        return (
            f"info of its engine {type(engine).__name__} is a {type(engine.info).__name__}, and no EngineInfo"
        )
    return ""


def _point(name: str) -> EntryPoint:
    for point in extensions(ENGINES):
        if point.name == name:
            return point
    raise UsageError(f"unknown backend {name!r}: there are {', '.join(backends())}")


def load_engine(
    model: str,
    *,
    revision: str | None = None,
    backend: str = "torch",
    device: str = "auto",
    dtype: str = "float32",
    quantization: str = "none",
) -> Engine:
    """Load a model by name: hub id, folder, GGUF file, `packaged:NAME`, `synthetic:PRESET`, or a comma list of them.

    Raises:
        UsageError: a backend, device or dtype that is not there.
        ModelLoadError: no model could be loaded; the message lists every candidate with its reason.
    """
    return load_variant(Variant(model, revision, backend, device, dtype, quantization))
