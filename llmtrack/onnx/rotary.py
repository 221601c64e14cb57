"""Rotary embeddings of a PyTorch model: parameters for the fused operator, and tracing of length-dependent ones."""

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
"""The head width must be a multiple of this for the fused operator."""


def rotary_of(model: Any) -> Rotary | None:
    """Return the parameters of the fused attention, or None if the model does not support it."""
    config = model.config.get_text_config()
    embedding = getattr(model.base_model, "rotary_emb", None)
    frequencies = getattr(embedding, "inv_freq", None)
    heads = getattr(config, "num_attention_heads", None)
    # All layers must be equal and expose the factor of their scores.
    layers = [module for module in model.modules() if hasattr(module, "q_proj") and hasattr(module, "o_proj")]
    scale, *others = {getattr(layer, "scaling", None) for layer in layers} or (None,)
    windows = {getattr(layer, "sliding_window", None) for layer in layers}
    if frequencies is None or not heads or others or not isinstance(scale, float):
        return None
    if windows != {None} or why_not_fused(config.to_dict()):
        return None
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    # Each head is only partly rotated, or has an unsupported width.
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
    """Compute length-dependent frequencies inside the graph while a model is traced.

    transformers chooses them in Python, so a trace would keep those of the traced length.

    Raises:
        ScenarioError: rotary positions of an unsupported kind.
    """
    kind = rope_kind(model.config.get_text_config().to_dict())
    changed = [module for module in model.modules() if _depends_on_length(module)]
    if kind not in STATIC_ROPE | LENGTH_DEPENDENT_ROPE or (kind in LENGTH_DEPENDENT_ROPE and not changed):
        raise ScenarioError(
            f"{type(model).__name__} cannot be exported to ONNX: its {kind} rotary positions depend on the length in a "
            "way that cannot be traced (use backend=torch)",
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
    """Return the frequencies as a function of the length, using tensor operations only."""
    config, made, device = module.config, module.rope_init_fn, module.inv_freq.device
    if module.rope_type != "longrope":
        return lambda length: made(config, device, seq_len=length)[0]
    context = config.max_position_embeddings
    threshold = getattr(config, "original_max_position_embeddings", context)
    short, long = (made(config, device, seq_len=each)[0] for each in (threshold, threshold + 1))
    return lambda length: torch.where(length > threshold, long, short)
