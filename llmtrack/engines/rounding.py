"""What rounding alone changes in what a model says: how much hangs on the last bit is a matter of the model, not of its dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch

# Of the logits' standard deviation: less than this is rounding in every model, in the order of sums and in 16 bits.
_TOLERANCES = {torch.float32: 1e-3, torch.float64: 1e-3}
_HALF_TOLERANCE = 0.3

_DRAWS, _BEYOND = 4, 3
"""So often the last bits are drawn, and so many times their largest effect is no rounding."""

Noise = Callable[[int], AbstractContextManager[None]]
"""Opens, for a seed, a context in which the last bits of what a model computes from are others."""


def noise_of(model: Any) -> Noise | None:
    """Return what changes the last bits of a model's embeddings; None where it has no such layer.

    Args:
        model: a transformers model.
    """
    try:
        embedding = model.get_input_embeddings()
    except NotImplementedError:
        return None
    return None if embedding is None else partial(_last_bits_changed, embedding)


@contextmanager
def _last_bits_changed(embedding: torch.nn.Module, seed: int) -> Iterator[None]:
    random = torch.Generator().manual_seed(seed)

    def change(module: Any, given: Any, made: torch.Tensor) -> torch.Tensor:
        noise = torch.randn(made.shape, generator=random).to(made)
        return made * (1 + torch.finfo(made.dtype).eps * noise)

    hook = embedding.register_forward_hook(change)
    try:
        yield
    finally:
        hook.remove()


def differ(
    one: torch.Tensor, other: torch.Tensor, again: Callable[[], torch.Tensor] | None, noise: Noise | None
) -> bool:
    """Return whether logits differ by more than rounding does.

    Where they differ by more than it does in most models, what it does in this one is measured: a deep model with outliers, a
    router of experts and 8-bit activations turn a last bit into a thousandth, or a tenth, of a standard deviation.

    Args:
        one: logits.
        other: logits that are to be the same.
        again: computes `one` again.
        noise: what changes last bits meanwhile; None: the tolerance of the dtype alone decides.
    """
    difference = (one - other).abs().max()
    tolerance = _TOLERANCES.get(one.dtype, _HALF_TOLERANCE)
    if not difference > tolerance * one.float().std().clamp(min=1e-6):
        return False
    return noise is None or again is None or bool(difference > _BEYOND * _by_rounding(one, again, noise))


def _by_rounding(one: torch.Tensor, again: Callable[[], torch.Tensor], noise: Noise) -> float:
    changes = []
    for seed in range(_DRAWS):
        with noise(seed):
            changes.append(float((again() - one).abs().max()))
    return max(changes)
