"""Decode step of a model whose products cannot be fused: its own forward pass over transformers' static cache."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from transformers import StaticCache


class PlainModel:
    """A transformers model as a `StepModel`.

    Args:
        model: a model that supports a static cache.
    """

    name = "as it is"
    static_prefill = False

    def __init__(self, model: Any) -> None:
        self._model = model
        takes = inspect.signature(model.forward).parameters
        self._optional = {"position_ids", "cache_position", "logits_to_keep"} & set(takes)
        self._cache = "cache" if "cache" in takes else "past_key_values"
        self._dtype = next(model.parameters()).dtype

    def new_cache(self, rows: int, length: int, first_position: int) -> StaticCache:
        """Return an empty cache for the given tokens; its rows are created in the first pass."""
        return StaticCache(config=self._model.config, max_cache_len=length)

    def logits(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        mask: torch.Tensor,
        cache: StaticCache,
    ) -> torch.Tensor:
        """See `StepModel.logits`."""
        given = {"position_ids": positions, "cache_position": slots, "logits_to_keep": 1}
        added = torch.zeros(mask.shape, dtype=self._dtype, device=mask.device)
        output = self._model(
            input_ids=ids,
            attention_mask=added.masked_fill(~mask, torch.finfo(self._dtype).min),
            use_cache=True,
            **{self._cache: cache},
            **{name: value for name, value in given.items() if name in self._optional},
        )
        logits: torch.Tensor = output.logits[:, -1]
        return logits

    def begin(self, cache: StaticCache) -> None:
        """Reset a cache: in version 5 it counts its tokens itself."""
        cache.reset()

    def compiled(self, compiler: Callable[[Any], Any]) -> Callable[..., torch.Tensor]:
        """Return `logits`, compiled as a whole."""
        run: Callable[..., torch.Tensor] = compiler(self.logits)
        return run
