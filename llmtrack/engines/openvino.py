"""The OpenVINO engine: greedy decoding and scoring of a model whose KV cache lives in OpenVINO's own state.

The plain runtime and not OpenVINO GenAI: its pipelines show no logits, and keep the cache of a prompt that they have seen
before, so that a repeated prefill is none.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from llmtrack.convert.build import converted, find
from llmtrack.convert.openvino import CONVERTER, FLOAT
from llmtrack.engine import EngineInfo, Generated, GenerateRequest
from llmtrack.engines.fidelity import parity_facts, says_alike, says_the_same
from llmtrack.engines.host import NO_PEAK, HostEngine, require_cpu
from llmtrack.engines.options import OpenvinoOptions
from llmtrack.engines.rows import sharing_by_rope
from llmtrack.errors import ScenarioError
from llmtrack.installed import installed_version
from llmtrack.measure.memory import reset_peak_rss
from llmtrack.models.context import context_length
from llmtrack.models.folder import model_folder
from llmtrack.models.reasons import one_line
from llmtrack.onnx.session import positions
from llmtrack.options import chosen
from llmtrack.scenario import Scalar, Variant
from llmtrack.tensors import tokens
from llmtrack.tensors.padding import pad_rows

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

MODEL_FILE = "openvino_model.xml"

CACHE_TYPES = {"float32": "f32", "float16": "f16", "uint8": "u8"}

_FIRST = "first_position"
_KNOWN = frozenset({"input_ids", "attention_mask", "position_ids", "beam_idx", _FIRST})
# What stands between compressed weights and what computes with them.
_DECOMPRESSION = frozenset({"Convert", "Subtract", "Multiply", "Reshape"})


def load(variant: Variant) -> OpenvinoEngine:
    """Load, and first convert if that was not done yet, the model of a variant.

    Options of the variant: `OpenvinoOptions`, and those of the recipe.

    Raises:
        MissingDependencyError: the openvino extra is not installed, or the converter's environment cannot be made.
        UsageError: the device, quantization or an option is not there.
        ModelLoadError: no candidate could be loaded.
        ScenarioError: the model cannot be converted or run, or the dtype is not there.
    """
    import torch

    recipe = find(variant)
    require_cpu(variant)
    told = chosen(OpenvinoOptions, variant.options)
    options = recipe.settled(variant.options) if recipe else {}
    arguments = recipe.apply(options) if recipe else FLOAT
    source = model_folder(variant.model, variant.revision)
    label = recipe.name if recipe else variant.dtype
    check = says_the_same if recipe is None else says_alike
    folder = converted(CONVERTER, source, arguments, label, partial(check, open_folder))
    settings: dict[str, Scalar] = {
        "threads": told.threads or torch.get_num_threads(),
        "kv_cache": told.kv_cache,
    }
    return OpenvinoEngine(
        folder,
        told.threads or torch.get_num_threads(),
        told.kv_cache,
        model_id=source.model_id,
        dtype_label=f"{recipe.dtype} weights (float32)" if recipe else variant.dtype,
        facts={**source.facts, **options, **settings, "weights_format": "openvino", **parity_facts(folder)},
        tags={**source.tags, "openvino": installed_version("openvino")},
        warnings=source.warnings,
    )


def open_folder(folder: Path) -> OpenvinoEngine:
    """Open the folder of a converted model as it is, with one thread.

    Raises:
        ScenarioError: it cannot be run.
    """
    return OpenvinoEngine(folder, 1, model_id=str(folder), dtype_label="as stored")


class OpenvinoEngine(HostEngine):
    """A folder of OpenVINO's exporter as an engine, computed in float32.

    Args:
        folder: graph and weights, and the model's own config and tokenizer.
        threads: threads that compute.
        kv_cache: what keys and values are kept in; one of `CACHE_TYPES`.
        model_id: what to call it in tracked runs.
        dtype_label: what the weights are stored as.
        facts: params to track.
        tags: provenance to track.
        warnings: findings in words.

    Raises:
        ScenarioError: OpenVINO cannot run it, or it is no decoder with a KV cache.
    """

    def __init__(
        self,
        folder: Path,
        threads: int,
        kv_cache: str = "float32",
        *,
        model_id: str,
        dtype_label: str,
        facts: dict[str, Scalar] | None = None,
        tags: dict[str, str] | None = None,
        warnings: tuple[str, ...] = (),
    ) -> None:
        super().__init__(folder)
        openvino: Any = import_module("openvino")
        settings = {
            "INFERENCE_NUM_THREADS": threads,
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": CACHE_TYPES[kv_cache],
            "PERFORMANCE_HINT": "LATENCY",
        }
        start = time.perf_counter()
        try:
            core = openvino.Core()
            graph = core.read_model(str(folder / MODEL_FILE))
            _keep_from_first(graph)
            compiled = core.compile_model(graph, "CPU", settings)
            self._request = compiled.create_infer_request()
        except Exception as error:
            raise ScenarioError(f"OpenVINO cannot run it: {one_line(error)[:300]}", "unsupported") from error
        seconds = time.perf_counter() - start
        self._inputs = {each.get_any_name() for each in graph.inputs}
        cached = _cached_values(graph)
        if self._inputs - _KNOWN or not cached:
            raise ScenarioError(
                f"this is no decoder with a KV cache that llmtrack can run: inputs {', '.join(sorted(self._inputs))}",
                "unsupported",
            )
        if not reset_peak_rss():
            warnings += (NO_PEAK,)
        self._sharing = sharing_by_rope(self._config)
        stored, read = weight_sizes(graph)
        files = (folder / MODEL_FILE, (folder / MODEL_FILE).with_suffix(".bin"))
        self._info = EngineInfo(
            model_id=model_id,
            device="cpu",
            dtype_label=dtype_label,
            model_size_bytes=stored,
            step_weight_bytes=read,
            kv_bytes_per_token=cached * np.dtype(kv_cache).itemsize,
            context_length=context_length(self._config),
            vocab_size=self._vocab_size,
            load_time_s=seconds,
            file_size_bytes=sum(path.stat().st_size for path in files),
            facts=dict(facts or {}) | {"architecture": self.architecture},
            tags=dict(tags or {}),
            warnings=warnings + self._sharing.warnings,
            special_tokens=tokens.special_tokens(self.tokenizer),
            folder=str(folder),
        )

    def generate(self, request: GenerateRequest, on_step: Callable[[], None]) -> Generated:
        """Generate greedily, calling `on_step` for each step; the state of a call before it is forgotten.

        Raises:
            ScenarioError: the rows have pads, which would change what this model says.
        """
        lengths = [len(row) for row in request.prompt_ids]
        self._sharing.check(lengths, request.padded_length, request.max_new_tokens)
        padded = pad_rows(request.prompt_ids, self._pad_id, request.padding_side, request.padded_length)
        ids, mask = (each.numpy() for each in padded)
        banned = [each for each in self._eos_ids if request.ignore_eos and each < self._vocab_size]
        ended = np.zeros(len(ids), dtype=bool)
        taken: list[Any] = []
        new = ids
        self._request.reset_state()
        for _ in range(request.max_new_tokens):
            logits = self._run(new, mask, first=-1)[:, -1]
            logits[:, banned] = -np.inf
            token = np.where(ended, self._pad_id, logits.argmax(axis=1))
            on_step()
            taken.append(token)
            if not request.ignore_eos:
                ended |= np.isin(token, list(self._eos_ids))
                if ended.all():
                    break
            mask = np.concatenate([mask, np.ones((len(ids), 1), dtype=np.int64)], axis=1)
            new = token[:, None]
            if not request.use_cache:
                ids = np.concatenate([ids, new], axis=1)
                new = ids
                self._request.reset_state()
        eos_ids = frozenset() if request.ignore_eos else self._eos_ids
        rows = np.stack(taken, axis=1).tolist()
        return Generated(tuple(tokens.until_eos(row, eos_ids) for row in rows))

    def next_token_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """Return the logits after each token of one row; see `Engine.next_token_logits`."""
        import torch

        self._request.reset_state()
        row = np.array([ids], dtype=np.int64)
        return torch.from_numpy(self._run(row, np.ones_like(row), first=0)[0].astype(np.float32))

    def close(self) -> None:
        """Free the model."""
        del self._request

    def _run(self, ids: NDArray[np.int64], mask: NDArray[np.int64], first: int) -> NDArray[np.float32]:
        """Return (rows, kept, vocabulary) logits from a position of the new tokens on; valid until the next call.

        Args:
            ids: (rows, new) token ids.
            mask: (rows, past + new), 1 for real tokens and 0 for pads.
            first: position of the new tokens from which on logits are computed; -1: the last.
        """
        feeds = {
            "input_ids": ids,
            "attention_mask": mask,
            "position_ids": positions(mask)[:, -ids.shape[1] :],
            "beam_idx": np.arange(len(ids), dtype=np.int32),
            _FIRST: np.array([first], dtype=np.int64),
        }
        self._request.infer({name: feeds[name] for name in self._inputs}, share_inputs=True)
        logits: NDArray[np.float32] = self._request.get_tensor("logits").data
        return logits


def _keep_from_first(graph: Any) -> None:
    """Let a graph compute logits from the position on that a new input names: those of a whole prompt take longest."""
    ops = import_module("openvino.opset13")
    head = graph.output("logits").get_node().input_value(0).get_node()
    if head.get_type_name() != "MatMul":
        raise ValueError(
            f"its logits come from a {head.get_type_name()}, and not from the product of the head"
        )
    first = ops.parameter([1], np.int64, name=_FIRST)
    first.output(0).set_names({_FIRST})
    end, step, axis = (ops.constant(np.array([each], dtype=np.int64)) for each in (2**31 - 1, 1, 1))
    kept = ops.slice(head.input_value(0), first, end, step, axis)
    head.input(0).replace_source_output(kept.output(0))
    graph.add_parameters([first])
    graph.validate_nodes_and_infer_types()


def _cached_values(graph: Any) -> int:
    """Return how many values of the KV cache one token of one row takes."""
    shapes = [
        node.get_output_partial_shape(0) for node in graph.get_ops() if node.get_type_name() == "ReadValue"
    ]
    return sum(shape[1].get_length() * shape[3].get_length() for shape in shapes if len(shape) == 4)


def weight_sizes(graph: Any) -> tuple[int, int]:
    """Return the bytes of all weights of a graph, and of those that one decode step reads: of a table it reads a row."""
    stored = read = 0
    for node in graph.get_ops():
        if node.get_type_name() == "Constant":
            size = math.prod(node.get_output_shape(0)) * node.get_output_element_type(0).bitwidth // 8
            stored += size
            read += 0 if _readers(node) == {"Gather"} else size
    return stored, read


def _readers(node: Any) -> set[str]:
    """Return the types of the operators that compute with a constant, whatever decompresses it before."""
    found: set[str] = set()
    for target in node.output(0).get_target_inputs():
        reader = target.get_node()
        kind = reader.get_type_name()
        found |= _readers(reader) if kind in _DECOMPRESSION and target.get_index() == 0 else {kind}
    return found
