"""Choose the decoding implementation: compiled with fused products, compiled as is, or eager."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

from llmtrack.devices import KINDS, kind_of
from llmtrack.engine import GenerateRequest
from llmtrack.engines.options import NO_COMPILE
from llmtrack.engines.rounding import differ, noise_of
from llmtrack.engines.rows import Sharing
from llmtrack.engines.torch.eager import EagerDecoding
from llmtrack.engines.torch.fast.compiled import (
    CompiledDecoding,
    Compiler,
    PlainModel,
    StepModel,
    prompt_mask,
    torch_compiler,
)
from llmtrack.engines.torch.fast.fused import FusedModel, unfusible
from llmtrack.engines.torch.stamps import Stamps
from llmtrack.engines.torch.step import Step
from llmtrack.errors import in_words
from llmtrack.models.positions import positions_of

Forward = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]

_PROBE_TOKENS, _PROBE_PADS = 7, 3


class Decoding(Protocol):
    """Computes the new tokens of a request step by step."""

    name: str

    def prepare(self, request: GenerateRequest) -> float:
        """Prepare for a request before timing; return the seconds that it took, 0 if it was ready."""
        ...

    def generate(self, request: GenerateRequest, stamps: Stamps) -> torch.Tensor:
        """Return (rows, new tokens) ids on the host, stamping each step once."""
        ...


def choose_decoding(
    model: Any,
    mode: str,
    *,
    pad_id: int,
    eos_ids: frozenset[int],
    first_position: int,
    forward: Forward,
    sharing: Sharing,
    step: Step,
    compiler: Compiler | None = None,
) -> tuple[Decoding, tuple[str, ...]]:
    """Return a model's decoding implementation, and a warning if it is not the requested one.

    Models with fusible products are fused; their weights become views. A step is only used if it reproduces the logits
    of the model's own pass.

    Args:
        model: a transformers model in `eval()`.
        mode: `none`, `default` or `max-autotune`.
        first_position: position of a row's first token.
        forward: the model's own pass: maps ids and attention mask, both (rows, length), to logits.
        sharing: which rows may share a batch.
        compiler: compiles a function; None for `torch.compile`.
    """
    eager = EagerDecoding(model, pad_id, eos_ids)
    if mode == NO_COMPILE:
        return eager, ()
    reason = _uncompilable(model, sharing, step)
    for make in () if reason else (_fused, PlainModel):
        try:
            step_model = make(model)
            if isinstance(step_model, str):
                reason = step_model
            elif _agrees(step_model, model, forward, first_position):
                compiled = CompiledDecoding(
                    step_model,
                    model.device,
                    pad_id=pad_id,
                    eos_ids=eos_ids,
                    first_position=first_position,
                    compiler=compiler or torch_compiler(mode),
                )
                return compiled, (f"decoding is compiled as the model is: {reason}",) if reason else ()
            else:
                reason = "a step over a static cache gives other logits than the model"
        except Exception as error:  # the model can still be run eagerly
            reason = in_words(error)[:200]
    return eager, (f"decoding is not compiled: {reason}",)


def _uncompilable(model: Any, sharing: Sharing, step: Step) -> str:
    if not KINDS[kind_of(model.device)].tried:
        return f"it was never tried on {KINDS[kind_of(model.device)].title}"
    if sharing.reason:
        return sharing.reason
    if step.cache.constant or step.cache.windows or not step.cache.per_token:
        return "its cache does not just grow by the token"
    if not getattr(model, "_can_compile_fullgraph", False):
        return f"{type(model).__name__} cannot be compiled as one graph"
    return ""


def _fused(model: Any) -> StepModel | str:
    return unfusible(model) or FusedModel(model)


def _agrees(step_model: StepModel, model: Any, forward: Forward, first_position: int) -> bool:
    """Return whether a pass over a prompt and a step after it reproduce the logits of the model's own pass.

    One of two rows has pads, and the prompt is one token shorter than the context.
    """
    device, vocab_size, noise = model.device, model.config.get_text_config().vocab_size, noise_of(model)
    ids = torch.arange(1, 1 + 2 * _PROBE_TOKENS, device=device).view(2, -1) % vocab_size
    real = torch.ones_like(ids)
    real[1, :_PROBE_PADS] = 0
    positions, slots = positions_of(real, first_position), torch.arange(_PROBE_TOKENS, device=device)
    mask = prompt_mask(real)[:, None]

    def expected(column: int) -> torch.Tensor:
        return forward(ids, real)[:, column]

    with torch.inference_mode():
        cache = step_model.new_cache(2, _PROBE_TOKENS, first_position)
        step_model.begin(cache)
        for first, end in ((0, _PROBE_TOKENS - 1), (_PROBE_TOKENS - 1, _PROBE_TOKENS)):
            inputs = ids[:, first:end], positions[:, first:end], slots[first:end], mask[:, :, first:end]
            logits = step_model.logits(*inputs, cache)
            if differ(expected(end - 1), logits, partial(expected, end - 1), noise):
                return False
    return True
