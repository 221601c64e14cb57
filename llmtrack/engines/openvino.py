"""OpenVINO engine: greedy decoding and scoring of a model whose KV cache is in OpenVINO's internal state.

It uses the plain runtime rather than OpenVINO GenAI, whose pipelines expose no logits and reuse the cache of a repeated
prompt, so that there would be no prefill to time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from llmtrack.convert.conversion import Conversion, convert
from llmtrack.convert.openvino import CONVERTER
from llmtrack.engine import Generated, GenerateRequest
from llmtrack.engines.base import ConvertedEngine, require_cpu, runtime_errors
from llmtrack.engines.options import KV_CACHES, OpenvinoOptions
from llmtrack.errors import ScenarioError
from llmtrack.models.positions import context_length
from llmtrack.onnx.session import positions
from llmtrack.spec.options import chosen
from llmtrack.spec.scenario import Variant

if TYPE_CHECKING:
    from numpy.typing import NDArray

MODEL_FILE = "openvino_model.xml"
RUNTIME = "OpenVINO"

_FIRST = "first_position"
_KNOWN = frozenset({"input_ids", "attention_mask", "position_ids", "beam_idx", _FIRST})
# Operators between compressed weights and their consumers.
_DECOMPRESSION = frozenset({"Convert", "Subtract", "Multiply", "Reshape"})


def load(variant: Variant) -> OpenvinoEngine:
    """Load the model of a variant, converting it first if needed.

    Options of the variant: `OpenvinoOptions`, and those of the recipe.

    Raises:
        MissingDependencyError: the openvino extra is not installed, or the converter's environment cannot be created.
        UsageError: the device, quantization or an option is not supported.
        ModelLoadError: no candidate could be loaded.
        ScenarioError: the model cannot be converted or run, or the dtype is not supported.
    """
    require_cpu(variant)
    options = chosen(OpenvinoOptions, variant.options)
    conversion = convert(CONVERTER, variant, OpenvinoEngine.open_folder)
    return OpenvinoEngine(conversion, options.used_threads, options.kv_cache)


class OpenvinoEngine(ConvertedEngine):
    """Engine of a folder made by OpenVINO's exporter, computed in float32.

    Args:
        kv_cache: type of the cached keys and values, of `KV_CACHES`.

    Raises:
        ScenarioError: OpenVINO cannot run it, or it is not a decoder with a KV cache.
    """

    def __init__(self, conversion: Conversion, threads: int, kv_cache: str = "float32") -> None:
        super().__init__(conversion, threads)
        path = conversion.folder / MODEL_FILE
        openvino: Any = import_module("openvino")
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": KV_CACHES[kv_cache],
            "PERFORMANCE_HINT": "LATENCY",
        }
        start = time.perf_counter()
        with runtime_errors(RUNTIME):
            core = openvino.Core()
            graph = core.read_model(str(path))
            _add_first_position(graph)
            self._request = core.compile_model(graph, "CPU", settings).create_infer_request()
        seconds = time.perf_counter() - start
        self._inputs = {node.get_any_name() for node in graph.inputs}
        cached_values = _cached_values(graph)
        if self._inputs - _KNOWN or not cached_values:
            raise ScenarioError(
                f"this is not a decoder with a KV cache that llmtrack can run: inputs {', '.join(sorted(self._inputs))}",
                kind="unsupported",
            )
        self._info = self._describe(
            (path, path.with_suffix(".bin")),
            weight_sizes(graph),
            seconds,
            {"kv_cache": kv_cache, "weights_format": "openvino"},
            ("openvino",),
            kv_bytes_per_token=cached_values * np.dtype(kv_cache).itemsize,
            context_length=context_length(self._config),
        )

    def generate(self, request: GenerateRequest, on_step: Callable[[], None]) -> Generated:
        """Generate greedily, calling `on_step` for each step; the state of earlier calls is reset.

        Raises:
            ScenarioError: the rows have pads, which would change this model's output.
        """

        def step(ids: Any, mask: Any, cached: bool) -> Any:
            if not cached:
                self._request.reset_state()
            return self._most_likely(self._run(ids, mask, first=-1)[:, -1], request)

        return self._generate(request, on_step, step)

    def next_token_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """See `Engine.next_token_logits`."""
        self._request.reset_state()
        row = np.array([ids], dtype=np.int64)
        return torch.from_numpy(self._run(row, np.ones_like(row), first=0)[0].astype(np.float32))

    def decoded_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """See `llmtrack.convert.fidelity.DecodingEngine`."""
        self._request.reset_state()
        row = np.array([ids], dtype=np.int64)
        self._run(row[:, :-1], np.ones_like(row[:, :-1]), first=-1)
        last = self._run(row[:, -1:], np.ones_like(row), first=-1)
        return torch.from_numpy(last[0, -1].astype(np.float32))

    def close(self) -> None:
        """Free the model."""
        del self._request

    def _run(self, ids: NDArray[np.int64], mask: NDArray[np.int64], first: int) -> NDArray[np.float32]:
        """Return (rows, tokens, vocabulary) logits of the new tokens from a position on; valid until the next call.

        Args:
            ids: (rows, new) token ids.
            mask: (rows, past + new), 1 for tokens and 0 for pads.
            first: position among the new tokens of the first logits; -1 for the last.
        """
        feeds = {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": positions(mask)[:, -ids.shape[1] :],
            "beam_idx": np.arange(len(ids), dtype=np.int32),
            _FIRST: np.array([first], dtype=np.int64),
        }
        with runtime_errors(RUNTIME):
            self._request.infer({name: feeds[name] for name in self._inputs}, share_inputs=True)
            logits: NDArray[np.float32] = self._request.get_tensor("logits").data
        return logits


def _add_first_position(graph: Any) -> None:
    """Add an input for the first position of logits, since those of a whole prompt take longest."""
    ops = import_module("openvino.opset13")
    head = graph.output("logits").get_node().input_value(0).get_node()
    if head.get_type_name() != "MatMul":
        raise ValueError(f"its logits come from a {head.get_type_name()}, and not from the product of the head")
    first = ops.parameter([1], np.int64, name=_FIRST)
    first.output(0).set_names({_FIRST})
    end, step, axis = (ops.constant(np.array([value], dtype=np.int64)) for value in (2**31 - 1, 1, 1))
    hidden = ops.slice(head.input_value(0), first, end, step, axis)
    head.input(0).replace_source_output(hidden.output(0))
    graph.add_parameters([first])
    graph.validate_nodes_and_infer_types()


def _cached_values(graph: Any) -> int:
    """Return the number of KV cache values per token of a row."""
    shapes = [node.get_output_partial_shape(0) for node in graph.get_ops() if node.get_type_name() == "ReadValue"]
    return sum(shape[1].get_length() * shape[3].get_length() for shape in shapes if len(shape) == 4)


def weight_sizes(graph: Any) -> tuple[int, int]:
    """Return the bytes of all weights of a graph, and of those that a decode step reads: one row of a lookup table."""
    stored = read = 0
    for node in graph.get_ops():
        if node.get_type_name() == "Constant":
            size = math.prod(node.get_output_shape(0)) * node.get_output_element_type(0).bitwidth // 8
            stored += size
            read += 0 if _consumers(node) == {"Gather"} else size
    return stored, read


def _consumers(node: Any) -> set[str]:
    """Return the operator types that use a constant, looking through decompression."""
    consumers: set[str] = set()
    for target in node.output(0).get_target_inputs():
        consumer = target.get_node()
        kind = consumer.get_type_name()
        consumers |= _consumers(consumer) if kind in _DECOMPRESSION and target.get_index() == 0 else {kind}
    return consumers
