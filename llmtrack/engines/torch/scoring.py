"""Stateless passes of a transformers model over padded rows, and the log-likelihoods of rows by them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel

from llmtrack.engines.rows import Sharing
from llmtrack.engines.torch.module_state import ModuleState, RescaledRopes
from llmtrack.models.attention import share_keys_without_cache
from llmtrack.models.positions import context_length, first_position, forward_inputs, positions_of
from llmtrack.tensors.likelihood import predicted, sum_nll
from llmtrack.tensors.padding import pad_rows


class Passes:
    """Stateless passes of a model over rows.

    Args:
        model: a causal language model on its device, in `eval()`.

    Attributes:
        first_position: position of a row's first token.
        device: device of its first layer.
        modules: state kept by its modules.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.first_position = first_position(model)
        if self.first_position and not any(map(_renumbers, model._forward_pre_hooks.values())):
            model.register_forward_pre_hook(partial(_renumber, self.first_position), with_kwargs=True)
        share_keys_without_cache(model)
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
        self.modules.reset()
        self._ropes.reset()

    def of(self, module: Any, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        """Run the model or its body on (rows, length) ids and their mask."""
        self.modules.reset()
        return module(**forward_inputs(module, input_ids, attention_mask, self.first_position))

    def logits(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Return the (rows, length, vocabulary) logits of (rows, length) ids from any device."""
        with torch.inference_mode():
            return self.of(self._model, input_ids.to(self.device), attention_mask.to(self.device)).logits


class Scorer:
    """Score rows with a model, applying the head to a chunk of tokens at a time.

    Args:
        model: a causal language model on its device, in `eval()`.
        sharing: which rows may share a batch.
        around: context manager for each pass, such as for compiled layers.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        passes: Passes,
        sharing: Sharing,
        around: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self._model: Any = model
        self._passes, self._sharing, self._around = passes, sharing, around
        self._vocab_size = int(model.config.get_text_config().vocab_size)
        self._head: torch.nn.Module | None = None
        self._head_checked = False

    def score(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, scored: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Score next-token prediction over padded rows; see `Engine.score`.

        Rows that may not share a batch are computed group by group, each repadded.
        """
        real = attention_mask.bool()
        counts = predicted(attention_mask, scored).sum(dim=1)
        # The last token of a row is not context for any other.
        classes = self._sharing.classes((real.sum(dim=1) - 1).tolist())
        if not self._sharing.reason or (len(classes) == 1 and real.all()):
            return self._sums(input_ids, attention_mask, scored), counts
        sums = torch.zeros(len(counts), dtype=torch.float64)
        flags = torch.ones_like(real) if scored is None else scored
        for rows in classes:
            ids, mask = pad_rows([input_ids[row][real[row]].tolist() for row in rows], 0, "right")
            group, _ = pad_rows([flags[row][real[row]].tolist() for row in rows], 0, "right")
            sums[rows] = self._sums(ids, mask, group.bool())
        return sums, counts

    def _sums(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, scored: torch.Tensor | None) -> torch.Tensor:
        """Return the summed negative log-likelihood of rows that share a batch."""
        valid = predicted(attention_mask, scored).to(self._passes.device)
        if not valid.any():
            return torch.zeros(len(valid), dtype=torch.float64)
        input_ids, attention_mask = input_ids.to(self._passes.device), attention_mask.to(self._passes.device)
        self._passes.begin()
        # The last column is not context for any other, so it is not read.
        hidden, head = self._hidden_states(input_ids[:, :-1], attention_mask[:, :-1])
        # In a model spread over several cards, the last layer may be on another card than the first.
        targets, valid = input_ids[:, 1:].to(hidden.device), valid.to(hidden.device)
        return sum_nll(hidden, targets, valid, head, self._vocab_size).cpu()

    def _hidden_states(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor
    ) -> tuple[torch.Tensor, Callable[[torch.Tensor], torch.Tensor]]:
        """Return the last hidden states and the head that maps them to logits.

        A batch's logits are large (vocabulary times tokens), so the head is applied to chunks of tokens. Models that do
        more than one linear layer (soft-capping, scaling) are detected by a short pass; their logits are computed
        whole, and the head is the identity.
        """
        if not self._head_checked:
            self._head = self._plain_head(input_ids, attention_mask)
            self._head_checked = True
        with self._around():
            if self._head is None:
                logits = self._passes.of(self._model, input_ids, attention_mask).logits
                return logits, lambda logits: logits
            return self._passes.of(self._model.base_model, input_ids, attention_mask)[0], self._head

    def _plain_head(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.nn.Module | None:
        """Return the head if it is all that the model applies after its body."""
        head, body = self._model.get_output_embeddings(), self._model.base_model
        if head is None or body is self._model:
            return None
        captured: dict[str, torch.Tensor] = {}
        hooks = [
            body.register_forward_hook(lambda module, inputs, output: captured.update(hidden=output[0])),
            head.register_forward_hook(lambda module, inputs, output: captured.update(input=inputs[0], output=output)),
        ]
        longest = int(attention_mask.sum(dim=1).argmax())
        probe = input_ids[longest, attention_mask[longest].bool()][None, :8]
        try:
            logits = self._passes.of(self._model, probe, torch.ones_like(probe)).logits
        finally:
            for hook in hooks:
                hook.remove()
        # Within one pass, results are bit-identical, so that even a mild soft-cap is detected.
        plain = (
            len(captured) == 3
            and torch.equal(captured["hidden"], captured["input"])
            and torch.equal(captured["output"].to(logits), logits)
        )
        return head if plain else None


def _renumber(
    first: int, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Number the tokens of a call from the model's own first position.

    `generate` numbers them from 0 for every model that takes positions; transformers 5 omits an all-ones mask.
    """
    ids, mask, positions = (kwargs.get(name) for name in ("input_ids", "attention_mask", "position_ids"))
    if positions is None or ids is None:
        return args, kwargs
    if mask is None:
        kwargs = {**kwargs, "position_ids": positions + first}
    elif mask.ndim == 2:
        kwargs = {**kwargs, "position_ids": positions_of(mask, first)[:, -ids.shape[1] :]}
    return args, kwargs


def _renumbers(hook: Any) -> bool:
    return isinstance(hook, partial) and hook.func is _renumber
