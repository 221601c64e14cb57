"""Run a causal decoder with a KV cache, stored as an ONNX graph."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmtrack.devices import kind_of, require_tried, resolve_device
from llmtrack.errors import MissingDependencyError, ScenarioError, UsageError, in_words
from llmtrack.host.packages import INSTALL_ONNX
from llmtrack.onnx.names import COS, GRAPH_OPTIMIZATIONS, IN_PLACE, LAST, LOGITS_TO_KEEP, PAST, SIN, TOTAL

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnx import ModelProto
    from onnxruntime import OrtValue

    from llmtrack.onnx.unpadded import Angles, Unpadded

MODEL_FILE = "model.onnx"

# Float products are too slow to gain from fewer operators, while a second copy of the weights takes seconds.
_QUANTIZED = frozenset(["MatMulNBits", "MatMulInteger", "MatMulIntegerToFloat", "QLinearMatMul", "DequantizeLinear"])
# ONNX Runtime's flash attention needs no memory for scores but takes twice the time on a CPU: it is only used above
# this number of scores per head (16 MiB). An environment variable selects it when a session is created.
_MOST_SCORES = 2**22
_NO_FLASH = "ORT_GQA_DISABLE_FLASH_ATTENTION"


def onnxruntime() -> Any:
    """Import ONNX Runtime.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import onnxruntime as module
    except ImportError as error:
        raise MissingDependencyError(f"the onnx backend needs onnxruntime: {INSTALL_ONNX}") from error
    # Level 3 is errors: the graph optimizer warns of every dropped initializer.
    module.set_default_logger_severity(3)
    return module


def find_device(requested: str, provider: str = "auto") -> str:
    """Resolve a device; `auto` is a GPU only if this build of ONNX Runtime supports it.

    Raises:
        UsageError: the device is unknown or not available.
    """
    device = resolve_device(requested)
    usable = kind_of(device) == "cuda" and "CUDAExecutionProvider" in onnxruntime().get_available_providers()
    return "cpu" if (requested, provider) == ("auto", "auto") and not usable else device


def choose_provider(device: str, requested: str = "auto") -> str:
    """Return the execution provider to use on a device.

    Args:
        device: `cpu` or `cuda:N`.
        requested: a provider's name, with or without `ExecutionProvider`, or `auto`.

    Raises:
        UsageError: this build of ONNX Runtime does not have it, or the device is neither the CPU nor an NVIDIA GPU.
    """
    require_tried(device, "the onnx backend")
    name = {"cpu": "CPU", "cuda": "CUDA"}[kind_of(device)] if requested == "auto" else requested
    name = name.removesuffix("ExecutionProvider") + "ExecutionProvider"
    providers = onnxruntime().get_available_providers()
    if name not in providers:
        listed = ", ".join(provider.removesuffix("ExecutionProvider") for provider in providers)
        raise UsageError(
            f"this build of ONNX Runtime has no {name}: it has {listed} (for a GPU install onnxruntime-gpu, "
            "or use device=cpu)"
        )
    return name


@dataclass
class Cache:
    """Cached keys and values.

    Attributes:
        values: keys and values of each layer, (rows, heads, capacity, width).
        capacity: in tokens; 0: exactly the tokens read, reallocated in each call.
        binding: the session's inputs and outputs, with these values as its past and its present.
        angles: other bound inputs.
    """

    values: list[OrtValue]
    capacity: int = 0
    session: Any = None
    binding: Any = None
    angles: dict[str, OrtValue] = field(default_factory=dict)


