"""Positions of a model's tokens: its context length, and the inputs of a pass."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_LENGTH_SETTINGS = ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx")


def context_length(config: Mapping[str, Any]) -> int | None:
    """Return the maximum positions by a (text) model's config, including rotary scaling; None if unbounded.

    Scaled rotary embeddings (linear, dynamic, yarn, longrope ...) reach `factor` times the original length. Models
    differ in whether the config's length is before or after scaling: the longer one is allowed.

    >>> context_length({"max_position_embeddings": 2048, "rope_scaling": {"rope_type": "linear", "factor": 4.0}})
    8192
    """
    length = next((value for name in _LENGTH_SETTINGS if isinstance(value := config.get(name), (int, float))), 0)
    if length <= 0:  # -1 and 0 mean no limit
        return None
    lengths = [int(length)]
    for rope in rotary_settings(config):
        original = (
            rope.get("original_max_position_embeddings") or config.get("original_max_position_embeddings") or length
        )
        lengths.append(int(original * (rope.get("factor") or 1)))
    return max(lengths)


def first_position(model: Any) -> int:
    """Return the position of a row's first token.

    0, except in RoBERTa and its variants, whose position tables start after the pad's row.
    """
    return max(
        (
            padding + 1
            for name, module in model.named_modules()
            if name.endswith("position_embeddings") and isinstance(padding := getattr(module, "padding_idx", None), int)
        ),
        default=0,
    )


def rotary_settings(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield a config's rotary settings in either version's spelling, including those per kind of layer."""
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(settings := config.get(name), Mapping):
            yield settings
            yield from (value for value in settings.values() if isinstance(value, Mapping))


def depends_on_length(kind: str) -> bool:
    """Return whether a kind of rotary embedding depends on the sequence length."""
    return "dynamic" in kind or kind in ("longrope", "su")


def forward_inputs(
    module: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor, first_position: int = 0
) -> dict[str, Any]:
    """Return the arguments of an uncached pass, as far as the module accepts them.

    Args:
        module: a transformers model or its body.
        input_ids: (rows, length) token ids.
        attention_mask: (rows, length), 1 for tokens; pads on either side.
        first_position: position of a row's first token (`first_position`).
    """
    parameters = inspect.signature(module.forward).parameters
    accepts_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    inputs: dict[str, Any] = {"input_ids": input_ids}
    for name, value in (("attention_mask", attention_mask), ("use_cache", False)):
        if accepts_any or name in parameters:
            inputs[name] = value
    if "position_ids" in parameters:
        inputs["position_ids"] = positions_of(attention_mask, first_position)
    return inputs


def positions_of(attention_mask: torch.Tensor, first: int = 0) -> torch.Tensor:
    """Return the position of each token, (rows, length), counting from `first` and not counting pads before it."""
    return (attention_mask.cumsum(dim=1) - 1).clamp(min=0) + first
