"""State that modules keep between calls; it is reset, since a text's output must not depend on earlier texts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llmtrack.models.positions import depends_on_length

_ORIGINAL = "original_inv_freq"


class ModuleState:
    """State that modules keep in plain attributes, in models that pass no cache.

    Args:
        model: before its first run.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._before = {
            (module, name): value
            for module in model.modules()
            for name, value in vars(module).items()
            if value is None or isinstance(value, torch.Tensor)
        }
        self._state: list[tuple[Any, str, bool]] = []

    def tensors(self) -> dict[tuple[Any, str], torch.Tensor]:
        """Return the state tensors of one row that did not exist before, by module and name."""
        return {
            (module, name): value
            for module in self._model.modules()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor)
            and value.ndim > 1
            and len(value) == 1
            and self._before.get((module, name)) is None
        }

    def reset_unless_cached(self) -> None:
        """Register the state tensors, so that they are reset before each call without a cache."""
        self._state = [(module, name, (module, name) in self._before) for module, name in self.tensors()]
        if self._state:
            self._model.base_model.register_forward_pre_hook(self._begin, with_kwargs=True)

    @property
    def hold_state(self) -> bool:
        """Whether any state is registered."""
        return bool(self._state)

    def reset(self) -> None:
        """Reset the state."""
        for module, name, existed in self._state:
            if existed:
                setattr(module, name, None)
            else:
                vars(module).pop(name, None)

    def _begin(self, module: Any, args: Any, inputs: dict[str, Any]) -> None:
        if not inputs.get("use_cache"):
            self.reset()


class RescaledRopes:
    """Rotary embeddings that remember the longest sequence seen.

    transformers keeps the angles between calls: version 4.57 replaces the tensor, version 5 overwrites it.

    Args:
        model: before it is run beyond its original length; scanning its modules takes a millisecond, once.
    """

    def __init__(self, model: Any) -> None:
        self._ropes = [
            (module, [name for name in (*vars(module), *module._buffers) if name.endswith(_ORIGINAL)])
            for module in model.modules()
            if hasattr(module, "original_max_seq_len") and _rescales(module)
        ]

    @torch.inference_mode(False)
    def reset(self) -> None:
        """Restore the original angles."""
        for module, names in self._ropes:
            for name in names:
                # Copy, so that the original is not overwritten later.
                angles = getattr(module, name).clone()
                module.register_buffer(name.replace("original_", ""), angles, persistent=False)
            for name in [name for name in vars(module) if name.endswith("max_seq_len_cached")]:
                setattr(module, name, module.original_max_seq_len)


def _rescales(rope: Any) -> bool:
    kinds = getattr(rope, "rope_type", "dynamic")
    return any(map(depends_on_length, kinds.values() if isinstance(kinds, Mapping) else (kinds,)))
