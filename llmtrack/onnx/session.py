"""Run a causal decoder with a KV cache that is stored as an ONNX graph."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmtrack.errors import MissingDependencyError, ScenarioError, UsageError
from llmtrack.installed import INSTALL_ONNX

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from onnxruntime import OrtValue

MODEL_FILE = "model.onnx"
LOGITS_TO_KEEP = "logits_to_keep"
"""Optional input: logits of so many last positions are computed; 0: of all."""

GRAPH_OPTIMIZATIONS = {
    "all": "ORT_ENABLE_ALL",
    "extended": "ORT_ENABLE_EXTENDED",
    "basic": "ORT_ENABLE_BASIC",
    "none": "ORT_DISABLE_ALL",
}

_PAST = re.compile(r"past_key_values\.\d+\.(key|value)")


def onnxruntime() -> Any:
    """Return the module.

    Raises:
        MissingDependencyError: it is not installed.
    """
    try:
        import onnxruntime as module
    except ImportError as error:
        raise MissingDependencyError(f"the onnx backend needs onnxruntime: {INSTALL_ONNX}") from error
    # Level 3 is errors: the graph optimizer warns of every initializer that it drops.
    module.set_default_logger_severity(3)
    return module


def choose_provider(device: str, asked: str = "auto") -> str:
    """Return the execution provider to use on a device.

    Args:
        device: `cpu` or `cuda:N`.
        asked: a provider's name, with or without `ExecutionProvider`, or `auto`.

    Raises:
        UsageError: this build of ONNX Runtime does not have it.
    """
    name = {"cpu": "CPU", "cuda": "CUDA"}[device.split(":")[0]] if asked == "auto" else asked
    name = name.removesuffix("ExecutionProvider") + "ExecutionProvider"
    there = onnxruntime().get_available_providers()
    if name not in there:
        listed = ", ".join(each.removesuffix("ExecutionProvider") for each in there)
        raise UsageError(
            f"this build of ONNX Runtime has no {name}: it has {listed} (for a GPU install onnxruntime-gpu, "
            "or use device=cpu)"
        )
    return name


class OnnxDecoder:
    """An ONNX graph with inputs `input_ids`, `attention_mask`, maybe `position_ids`, and a KV cache.

    Args:
        path: the graph's file.
        threads: threads that compute one operation; 0: as many as ONNX Runtime likes.
        provider: execution provider.
        graph_optimization: one of `GRAPH_OPTIMIZATIONS`.

    Raises:
        ScenarioError: ONNX Runtime cannot run the graph, or it is no decoder with a KV cache.
        UsageError: no such graph optimization.
    """

    def __init__(
        self,
        path: Path,
        *,
        threads: int = 0,
        provider: str = "CPUExecutionProvider",
        graph_optimization: str = "all",
    ) -> None:
        ort = onnxruntime()
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.graph_optimization_level = _level(ort, graph_optimization)
        try:
            self.session = ort.InferenceSession(str(path), options, providers=[provider])
        except Exception as error:
            raise ScenarioError(
                f"ONNX Runtime cannot run {path.name}: {' '.join(str(error).split())[:300]}", "unsupported"
            ) from error
        inputs = {each.name: each for each in self.session.get_inputs()}
        overridable = {each.name for each in self.session.get_overridable_initializers()}
        self.takes_positions = "position_ids" in inputs
        self.trims_logits = LOGITS_TO_KEEP in overridable
        self._past = {name: each.shape for name, each in inputs.items() if _PAST.fullmatch(name)}
        unknown = set(inputs) - {"input_ids", "attention_mask", "position_ids", *self._past}
        if unknown or not self._past:
            raise ScenarioError(
                f"the graph is not a decoder with a KV cache that llmtrack can run: inputs {', '.join(inputs)}",
                "unsupported",
            )
        self._outputs = ["logits", *(name.replace("past_key_values", "present") for name in self._past)]
        self._from_array = ort.OrtValue.ortvalue_from_numpy

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of KV cache that one token of one row takes."""
        return 4 * sum(shape[1] * shape[3] for shape in self._past.values())

    def run(
        self,
        ids: NDArray[np.int64],
        mask: NDArray[np.int64],
        past: Sequence[OrtValue] | None = None,
        keep: int = 0,
    ) -> tuple[NDArray[np.float32], list[OrtValue]]:
        """Run the graph over new tokens.

        Args:
            ids: (rows, new) token ids.
            mask: (rows, past + new), 1 for real tokens and 0 for pads.
            past: what the call before returned; None: nothing came before.
            keep: logits of so many last positions are wanted; 0: of all.

        Returns:
            (rows, kept, vocabulary) logits, and the KV cache with the new tokens in it.
        """
        feeds = self._feeds(ids, mask, past, keep)
        logits, *present = self.session.run_with_ort_values(self._outputs, feeds)
        return logits.numpy()[:, -keep:], present

    def inspect(self, ids: NDArray[np.int64], names: Sequence[str]) -> list[NDArray[np.float32]]:
        """Return outputs of the graph, whatever they are, for rows without pads and without a past.

        Args:
            ids: (rows, tokens) token ids.
            names: the outputs.
        """
        found = self.session.run_with_ort_values(list(names), self._feeds(ids, np.ones_like(ids), None, 0))
        return [each.numpy() for each in found]

    def prefill_feeds(self, ids: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """Return the inputs of a call without pads and without a past, as calibration wants them."""
        feeds = self._feeds(ids, np.ones_like(ids), None, 0)
        # Copied: these arrays would outlive the memory that they look into.
        return {name: value.numpy().copy() for name, value in feeds.items() if name != LOGITS_TO_KEEP}

    def _feeds(
        self, ids: NDArray[np.int64], mask: NDArray[np.int64], past: Sequence[OrtValue] | None, keep: int
    ) -> dict[str, OrtValue]:
        feeds = {"input_ids": self._from_array(ids), "attention_mask": self._from_array(mask)}
        if self.takes_positions:
            feeds["position_ids"] = self._from_array(positions(mask)[:, -ids.shape[1] :].copy())
        if self.trims_logits:
            feeds[LOGITS_TO_KEEP] = self._from_array(np.array([keep], dtype=np.int64))
        return feeds | dict(zip(self._past, past or self._empty_past(len(ids)), strict=True))

    def _empty_past(self, rows: int) -> list[OrtValue]:
        return [
            self._from_array(np.empty((rows, shape[1], 0, shape[3]), dtype=np.float32))
            for shape in self._past.values()
        ]


def next_token_logits(decoder: OnnxDecoder, ids: Sequence[int]) -> NDArray[np.float32]:
    """Return (tokens, vocabulary) logits of one row without pads."""
    row = np.array([ids], dtype=np.int64)
    return decoder.run(row, np.ones_like(row))[0][0]


def positions(mask: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of each token among the real tokens of its row, pads not counted."""
    return np.maximum(mask.cumsum(axis=1) - 1, 0)


def _level(ort: Any, name: str) -> Any:
    if name not in GRAPH_OPTIMIZATIONS:
        raise UsageError(f"no graph_optimization {name!r}: use {', '.join(GRAPH_OPTIMIZATIONS)}")
    return getattr(ort.GraphOptimizationLevel, GRAPH_OPTIMIZATIONS[name])
