"""Exclude as few layers as possible from quantization, the most sensitive first, to bound the rise in perplexity."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from onnx import ModelProto, TensorProto, helper, numpy_helper

from llmtrack.onnx import graph
from llmtrack.onnx.session import MODEL_FILE, OnnxDecoder, next_token_logits
from llmtrack.quantize.options import share
from llmtrack.quantize.recipe import Built, Job
from llmtrack.quantize.sensitivity import LayerError, Rounding, fewest_left_out, layer_error, worst_first
from llmtrack.tensors.likelihood import sum_nll

# Rows used for the ranking: the layers' inputs are kept in memory for all of them.
RANKED_ROWS = 4


def leave_out(
    job: Job, base: ModelProto, quantized: ModelProto, donor: ModelProto, rounding: Rounding
) -> tuple[ModelProto, Built]:
    """Replace the most sensitive layers of a quantized graph by those of a donor; return the graph and the findings.

    The head is not among them: recipes store it in 8-bit blocks anyway.

    Args:
        job: options with `keep_quality`, and the rows on which the bound must hold.
        base: the float graph.
        quantized: the same graph with every linear layer quantized.
        donor: the same graph with these layers in float or more bits.
        rounding: the rounding of the quantized graph, for the ranking.
    """
    bound = share(job.options["keep_quality"])
    layers = [layer for layer in graph.linears(base) if layer.result != "logits"]
    ranked = worst_first(rank(base, layers, job.rows[:RANKED_ROWS], rounding))
    layer_of = {layer.node: layer for layer in layers}
    if bound is None:
        return quantized, _built(ranked, layer_of, 0, ())
    with tempfile.TemporaryDirectory(dir=job.target) as folder:
        scratch = Path(folder)

        def without(number: int) -> ModelProto:
            model = graph.copy_of(quantized)
            if number:
                graph.graft(model, donor, {layer_of[each.node].result for each in ranked[:number]})
            return model

        def loss_of(model: ModelProto) -> float:
            graph.save(model, scratch / MODEL_FILE)
            return mean_loss(scratch / MODEL_FILE, job.rows)

        exact = loss_of(base)
        number, attempts = fewest_left_out(
            lambda number: loss_of(without(number)), len(layers), exact + math.log1p(bound)
        )
    tries = tuple({"left_out": a.left_out, "increase": math.expm1(a.loss - exact)} for a in attempts)
    return without(number), _built(ranked, layer_of, number, tries)


def rank(
    base: ModelProto, layers: Sequence[graph.Linear], rows: Sequence[Sequence[int]], rounding: Rounding
) -> list[LayerError]:
    """Return the error of quantizing each layer alone, for its inputs on these rows."""
    seen: dict[str, list[np.ndarray]] = {}
    for given in inputs_of(base, layers, rows):
        for name, values in given.items():
            seen.setdefault(name, []).append(values)
    weights = graph.weights_of(base)
    return [
        LayerError(
            layer.node,
            layer_error(seen[layer.source], numpy_helper.to_array(weights[layer.weight]), rounding),
            layer.parameters,
        )
        for layer in layers
    ]


def inputs_of(
    base: ModelProto, layers: Sequence[graph.Linear], rows: Sequence[Sequence[int]]
) -> Iterator[dict[str, np.ndarray]]:
    """Yield the layers' inputs for each row: (tokens, inputs) by `Linear.source`."""
    sources = sorted({layer.source for layer in layers})
    watched = graph.copy_of(base)
    known = {each.name for each in watched.graph.output}
    watched.graph.output.extend(
        helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in sources if name not in known
    )
    with tempfile.TemporaryDirectory() as folder:
        graph.save(watched, Path(folder, MODEL_FILE))
        decoder = OnnxDecoder(Path(folder, MODEL_FILE))
    for row in rows:
        found = decoder.inspect(np.array([row]), sources)
        yield {name: each.reshape(-1, each.shape[-1]) for name, each in zip(sources, found, strict=True)}


def mean_loss(path: Path, rows: Sequence[Sequence[int]]) -> float:
    """Return the mean negative log-likelihood in nats of rows of tokens, each scored alone."""
    decoder = OnnxDecoder(path)
    total = 0.0
    for row in rows:
        logits = torch.from_numpy(next_token_logits(decoder, row[:-1]))[None]
        targets = torch.tensor([row[1:]])
        every = torch.ones_like(targets, dtype=torch.bool)
        total += float(sum_nll(logits, targets, every, lambda part: part, logits.shape[-1]))
    return total / sum(len(row) - 1 for row in rows)


def _built(
    ranked: Sequence[LayerError],
    layer_of: Mapping[str, graph.Linear],
    number: int,
    attempts: Sequence[dict[str, float]],
) -> Built:
    ranking = tuple(
        {
            "layer": layer_of[each.node].module,
            "relative_error": each.error,
            "sqnr_db": each.sqnr_db,
            "parameters": each.parameters,
            "left_out": place < number,
        }
        for place, each in enumerate(ranked)
    )
    facts: dict[str, str | int | float | bool] = {
        "linear_layers": len(ranked),
        "left_out_layers": number,
        "left_out_parameter_share": round(
            sum(each.parameters for each in ranked[:number]) / max(1, sum(e.parameters for e in ranked)), 4
        ),
    }
    final = [each["increase"] for each in attempts if each["left_out"] == number]
    if final:
        facts["calibration_perplexity_increase"] = round(final[0], 5)
    return Built(facts, ranking, tuple(attempts))
