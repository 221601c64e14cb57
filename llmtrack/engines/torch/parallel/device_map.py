"""Spread whole layers over all cards (`device_map=auto`), for models that no card can hold; cards compute in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llmtrack.devices import kind_of, require_tried, resolve_device
from llmtrack.engines.options import refuse_combined
from llmtrack.models.folder import model_folder
from llmtrack.spec.scenario import Variant


def load_spread(variant: Variant, load: Callable[[Variant], Any]) -> Any:
    """Load a model onto all visible cards, balanced by accelerate.

    Args:
        load: loads a variant whose model is a folder.

    Raises:
        UsageError: an incompatible option is set.
    """
    refuse_combined(variant, ("quantization", "compile"), "device_map", "device_map=none")
    device = resolve_device(variant.device)
    require_tried(device, "device_map")
    kind = kind_of(device)
    folder = model_folder(variant.model, variant.revision)
    engine = load(replace(variant, model=str(folder.path), revision=None, device=kind))
    return engine.named_after(folder, device_map="auto", devices=engine.info.devices)
