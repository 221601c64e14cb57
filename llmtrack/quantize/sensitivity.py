"""Rank layers by their sensitivity to quantization, and search how many to exclude to keep the quality.

Pure functions over arrays and numbers, independent of file formats and quantization libraries.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Rounding:
    """How a linear layer is rounded.

    Attributes:
        activations: `dynamic`: to 8 bits with a range per call; `static`: to 8 bits with one range for all calls;
            `none`: not rounded.
        bits: bits of a weight; 7 for 8-bit weights reduced to avoid saturation of byte products.
        block_size: inputs that share a weight's scale; 0: a whole column.
    """

    activations: str
    bits: int = 8
    block_size: int = 0


DYNAMIC, STATIC = Rounding("dynamic"), Rounding("static")


@dataclass(frozen=True)
class LayerError:
    """The output error of quantizing one linear layer alone.

    Attributes:
        node: name of the layer.
        error: mean over tokens of squared error over squared output (the inverse of a signal-to-noise ratio).
        parameters: size of the layer's weight.
    """

    node: str
    error: float
    parameters: int

    @property
    def sqnr_db(self) -> float:
        """Signal-to-quantization-noise ratio in decibels, all tokens weighted equally."""
        return float(-10 * np.log10(max(self.error, 1e-30)))


@dataclass(frozen=True)
class Attempt:
    """One step of the search.

    Attributes:
        left_out: number of excluded layers.
        loss: mean negative log-likelihood on the calibration text, in nats.
    """

    left_out: int
    loss: float


def quantize_weight(weight: Array, bits: int = 8, block_size: int = 0) -> Array:
    """Round a weight to symmetric integers, one scale per block of a column; return the dequantized floats.

    Args:
        weight: (inputs, outputs).
        bits: bits of an integer.
        block_size: inputs that share a scale; 0: all.
    """
    inputs, outputs = weight.shape
    rows = block_size or inputs
    blocks = np.pad(weight, ((0, -inputs % rows), (0, 0))).reshape(-1, rows, outputs)
    limit = 2 ** (bits - 1) - 1
    scale = np.maximum(np.abs(blocks).max(axis=1, keepdims=True), 1e-12) / limit
    return (np.round(blocks / scale) * scale).reshape(-1, outputs)[:inputs]


def quantize_activation(values: Array, low: float, high: float) -> Array:
    """Round values to 256 steps between two limits, zero included; values outside are clipped."""
    low, high = min(low, 0.0), max(high, 0.0)
    scale = max(high - low, 1e-12) / 255
    # A Python number: a NumPy float64 would promote all values.
    zero = round(-low / scale)
    return (np.clip(np.round(values / scale) + zero, 0, 255) - zero) * scale


def layer_error(rows: Sequence[Array], weight: Array, rounding: Rounding) -> float:
    """Return the mean over tokens of squared error over squared output of one quantized linear layer.

    All tokens are weighted equally; otherwise a token with a huge activation would hide the errors of all others that
    share its range.

    Args:
        rows: the layer's inputs, one array (tokens, inputs) per call.
        weight: (inputs, outputs).
        rounding: how the layer is rounded.
    """
    rounded = quantize_weight(weight, rounding.bits, rounding.block_size)
    overall = min(float(x.min()) for x in rows), max(float(x.max()) for x in rows)
    total, tokens = 0.0, 0
    for x in rows:
        low, high = overall if rounding.activations == "static" else (float(x.min()), float(x.max()))
        exact = x @ weight
        given = x if rounding.activations == "none" else quantize_activation(x, low, high)
        wrong = given @ rounded - exact
        signal = np.maximum((exact.astype(np.float64) ** 2).sum(axis=1), 1e-20)
        total += float(((wrong.astype(np.float64) ** 2).sum(axis=1) / signal).sum())
        tokens += len(x)
    return total / tokens


def worst_first(errors: Sequence[LayerError]) -> tuple[LayerError, ...]:
    """Sort layers by decreasing error; the sort is stable."""
    return tuple(sorted(errors, key=lambda each: -each.error))


def fewest_left_out(loss_without: Callable[[int], float], layers: int, bound: float) -> tuple[int, tuple[Attempt, ...]]:
    """Return how many of the worst layers must be excluded to keep the loss within a bound.

    Tries none, a sixteenth of the layers, then doubles until the bound holds, then bisects down to an eighth of the
    number: each try costs a pass over the calibration text.

    Args:
        loss_without: loss with so many of the worst layers excluded.
        layers: number of layers.
        bound: maximum loss, in nats.

    Returns:
        The number, and the tries in order. `layers`, untried, if nothing less keeps the bound.
    """
    attempts: list[Attempt] = []

    def keeps(number: int) -> bool:
        attempts.append(Attempt(number, loss_without(number)))
        return attempts[-1].loss <= bound

    low, high = -1, 0
    while not keeps(high):
        low, high = high, max(1, layers // 16, 2 * high)
        if high >= layers:
            return layers, tuple(attempts)
    while high - low > max(1, high // 8):
        middle = (low + high) // 2
        if keeps(middle):
            high = middle
        else:
            low = middle
    return high, tuple(attempts)
