"""Measure the effect of rounding on a model's output, which depends on the model as well as on its dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch

# Tolerances relative to the logits' standard deviation that cover rounding in any model: summation order, 16 bits.
_TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-3}
_HALF_TOLERANCE = 0.3

_DRAWS, _FACTOR = 4, 3
"""Number of perturbations, and the multiple of their largest effect that exceeds rounding."""

Noise = Callable[[int], AbstractContextManager[None]]
"""Returns, for a seed, a context manager that perturbs the last bits of a model's inputs."""


def noise_of(model: Any) -> Noise | None:
    """Return a perturbation of a transformers model's embeddings, or None without such a layer."""
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError:
        return None
    return None if embedding is None else partial(_perturb_last_bits, embedding)


@contextmanager
def _perturb_last_bits(embedding: torch.nn.Module, seed: int) -> Iterator[None]:
    random = torch.Generator().manual_seed(seed)

    def perturb(module: Any, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(output.shape, generator=random).to(output)
        return output * (1 + torch.finfo(output.dtype).eps * noise)

    hook = embedding.register_forward_hook(perturb)
    try:
        yield
    finally:
        hook.remove()


def differ(
    first: torch.Tensor, second: torch.Tensor, recompute: Callable[[], torch.Tensor], noise: Noise | None
) -> bool:
    """Return whether logits differ by more than rounding.

    If they exceed the usual tolerance, the effect of rounding in this model is measured: deep models with outliers,
    expert routers and 8-bit activations can turn a last bit into a thousandth, or a tenth, of a standard deviation.

    Args:
        recompute: computes `first` once more.
        noise: perturbation of last bits; None to decide by the dtype's tolerance alone.
    """
    difference = (first - second).abs().max()
    tolerance = _TOLERANCES.get(first.dtype, _HALF_TOLERANCE)
    if not difference > tolerance * first.float().std().clamp(min=1e-6):
        return False
    return noise is None or bool(difference > _FACTOR * _rounding_effect(first, recompute, noise))


def _rounding_effect(logits: torch.Tensor, recompute: Callable[[], torch.Tensor], noise: Noise) -> float:
    changes = []
    for seed in range(_DRAWS):
        with noise(seed):
            changes.append(float((recompute() - logits).abs().max()))
    return max(changes)
