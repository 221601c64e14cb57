"""What modules remember from one call to the next, and how they are made to forget it.

What a model says of a text must not depend on the texts before it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch


class ModuleState:
    """State that modules keep as plain attributes, as models do that hand no cache around.

    Args:
        model: before it is run for the first time.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._before = {
            (module, name): value
            for module in model.modules()
            for name, value in vars(module).items()
            if value is None or isinstance(value, torch.Tensor)
        }

    def found(self) -> dict[tuple[Any, str], torch.Tensor]:
        """Return what is there now and was not before: tensors of one row, by module and name."""
        return {
            (module, name): value
            for module in self._model.modules()
            for name, value in vars(module).items()
            if isinstance(value, torch.Tensor)
            and value.ndim > 1
            and len(value) == 1
            and self._before.get((module, name)) is None
        }

    def forget_unless_cached(self) -> None:
        """Let each call that uses no cache begin without what was found, for as long as the model lives."""
        names = [(module, name, (module, name) in self._before) for module, name in self.found()]
        if not names:
            return

        def forget(module: Any, args: Any, inputs: dict[str, Any]) -> None:
            if inputs.get("use_cache"):
                return
            for holder, name, existed in names:
                if existed:
                    setattr(holder, name, None)
                else:
                    vars(holder).pop(name, None)

        self._model.base_model.register_forward_pre_hook(forget, with_kwargs=True)


def rescaling_ropes(model: Any) -> list[Any]:
    """Return the rotary embeddings that remember the longest sequence that they have seen."""
    return [
        module
        for module in model.modules()
        if hasattr(module, "original_max_seq_len") and _original_angles(module)
    ]


def reset_rope(ropes: Iterable[Any]) -> None:
    """Make rotary embeddings forget the longest sequence that they have seen.

    transformers keeps the angles of dynamic scaling from one call to the next.

    Args:
        ropes: as found once for a model: to look through its modules takes a millisecond, which each call would pay.
    """
    for module in ropes:
        for name in _original_angles(module):
            buffer = name.replace("original_", "")
            module.register_buffer(buffer, getattr(module, name), persistent=False)
        for name in [name for name in vars(module) if name.endswith("max_seq_len_cached")]:
            setattr(module, name, module.original_max_seq_len)


def _original_angles(module: Any) -> list[str]:
    return [name for name in (*vars(module), *module._buffers) if name.endswith("original_inv_freq")]
