"""Find engines by name: the built-in ones, and those of other packages through Python entry points."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points

from llmtrack.engine import Engine
from llmtrack.errors import UsageError
from llmtrack.scenario import Variant

GROUP = "llmtrack.engines"

# Known without an installation: `mlflow run` may start the project from its folder, where it is not installed.
BUILTIN = {"onnx": "llmtrack.engines.onnx", "torch": "llmtrack.engines.pytorch"}


def backends() -> list[str]:
    """Return the names of the backends that are there."""
    return sorted({*BUILTIN, *(point.name for point in entry_points(group=GROUP))})


def load_variant(variant: Variant) -> Engine:
    """Load the engine that a variant asks for.

    Raises:
        UsageError: no such backend is there.
        ModelLoadError: no model could be loaded.
    """
    if variant.backend in BUILTIN:
        engine: Engine = import_module(BUILTIN[variant.backend]).load(variant)
        return engine
    for point in entry_points(group=GROUP):
        if point.name == variant.backend:
            return point.load()(variant)
    raise UsageError(f"unknown backend {variant.backend!r}: there are {', '.join(backends())}")


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
