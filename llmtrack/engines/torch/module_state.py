"""What modules remember from one call to the next, and how they are made to forget it.

What a model says of a text must not depend on the texts before it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from llmtrack.models.context import varies_with_length


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
        self._state: list[tuple[Any, str, bool]] = []

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
        """Take what was found for state; let each call that uses no cache begin without it, for as long as the model lives."""
        self._state = [(module, name, (module, name) in self._before) for module, name in self.found()]
        if self._state:
            self._model.base_model.register_forward_pre_hook(self._begin, with_kwargs=True)

    @property
    def hold_state(self) -> bool:
        """Whether some was found."""
        return bool(self._state)

    def forget(self) -> None:
        """Let the next call begin without the state."""
        for module, name, existed in self._state:
            if existed:
                setattr(module, name, None)
            else:
                vars(module).pop(name, None)

    def _begin(self, module: Any, args: Any, inputs: dict[str, Any]) -> None:
        if not inputs.get("use_cache"):
            self.forget()


class RescaledRopes:
    """The rotary embeddings of a model that remember the longest sequence that they have seen, if it has any.

    transformers keeps the angles from one call to the next: version 4.57 puts others in their place, version 5 writes
    others into the tensor that holds them.

    Args:
        model: before it is run on a sequence that is longer than what it was made for; to look through its modules takes
            a millisecond, which is paid once.
    """

    def __init__(self, model: Any) -> None:
        self._ropes = [
            (module, [name for name in (*vars(module), *module._buffers) if name.endswith(_ORIGINAL)])
            for module in model.modules()
            if hasattr(module, "original_max_seq_len") and _rescales(module)
        ]

    @torch.inference_mode(False)
    def reset(self) -> None:
        """Make them forget it."""
        for module, names in self._ropes:
            for name in names:
                # A copy, or what is written into it would be written into the original, too.
                own = getattr(module, name).clone()
                module.register_buffer(name.replace("original_", ""), own, persistent=False)
            for name in [name for name in vars(module) if name.endswith("max_seq_len_cached")]:
                setattr(module, name, module.original_max_seq_len)


_ORIGINAL = "original_inv_freq"


def _rescales(rope: Any) -> bool:
    kinds = getattr(rope, "rope_type", "dynamic")
    return any(map(varies_with_length, kinds.values() if isinstance(kinds, Mapping) else (kinds,)))
