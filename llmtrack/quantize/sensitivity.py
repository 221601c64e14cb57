"""Exclude as few layers as possible from quantization, the most sensitive first, to bound the rise in perplexity."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import ModelProto, TensorProto, helper, numpy_helper

from llmtrack.onnx import graph
from llmtrack.onnx.session import MODEL_FILE, OnnxDecoder, next_token_logits
from llmtrack.quantize.options import share
from llmtrack.quantize.recipe import Built, Job
from llmtrack.tensors.likelihood import sum_nll

# Calibration rows used for the ranking: the layers' inputs are in memory for all of them.
RANKED_ROWS = 4


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
    """The output error of quantizing one linear layer alone; see `layer_error`."""

    node: str
    error: float
    parameters: int

    @property
    def sqnr_db(self) -> float:
        """Signal-to-quantization-noise ratio in decibels, all tokens weighted equally."""
        return float(-10 * np.log10(max(self.error, 1e-30)))


@dataclass(frozen=True)
class Attempt:
    """A step of the search: a number of excluded layers, and its loss on the calibration text in nats."""

    left_out: int
    loss: float


def leave_out(
    job: Job, base: ModelProto, quantized: ModelProto, donor: ModelProto, rounding: Rounding
) -> tuple[ModelProto, Built]:
    """Replace the most sensitive layers of a quantized graph by those of a donor; return the graph and the findings.

    The head is not among them: recipes store it in 8-bit blocks anyway.

    Args:
        job: options with `keep_quality`, and the rows on which the bound must hold.
        quantized: the same graph with every linear layer quantized.
        donor: the same graph with these layers in float or more bits.
        rounding: of the quantized graph, for the ranking.
    """
    bound = share(job.options["keep_quality"])
    layers = [layer for layer in graph.linears(base) if layer.result != "logits"]
    ranked = worst_first(rank(base, layers, job.rows[:RANKED_ROWS], rounding))
    layer_of = {layer.node: layer for layer in layers}
    if bound is None:
        return quantized, _built(ranked, layer_of, 0, ())

    def without(number: int) -> ModelProto:
        model = graph.copy_of(quantized)
        if number:
            graph.graft(model, donor, {layer_of[layer.node].result for layer in ranked[:number]})
        return model

    def loss_of(model: ModelProto) -> float:
        with opened(model, job.target) as decoder:
            return mean_loss(decoder, job.rows)

    exact = loss_of(base)
    number, attempts = fewest_left_out(lambda number: loss_of(without(number)), len(layers), exact + math.log1p(bound))
    steps = tuple({"left_out": attempt.left_out, "increase": math.expm1(attempt.loss - exact)} for attempt in attempts)
    return without(number), _built(ranked, layer_of, number, steps)


def rank(
    base: ModelProto, layers: Sequence[graph.Linear], rows: Sequence[Sequence[int]], rounding: Rounding
) -> list[LayerError]:
    """Compute the error of quantizing each layer alone, for its inputs on these rows."""
    inputs: dict[str, list[np.ndarray]] = {}
    for call in inputs_of(base, layers, rows):
        for name, values in call.items():
            inputs.setdefault(name, []).append(values)
    weights = graph.weights_of(base)
    return [
        LayerError(
            layer.node,
            layer_error(inputs[layer.source], numpy_helper.to_array(weights[layer.weight]), rounding),
            layer.parameters,
        )
        for layer in layers
    ]


def inputs_of(
    base: ModelProto, layers: Sequence[graph.Linear], rows: Sequence[Sequence[int]]
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the layers' inputs for each row: (tokens, inputs) by `Linear.source`."""
    sources = sorted({layer.source for layer in layers})
    model = graph.copy_of(base)
    outputs = {output.name for output in model.graph.output}
    model.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in sources if name not in outputs
    )
    with opened(model) as decoder:
        for row in rows:
            values = decoder.inspect(np.array([row]), sources)
            yield {name: array.reshape(-1, array.shape[-1]) for name, array in zip(sources, values, strict=True)}


