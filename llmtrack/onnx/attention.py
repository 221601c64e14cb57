"""Replace the exported nodes of rotary attention by one operator of ONNX Runtime.

An exported decoder layer contains rotation, the copying of key and value heads, two products and the softmax as
separate nodes. `GroupQueryAttention` (com.microsoft) computes all of it in one pass over the cache. The result is equal
up to rounding, which the export checks against PyTorch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from llmtrack.onnx.graph import MICROSOFT, import_domain, producers_of, remove_unused
from llmtrack.onnx.lengths import why_not_fused
from llmtrack.onnx.names import IN_PLACE

_WIDTHS = 8
"""The head width must be a multiple of this for the fused operator."""
# Added to the score of a pad: its exponential is 0 in float32, and a row of only pads still has a softmax.
_PAD_SCORE = -1e4
_PROJECTION = re.compile(
    r"(?P<layer>.*/layers\.(?P<index>\d+)/(?:self_attn|attention)/)(?P<part>[qkvo]_proj)/(?:MatMul|Add)"
)

# Operators of a trace of plain rotary attention, and the counts of the arithmetic ones.
_PLAIN = frozenset(
    [
        "Add",
        "Cast",
        "Concat",
        "Constant",
        "ConstantOfShape",
        "Div",
        "Equal",
        "Expand",
        "Gather",
        "Identity",
        "IsNaN",
        "MatMul",
        "Mul",
        "Neg",
        "Reshape",
        "Shape",
        "Slice",
        "Softmax",
        "Transpose",
        "Unsqueeze",
        "Where",
    ]
)
_ARITHMETIC = {"MatMul": 2, "Softmax": 1, "Neg": 2, "Add": 3}


@dataclass(frozen=True)
class Rotary:
    """Parameters of a decoder's attention.

    Attributes:
        heads: of queries.
        kv_heads: of keys and values.
        frequencies: (half the head's width) radians per position.
        magnitude: factor of cosine and sine.
        scale: factor of the scores.
    """

    heads: int
    kv_heads: int
    frequencies: NDArray[np.float32]
    magnitude: float
    scale: float


def rotary_of(model: Any) -> Rotary | None:
    """Read the parameters of a PyTorch model's attention; None if it cannot be fused."""
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


def fuse_attention(model: ModelProto, rotary: Rotary) -> int:
    """Fuse the attention of all layers, if each has the usual four projections and plain rotary attention between them.

    Returns:
        The number of fused layers: all, or 0 with the graph unchanged.
    """
    projections = _projections(model)
    layers = sum(tensor.name.endswith(".key") for tensor in model.graph.input)
    if set(projections) != set(range(layers)):
        return 0
    if not any(tensor.name == "position_ids" for tensor in model.graph.input):
        return 0
    if not all(_is_plain(model, parts) for parts in projections.values()):
        return 0
    nodes = _mask_nodes(model) + _rotation_nodes(model, rotary)
    remaining = list(model.graph.node)
    presents = {name for i in range(layers) for name in (f"present.{i}.key", f"present.{i}.value")}
    for node in remaining:  # the new nodes produce these outputs
        for index, name in enumerate(node.output):
            if name in presents:
                node.output[index] = f"replaced.{name}"
        for index, name in enumerate(node.input):
            if name in presents:
                node.input[index] = f"replaced.{name}"
    for index in range(layers):
        parts = projections[index]
        nodes += _attention(index, parts, rotary)
        parts["o_proj"].input[0] = f"attention.{index}.output"
    del model.graph.node[:]
    model.graph.node.extend(_sorted(model, [*nodes, *remaining]))
    remove_unused(model)
    import_domain(model, MICROSOFT)
    helper.set_model_props(model, {IN_PLACE: "yes"})
    return layers


def _projections(model: ModelProto) -> dict[int, dict[str, NodeProto]]:
    """Find the four projections of each layer; with a bias, q, k and v are its Add and o its MatMul."""
    layers: dict[int, dict[str, NodeProto]] = {}
    for node in model.graph.node:
        match = _PROJECTION.fullmatch(node.name)
        if match is None or (match["part"] == "o_proj" and node.op_type != "MatMul"):
            continue
        layers.setdefault(int(match["index"]), {})[match["part"]] = node
    return {index: parts for index, parts in layers.items() if len(parts) == 4}


def _is_plain(model: ModelProto, parts: dict[str, NodeProto]) -> bool:
    """Check that a layer has only rotation, two products and a softmax between its projections.

    Norms of queries and keys, score caps, clipping and layers without rotation contain other operations.
    """
    producers = producers_of(model)
    layer = parts["o_proj"].name.split("o_proj")[0]
    visited = {parts[name].output[0] for name in ("q_proj", "k_proj", "v_proj")}
    between: dict[str, NodeProto] = {}
    pending = [parts["o_proj"].input[0]]
    while pending:
        name = pending.pop()
        node = producers.get(name)
        if name in visited or node is None or not node.name.startswith(layer):
            continue
        visited.update(node.output)
        between[node.name] = node
        pending += node.input
    counts = Counter(node.op_type for node in between.values())
    return set(counts) <= _PLAIN and all(counts[name] == times for name, times in _ARITHMETIC.items())


def _mask_nodes(model: ModelProto) -> list[NodeProto]:
    """Create nodes that convert `attention_mask` to the operator's inputs; a bias masks the pads."""
    constants: dict[str, NDArray[Any]] = {
        "const.one": np.array([1], dtype=np.int64),
        "const.one_i32": np.array([1], dtype=np.int32),
        "const.middle": np.array([1, 2], dtype=np.int64),
        "const.real": np.array(1, dtype=np.float32),
        "const.pad": np.array(_PAD_SCORE, dtype=np.float32),
        "const.none": np.array([], dtype=np.int64),
    }
    node = _scope(model, "attention", constants)
    return [
        node("Shape", ["attention_mask"], "rows", start=0, end=1),
        node("Shape", ["attention_mask"], "width", start=1, end=2),
        node("Shape", ["input_ids"], "new", start=1, end=2),
        node("Cast", ["width"], "width_i32", to=TensorProto.INT32),
        node("Reshape", ["width_i32", "const.none"], "total"),
        node("Sub", ["width_i32", "const.one_i32"], "last_of_one"),
        node("Expand", ["last_of_one", "rows"], "last"),
        node("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT),
        node("Sub", ["const.real", "mask"], "pads"),
        node("Mul", ["pads", "const.pad"], "scores"),
        node("Unsqueeze", ["scores", "const.middle"], "scores_4d"),
        node("Concat", ["rows", "const.one", "new", "width"], "shape", axis=0),
        node("Expand", ["scores_4d", "shape"], "bias"),
    ]


def _rotation_nodes(model: ModelProto, rotary: Rotary) -> list[NodeProto]:
    """Create nodes that compute the table of cosines and sines: a row for each new token, at any position."""
    constants: dict[str, NDArray[Any]] = {
        "frequencies": rotary.frequencies[None].astype(np.float32),
        "magnitude": np.array(rotary.magnitude, dtype=np.float32),
        "column": np.array([-1, 1], dtype=np.int64),
        "zero": np.array(0, dtype=np.int64),
        "one": np.array(1, dtype=np.int64),
    }
    node = _scope(model, "rotary", constants)
    return [
        node("Reshape", ["position_ids", "column"], "positions"),
        node("Cast", ["positions"], "positions_f32", to=TensorProto.FLOAT),
        node("Mul", ["positions_f32", "frequencies"], "angles"),
        node("Cos", ["angles"], "unit.cos"),
        node("Mul", ["unit.cos", "magnitude"], "cos"),
        node("Sin", ["angles"], "unit.sin"),
        node("Mul", ["unit.sin", "magnitude"], "sin"),
        node("Size", ["position_ids"], "tokens"),
        node("Range", ["zero", "tokens", "one"], "numbers"),
        node("Shape", ["position_ids"], "shape"),
        node("Reshape", ["numbers", "shape"], "rows"),
    ]


def _scope(model: ModelProto, scope: str, constants: Mapping[str, NDArray[Any]]) -> Callable[..., NodeProto]:
    """Add constants under a common prefix; return a function that creates nodes of one output under that prefix."""
    model.graph.initializer.extend(
        numpy_helper.from_array(value, f"{scope}.{name}") for name, value in constants.items()
    )
    graph_inputs = {tensor.name for tensor in model.graph.input}

    def node(op: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
        names = [name if name in graph_inputs else f"{scope}.{name}" for name in inputs]
        return helper.make_node(op, names, [f"{scope}.{output}"], name=f"{scope}/{output}", **attributes)

    return node


def _attention(index: int, parts: dict[str, NodeProto], rotary: Rotary) -> list[NodeProto]:
    # The operator's own rotation counts pads as positions once there is a cache.
    rotations = [
        helper.make_node(
            "RotaryEmbedding",
            [parts[name].output[0], "rotary.rows", "rotary.cos", "rotary.sin"],
            [f"attention.{index}.{name}"],
            name=f"/layers.{index}/RotaryEmbedding.{name}",
            domain=MICROSOFT,
            interleaved=0,
        )
        for name in ("q_proj", "k_proj")
    ]
    inputs = [
        f"attention.{index}.q_proj",
        f"attention.{index}.k_proj",
        parts["v_proj"].output[0],
        f"past_key_values.{index}.key",
        f"past_key_values.{index}.value",
        "attention.last",
        "attention.total",
        *("", "", ""),  # no rotation
        "attention.bias",
    ]
    fused = helper.make_node(
        "GroupQueryAttention",
        inputs,
        [f"attention.{index}.output", f"present.{index}.key", f"present.{index}.value"],
        name=f"/layers.{index}/GroupQueryAttention",
        domain=MICROSOFT,
        num_heads=rotary.heads,
        kv_num_heads=rotary.kv_heads,
        do_rotary=0,
        scale=rotary.scale,
    )
    return [*rotations, fused]


def _sorted(model: ModelProto, nodes: list[NodeProto]) -> list[NodeProto]:
    """Sort nodes topologically, otherwise in their order."""
    known = {tensor.name for tensor in (*model.graph.input, *model.graph.initializer)} | {""}
    produced = {name for node in nodes for name in node.output}
    ordered: list[NodeProto] = []
    pending = nodes
    while pending:
        blocked = []
        for node in pending:
            if all(name in known or name not in produced for name in node.input):
                ordered.append(node)
                known.update(node.output)
            else:
                blocked.append(node)
        if len(blocked) == len(pending):
            raise ValueError("the graph has a cycle")
        pending = blocked
    return ordered
