"""GPTQ: round a weight input by input, compensating each error with the inputs not rounded yet.

Frantar et al. 2022, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers". ONNX Runtime's
implementation returns floats that must be rounded a second time with different scales. Pure functions over arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

DAMPING = 0.01
"""Share of the mean squared input added to the diagonal, which damps rarely active inputs."""

STEPS = 15
"""The largest step of 4 bits."""

RANGES = np.linspace(1.05, 0.7, 12)
"""Candidate shares of a block's range: clipping one value can cost less than coarser steps for all others."""


@dataclass(frozen=True)
class Rounded:
    """A weight in 4 bits, `(steps - zeros) * scales`: (inputs, outputs) steps, (blocks, outputs) scales and zeros."""

    steps: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.uint8]


def factored(products: Array) -> tuple[Array, Array]:
    """Return what layers that read the same inputs share: the importance of each input, and how its error spreads.

    `products` are (inputs, inputs) products of the layers' inputs, summed over tokens.
    """
    inputs = len(products)
    damped = products.astype(np.float64)
    damped[np.diag_indices(inputs)] += DAMPING * (np.trace(damped) / inputs or 1.0)
    # Rows of the inverse's Cholesky factor distribute the error of an input over those after it.
    inverse = np.linalg.inv(damped)
    return np.diag(damped), np.linalg.cholesky((inverse + inverse.T) / 2).T


def gptq(weight: Array, importance: Array, spread: Array, block_size: int) -> Rounded:
    """Round an (inputs, outputs) weight to 4 bits in blocks, minimizing the change of the layer's output.

    `importance` and `spread` are of `factored`.
    """
    inputs, outputs = weight.shape
    rest = weight.astype(np.float64)
    steps = np.empty((inputs, outputs), np.uint8)
    blocks = range(0, inputs, block_size)
    scales, zeros = np.empty((len(blocks), outputs), np.float32), np.empty((len(blocks), outputs), np.uint8)
    for block, start in enumerate(blocks):
        end = min(start + block_size, inputs)
        scales[block], zeros[block] = grid(rest[start:end], importance[start:end])
        scale, zero = scales[block].astype(np.float64), zeros[block].astype(np.float64)
        for row in range(start, end):
            step = _step(rest[row] / scale, zero)
            error = (rest[row] - (step - zero) * scale) / spread[row, row]
            rest[row + 1 : end] -= spread[row, row + 1 : end, None] * error
            steps[row], rest[row] = step, error
        rest[end:] -= spread[start:end, end:].T @ rest[start:end]
    return Rounded(steps, scales, zeros)


def grid(block: Array, importance: Array) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Search the scales and zero points, (outputs) each, that round an (inputs, outputs) block with the least error.

    `importance` are the (inputs) weights of squared errors.
    """
    values = block.astype(np.float32)
    costs = (importance / importance.max()).astype(np.float32)[:, None]
    low = np.minimum(values.min(axis=0), 0)
    full = np.maximum((np.maximum(values.max(axis=0), 0) - low) / STEPS, np.float32(1e-9))
    best, scales, zeros = np.full_like(full, np.inf), full, np.zeros_like(full)
    for share in RANGES.astype(np.float32):
        scale = full * share
        zero = _step(-low / scale, 0)
        signed = _step(values / scale, zero) - zero
        # Least-squares scale for these steps; arbitrary where all steps are zero.
        weights = (costs * signed * signed).sum(axis=0)
        fitted = (costs * signed * values).sum(axis=0) / np.maximum(weights, np.float32(1e-30))
        scale = np.where(fitted > 1e-9, fitted, scale)
        signed = _step(values / scale, zero) - zero
        error = (costs * (signed * scale - values) ** 2).sum(axis=0)
        better = error < best
        best, scales = np.where(better, error, best), np.where(better, scale, scales)
        zeros = np.where(better, zero, zeros)
    return scales, zeros


def _step(scaled: Array, zero: Array | int) -> Array:
    """Return the nearest possible steps of values divided by their scales, in the given array."""
    np.rint(scaled, out=scaled)
    scaled += zero
    np.maximum(scaled, 0, out=scaled)
    return np.minimum(scaled, STEPS, out=scaled)


def pack(rounded: Rounded, block_size: int) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8]]:
    """Pack steps, scales and zero points as MatMulNBits stores them, two steps per byte, the first in the low half.

    Returns:
        (outputs, blocks, block_size / 2), (outputs, blocks) and (outputs, blocks / 2 rounded up).
    """
    inputs, outputs = rounded.steps.shape
    padded = np.pad(rounded.steps, ((0, -inputs % block_size), (0, 0)))
    steps = padded.T.reshape(outputs, -1, block_size)
    return _pairs(steps), np.ascontiguousarray(rounded.scales.T), _pairs(rounded.zeros.T)


def _pairs(steps: NDArray[np.uint8]) -> NDArray[np.uint8]:
    even = np.pad(steps, [(0, 0)] * (steps.ndim - 1) + [(0, steps.shape[-1] % 2)])
    return (even[..., ::2] | even[..., 1::2] << 4).astype(np.uint8)