def mean_loss(decoder: OnnxDecoder, rows: Sequence[Sequence[int]]) -> float:
    """Compute the mean negative log-likelihood in nats of rows of tokens, each scored alone."""
    total = 0.0
    for row in rows:
        logits = torch.from_numpy(next_token_logits(decoder, row[:-1]))[None]
        targets = torch.tensor([row[1:]])
        every = torch.ones_like(targets, dtype=torch.bool)
        total += float(sum_nll(logits, targets, every, lambda part: part, logits.shape[-1]))
    return total / sum(len(row) - 1 for row in rows)


@contextmanager
def opened(model: ModelProto, folder: Path | None = None) -> Iterator[OnnxDecoder]:
    """Open a graph from memory, or from a temporary file if it is too large for a message.

    Args:
        folder: place of the file, which a decoder may open more than once; None for the system's.
    """
    if graph.weight_bytes(model) <= graph.MAX_EMBEDDED_BYTES:
        yield OnnxDecoder(model, spin=False)
        return
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        graph.save(model, Path(scratch, MODEL_FILE))
        yield OnnxDecoder(Path(scratch, MODEL_FILE), spin=False)


def _built(
    ranked: Sequence[LayerError],
    layer_of: Mapping[str, graph.Linear],
    number: int,
    attempts: Sequence[dict[str, float]],
) -> Built:
    ranking = tuple(
        {
            "layer": layer_of[layer.node].module,
            "relative_error": layer.error,
            "sqnr_db": layer.sqnr_db,
            "parameters": layer.parameters,
            "left_out": index < number,
        }
        for index, layer in enumerate(ranked)
    )
    facts: dict[str, str | int | float | bool] = {
        "linear_layers": len(ranked),
        "left_out_layers": number,
        "left_out_parameter_share": round(
            sum(layer.parameters for layer in ranked[:number]) / max(1, sum(layer.parameters for layer in ranked)), 4
        ),
    }
    final = next((attempt["increase"] for attempt in attempts if attempt["left_out"] == number), None)
    if final is not None:
        facts["calibration_perplexity_increase"] = round(final, 5)
    return Built(facts, ranking, tuple(attempts))


def quantize_weight(weight: Array, bits: int = 8, block_size: int = 0) -> Array:
    """Round an (inputs, outputs) weight to symmetric integers; return the dequantized floats.

    `block_size` inputs of a column share a scale; 0: all.
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
    """Average squared error over squared output (the inverse of a signal-to-noise ratio) over a layer's tokens.

    All tokens are weighted equally; otherwise a token with a huge activation would hide the errors of all others that
    share its range. `rows` are the layer's inputs, one (tokens, inputs) array per call.
    """
    rounded = quantize_weight(weight, rounding.bits, rounding.block_size)
    overall = min(float(x.min()) for x in rows), max(float(x.max()) for x in rows)
    total, tokens = 0.0, 0
    for x in rows:
        low, high = overall if rounding.activations == "static" else (float(x.min()), float(x.max()))
        exact = x @ weight
        activations = x if rounding.activations == "none" else quantize_activation(x, low, high)
        error = activations @ rounded - exact
        signal = np.maximum((exact.astype(np.float64) ** 2).sum(axis=1), 1e-20)
        total += float(((error.astype(np.float64) ** 2).sum(axis=1) / signal).sum())
        tokens += len(x)
    return total / tokens


def worst_first(errors: Sequence[LayerError]) -> tuple[LayerError, ...]:
    """Sort layers by decreasing error; the sort is stable."""
    return tuple(sorted(errors, key=lambda layer: -layer.error))


def fewest_left_out(loss_without: Callable[[int], float], layers: int, bound: float) -> tuple[int, tuple[Attempt, ...]]:
    """Search how many of the worst layers must be excluded to keep the loss within a bound.

    Tries none, a sixteenth of the layers, then doubles until the bound holds, then bisects down to an eighth of the
    number: each attempt costs a pass over the calibration text.

    Returns:
        The number, and the attempts in order; `layers`, untried, if nothing less keeps the bound.
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
