"""A model whose layers are spread over all cards (`device_map=auto`): for one that no card can hold; they compute in turn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from llmtrack.devices import kind_of, require_tried, resolve_device
from llmtrack.errors import UsageError
from llmtrack.models.folder import model_folder
from llmtrack.spec.scenario import Variant


def load_spread(variant: Variant, load: Callable[[Variant], Any]) -> Any:
    """Load a model onto all cards that CUDA shows, as accelerate balances its layers.

    Args:
        variant: what to load.
        load: loads it, given a variant whose model is a folder.

    Raises:
        UsageError: something else is asked for that does not go with it.
    """
    others = {"quantization": variant.quantization, "compile": "none"} | dict(variant.options)
    for name in ("quantization", "compile"):
        if others[name] != "none":
            raise UsageError(f"device_map goes with no {name}: use {name}=none, or device_map=none")
    device = resolve_device(variant.device)
    require_tried(device, "device_map")
    kind = kind_of(device)
    found = model_folder(variant.model, variant.revision)
    engine = load(replace(variant, model=str(found.path), revision=None, device=kind))
    return engine.known_as(
        found.model_id,
        facts={**found.facts, "device_map": "auto", "devices": engine.info.devices},
        tags=found.tags,
        warnings=found.warnings,
    )