class OnnxDecoder:
    """An ONNX graph with inputs `input_ids`, `attention_mask`, optionally `position_ids`, and a KV cache.

    Rows without pads run in a separate graph if possible (see `llmtrack.onnx.unpadded`). Only one graph's weights are
    in memory at a time: switching between calls with and without pads loads the other. The first long prompt reloads it
    with an attention that needs no memory for scores.

    Args:
        source: the graph, or its file.
        threads: intra-op threads; 0: ONNX Runtime's default.
        graph_optimization: one of `GRAPH_OPTIMIZATIONS`; the first two allow the separate graph for rows without pads.
        floats: whether to allow that graph without quantized products, too.
        spin: whether waiting threads spin, as by default; beside other programs that takes a multiple of the CPU time.

    Raises:
        ScenarioError: ONNX Runtime cannot run the graph, or it is not a decoder with a KV cache.
        UsageError: no such graph optimization.
    """

    def __init__(
        self,
        source: Path | ModelProto,
        *,
        threads: int = 0,
        provider: str = "CPUExecutionProvider",
        graph_optimization: str = "all",
        floats: bool = False,
        spin: bool = True,
    ) -> None:
        ort = onnxruntime()
        self._options = ort.SessionOptions()
        if not spin:
            self._options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._options.intra_op_num_threads = threads
        self._options.graph_optimization_level = _level(ort, graph_optimization)
        self._source, self._provider = source, provider
        fuses = provider == "CPUExecutionProvider" and graph_optimization in ("all", "extended")
        self._floats, self._flash = floats, False
        self._angles: Angles | None = None
        self._from_array = ort.OrtValue.ortvalue_from_numpy
        self._open(pads=not fuses)

    def _open(self, pads: bool) -> None:
        """Load the graph with or without support for pads, replacing the other."""
        self.session: Any = None
        source = self._source
        unpadded = None if pads else _unpadded(source, self._floats)
        graph: str | bytes
        if unpadded is not None:
            graph, self._angles = unpadded.content, unpadded.angles
        else:
            graph = str(source) if isinstance(source, Path) else source.SerializeToString()
        try:
            with _attention(self._flash):
                self.session = onnxruntime().InferenceSession(graph, self._options, providers=[self._provider])
            # The session would keep its source, which is as large as the weights.
            self.session._model_bytes = None
        except Exception as error:
            raise ScenarioError(
                f"ONNX Runtime cannot run {source.name if isinstance(source, Path) else 'the graph'}: {in_words(error)[:300]}",
                kind="unsupported",
            ) from error
        self._pads = unpadded is None
        self._vocabulary = self.session.get_outputs()[0].shape[-1]
        self._in_place = IN_PLACE in self.session.get_modelmeta().custom_metadata_map
        inputs = {tensor.name: tensor for tensor in self.session.get_inputs()}
        overridable = {tensor.name for tensor in self.session.get_overridable_initializers()}
        self.takes_positions = "position_ids" in inputs
        self.trims_logits = LOGITS_TO_KEEP in overridable
        self._past = {name: tensor.shape for name, tensor in inputs.items() if PAST.fullmatch(name)}
        known = {"input_ids", "attention_mask", "position_ids", LAST, TOTAL, COS, SIN, *self._past}
        if set(inputs) - known or not self._past:
            raise ScenarioError(
                f"the graph is not a decoder with a KV cache that llmtrack can run: inputs {', '.join(inputs)}",
                kind="unsupported",
            )
        self._outputs = ["logits", *(name.replace("past_key_values", "present") for name in self._past)]

    @property
    def has_unpadded(self) -> bool:
        """Whether rows without pads run in a separate graph."""
        return self._angles is not None

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that one token of one row takes."""
        return 4 * sum(shape[1] * shape[3] for shape in self._past.values())

    def run(
        self,
        ids: NDArray[np.int64],
        mask: NDArray[np.int64],
        past: Cache | None = None,
        keep: int = 0,
        capacity: int = 0,
    ) -> tuple[NDArray[np.float32], Cache]:
        """Run the graph over new tokens.

        Args:
            ids: (rows, new) token ids; with a past, one per row.
            mask: (rows, past + new), 1 for real tokens and 0 for pads.
            past: result of the previous call; may be modified.
            keep: number of last positions whose logits are returned; 0: all.
            capacity: expected number of tokens in all; exceeding it costs a copy.

        Returns:
            (rows, kept, vocabulary) logits, and the KV cache with the new tokens in it.
        """
        pads = not mask.all() if self.has_unpadded else self._pads
        long = self._in_place and ids.size * mask.shape[1] > _MOST_SCORES
        if pads != self._pads or (long and not self._flash):
            self._flash |= long
            self._open(pads)
        feeds = self._feeds(ids, mask, keep)
        if not self._in_place:
            values = past.values if past else self._allocate(len(ids), 0)
            feeds |= zip(self._past, values, strict=True)
            logits, *present = self.session.run_with_ort_values(self._outputs, feeds)
            return logits.numpy()[:, -keep:], Cache(present)
        cache = self._with_room(past, mask.shape, capacity)
        for name, value in feeds.items():
            cache.binding.bind_ortvalue_input(name, value)
        # Fetching all outputs would wrap two per layer: half a millisecond per step.
        kept = min(keep or ids.shape[1], ids.shape[1]) if self.trims_logits else ids.shape[1]
        logits = np.empty((len(ids), kept, self._vocabulary), dtype=np.float32)
        cache.binding.bind_ortvalue_output("logits", self._from_array(logits))
        self.session.run_with_iobinding(cache.binding)
        return logits[:, -keep:], cache

    def inspect(self, ids: NDArray[np.int64], names: Sequence[str]) -> list[NDArray[np.float32]]:
        """Compute named outputs of the graph for (rows, tokens) ids without pads and without a past."""
        if not self._pads:
            self._open(True)
        feeds = self._feeds(ids, np.ones_like(ids), 0)
        feeds |= zip(self._past, self._allocate(len(ids), 0), strict=True)
        return [output.numpy() for output in self.session.run_with_ort_values(list(names), feeds)]

    def _feeds(self, ids: NDArray[np.int64], mask: NDArray[np.int64], keep: int) -> dict[str, OrtValue]:
        rows, total = mask.shape
        feeds: dict[str, NDArray[Any]] = {"input_ids": ids}
        if self._pads:
            feeds["attention_mask"] = mask
        else:
            feeds |= {LAST: np.full(rows, total - 1, dtype=np.int32), TOTAL: np.array(total, dtype=np.int32)}
        if self.takes_positions:
            feeds["position_ids"] = positions(mask)[:, -ids.shape[1] :].copy()
        if self.trims_logits:
            feeds[LOGITS_TO_KEEP] = np.array([keep], dtype=np.int64)
        return {name: self._from_array(array) for name, array in feeds.items()}

    def _with_room(self, past: Cache | None, shape: tuple[int, ...], capacity: int) -> Cache:
        """Return a cache with the past's content and room for a mask of the shape."""
        rows, total = shape
        if past is not None and past.capacity >= total and past.session is self.session:
            return past
        # Doubled, so that copies stay rare if the total is unknown.
        cache = Cache([], max(capacity, total if past is None else 2 * total), self.session)
        cache.values = self._allocate(rows, cache.capacity)
        for old, new in zip(past.values if past else (), cache.values, strict=False):
            new.numpy()[:, :, : total - 1] = old.numpy()[:, :, : total - 1]
        cache.binding = self.session.io_binding()
        for name, value in zip(self._past, cache.values, strict=True):
            cache.binding.bind_ortvalue_input(name, value)
            cache.binding.bind_ortvalue_output(name.replace("past_key_values", "present"), value)
        if self._angles is not None and not self._pads:
            tables = self._angles.tables(cache.capacity)
            cache.angles = {name: self._from_array(table) for name, table in tables.items()}
        for name, value in cache.angles.items():
            cache.binding.bind_ortvalue_input(name, value)
        return cache

    def _allocate(self, rows: int, capacity: int) -> list[OrtValue]:
        return [
            self._from_array(np.zeros((rows, shape[1], capacity, shape[3]), dtype=np.float32))
            for shape in self._past.values()
        ]


