"""Stateless passes of a transformers model over padded rows, with positions counted from the model's first."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from llmtrack.engines.torch.module_state import ModuleState, RescaledRopes
from llmtrack.models.attention import share_keys
from llmtrack.models.positions import context_length, first_position, forward_inputs, positions_of


class Passes:
    """Passes of a model over rows.

    Args:
        model: a causal language model on its device, in `eval()`.

    Attributes:
        first_position: position of a row's first token.
        device: device of its first layer.
        modules: state kept by its modules.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.first_position = first_position(model)
        if self.first_position and not any(map(_is_own, model._forward_pre_hooks.values())):
            model.register_forward_pre_hook(partial(_own_positions, self.first_position), with_kwargs=True)
        share_keys(model)
        self.device = next(model.parameters()).device
        self._model: Any = model
        for module in model.modules():  # hooks left by a call during loading
            if hasattr(module, "recurrent_states"):
                module.recurrent_states = None
        self.modules = ModuleState(model)
        self._ropes = RescaledRopes(model)

    @property
    def context_length(self) -> int | None:
        """Maximum positions of the model; None if unknown."""
        positions = context_length(self._model.config.get_text_config().to_dict())
        return None if positions is None else positions - self.first_position

    def begin(self) -> None:
        """Reset all state."""
        self.modules.forget()
        self._ropes.reset()

    def of(self, module: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        """Run the model or its body on (rows, length) ids and their mask."""
        self.modules.forget()
        return module(**forward_inputs(module, input_ids, attention_mask, self.first_position))

    def logits(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the (rows, length, vocabulary) logits of (rows, length) ids from any device."""
        with torch.inference_mode():
            return self.of(self._model, input_ids.to(self.device), attention_mask.to(self.device)).logits


def _own_positions(
    first: int, module: Any, given: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Number the tokens of a call from the model's own first position.

    `generate` numbers them from 0 for every model that takes positions; transformers 5 omits an all-ones mask.
    """
    ids, mask, positions = (named.get(name) for name in ("input_ids", "attention_mask", "position_ids"))
    if positions is None or ids is None:
        return given, named
    if mask is None:
        named = {**named, "position_ids": positions + first}
    elif mask.ndim == 2:
        named = {**named, "position_ids": positions_of(mask, first)[:, -ids.shape[1] :]}
    return given, named


def _is_own(hook: Any) -> bool:
    return isinstance(hook, partial) and hook.func is _own_positions
