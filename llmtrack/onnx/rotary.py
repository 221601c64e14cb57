"""Rotary embeddings of a PyTorch model: what the fused operator needs to know, and what tracing would lose."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from llmtrack.errors import ScenarioError
from llmtrack.onnx.attention import Rotary
from llmtrack.onnx.lengths import LENGTH_DEPENDENT_ROPE, STATIC_ROPE, rope_kind, why_not_fused

_WIDTHS = 8
"""The fused operator takes heads of multiples of so many numbers."""


def rotary_of(model: Any) -> Rotary | None:
    """Return what the fused attention needs to know of a model, or None if it is not of the kind that it computes."""
    config = model.config.get_text_config()
    embedding = getattr(model.base_model, "rotary_emb", None)
    frequencies = getattr(embedding, "inv_freq", None)
    heads = getattr(config, "num_attention_heads", None)
    # Every layer must do the same, and say by which factor it multiplies its scores.
    layers = [module for module in model.modules() if hasattr(module, "q_proj") and hasattr(module, "o_proj")]
    scale, *others = {getattr(layer, "scaling", None) for layer in layers} or (None,)
    windows = {getattr(layer, "sliding_window", None) for layer in layers}
    if frequencies is None or not heads or others or not isinstance(scale, float):
        return None
    if windows != {None} or why_not_fused(config.to_dict()):
        return None
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    # Only a part of each head is rotated, or it has a width that the operator does not take.
    if 2 * len(frequencies) != width or width % _WIDTHS:
        return None
    return Rotary(
        heads=heads,
        kv_heads=getattr(config, "num_key_value_heads", None) or heads,
        frequencies=frequencies.detach().float().cpu().numpy(),
        magnitude=float(getattr(embedding, "attention_scaling", 1.0)),
        scale=scale,
    )


@contextmanager
def traceable_rope(model: Any) -> Iterator[None]:
    """Let frequencies that depend on the length be computed inside the graph while a model is traced.

    transformers chooses them in Python, of which a trace keeps what the one traced length led to.

    Raises:
        ScenarioError: the model has rotary positions of a kind that this is not known of.
    """
    kind = rope_kind(model.config.get_text_config().to_dict())
    changed = [module for module in model.modules() if _depends_on_length(module)]
    if kind not in STATIC_ROPE | LENGTH_DEPENDENT_ROPE or (kind in LENGTH_DEPENDENT_ROPE and not changed):
        raise ScenarioError(
            f"{type(model).__name__} cannot be exported to ONNX: its {kind} rotary positions depend on the length in a "
            "way that a graph cannot be made to say (use backend=torch)",
            kind="unsupported",
        )
    for module in changed:
        module.forward = _traceable(module)
    try:
        yield
    finally:
        for module in changed:
            del module.forward
            module.register_buffer("inv_freq", module.original_inv_freq, persistent=False)


def _depends_on_length(module: Any) -> bool:
    kind = getattr(module, "rope_type", None)
    return kind in LENGTH_DEPENDENT_ROPE and hasattr(module, "rope_init_fn")


def _traceable(module: Any) -> Callable[..., Any]:
    frequencies = _by_length(module)
    rotate = inspect.unwrap(type(module).forward)

    def forward(x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        length = position_ids.max() + 1
        module.register_buffer("inv_freq", frequencies(length), persistent=False)
        return rotate(module, x, position_ids)

    return forward


def _by_length(module: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the frequencies as a function of the length, in tensors only."""
    config, made, device = module.config, module.rope_init_fn, module.inv_freq.device
    if module.rope_type != "longrope":
        return lambda length: made(config, device, seq_len=length)[0]
    context = config.max_position_embeddings
    threshold = getattr(config, "original_max_position_embeddings", context)
    short, long = (made(config, device, seq_len=each)[0] for each in (threshold, threshold + 1))
    return lambda length: torch.where(length > threshold, long, short)