def next_token_logits(decoder: OnnxDecoder, ids: Sequence[int]) -> NDArray[np.float32]:
    """Compute (tokens, vocabulary) logits of one row without pads."""
    row = np.array([ids], dtype=np.int64)
    return decoder.run(row, np.ones_like(row))[0][0]


def positions(mask: NDArray[np.int64]) -> NDArray[np.int64]:
    """Number the tokens of each row from 0, not counting pads."""
    return np.maximum(mask.cumsum(axis=1) - 1, 0)


def _unpadded(source: Path | ModelProto, floats: bool) -> Unpadded | None:
    """Derive the graph for rows without pads; None if impossible, or if products are floats and `floats` is unset."""
    from llmtrack.onnx import graph
    from llmtrack.onnx.unpadded import unpadded

    model = graph.load(source) if isinstance(source, Path) else source
    if not floats and not any(node.op_type in _QUANTIZED for node in model.graph.node):
        return None
    return unpadded(graph.copy_of(model) if model is source else model)


@contextmanager
def _attention(flash: bool) -> Iterator[None]:
    """Enable or disable flash attention for sessions created in this context, unless the user set it."""
    if flash or _NO_FLASH in os.environ:
        yield
        return
    os.environ[_NO_FLASH] = "1"
    try:
        yield
    finally:
        del os.environ[_NO_FLASH]


def _level(ort: Any, name: str) -> Any:
    if name not in GRAPH_OPTIMIZATIONS:
        raise UsageError(f"no graph_optimization {name!r}: use {', '.join(GRAPH_OPTIMIZATIONS)}")
    return getattr(ort.GraphOptimizationLevel, GRAPH_OPTIMIZATIONS[name])
