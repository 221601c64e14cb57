"""Find engines by name through the Python entry points of the group `llmtrack.engines`."""

from __future__ import annotations

from importlib.metadata import entry_points

from llmtrack.engines.base import Engine
from llmtrack.errors import UsageError
from llmtrack.scenario import Variant

GROUP = "llmtrack.engines"


def backends() -> list[str]:
    """Return the names of the installed backends."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def load_variant(variant: Variant) -> Engine:
    """Load the engine that a variant asks for.

    Raises:
        UsageError: no such backend is installed.
        ModelLoadError: no model could be loaded.
    """
    for point in entry_points(group=GROUP):
        if point.name == variant.backend:
            return point.load()(variant)
    raise UsageError(f"unknown backend {variant.backend!r}: installed are {', '.join(backends()) or 'none'}")


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
