"""ONNX Runtime engine: greedy decoding and scoring of an exported, optionally quantized, model."""

from __future__ import annotations

import csv
import io
import re
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from llmtrack.engine import EngineInfo, Generated, GenerateRequest
from llmtrack.engines.base import HostEngine, peak_warnings, require_float32, runtime_errors
from llmtrack.engines.options import OnnxOptions
from llmtrack.engines.rows import MIXED
from llmtrack.models.cache import read_manifest
from llmtrack.models.load import identify_model
from llmtrack.models.positions import context_length
from llmtrack.onnx.session import (
    MODEL_FILE,
    Cache,
    OnnxDecoder,
    choose_provider,
    find_device,
    next_token_logits,
    onnxruntime,
)
from llmtrack.quantize.build import EXPORT_FACTS, onnx_folder
from llmtrack.quantize.recipe import find_recipe
from llmtrack.spec.options import chosen
from llmtrack.spec.parameter import NONE
from llmtrack.spec.scenario import Scalar, Variant
from llmtrack.tensors import tokens

RUNTIME = "ONNX Runtime"

_EXPERT = re.compile(r"(.*/experts)[./](\d+)/")
"""Node name of an expert: its layer and number."""

_COS_SIN = (7, 8)
"""Inputs of `GroupQueryAttention` with the rotary tables."""


def load(variant: Variant) -> OnnxEngine:
    """Load the model of a variant, exporting and quantizing it first if needed.

    Options of the variant: `OnnxOptions`, and those of the recipe.

    Raises:
        MissingDependencyError: the onnx extra is not installed.
        UsageError: the device, dtype, quantization or an option is not supported.
        ModelLoadError: no candidate could be loaded.
        ScenarioError: the model cannot be exported, quantized or run.
    """
    options = chosen(OnnxOptions, variant.options)
    device = find_device(variant.device, options.provider)
    provider = choose_provider(device, options.provider)
    require_float32(variant)
    recipe = None if variant.quantization == NONE else find_recipe("onnx", variant.quantization)
    identity = identify_model(variant.model, variant.revision)
    folder = onnx_folder(variant, identity)
    settings: dict[str, Any] = {
        "threads": options.used_threads,
        "provider": provider,
        "graph_optimization": options.graph_optimization,
    }
    start = time.perf_counter()
    decoder = OnnxDecoder(folder / MODEL_FILE, **settings)
    seconds = time.perf_counter() - start
    manifest = read_manifest(folder)
    findings = manifest.get("recipe", {})
    facts: dict[str, Scalar] = {
        **settings,
        **(recipe.resolve_options(variant.options) if recipe else {}),
        **findings.get("facts", {}),
        "model_source": identity.source.kind,
        "weights_format": "onnx",
        "trust_remote_code": False,
        **{key: manifest[key] for key in EXPORT_FACTS if key in manifest},
    }
    if identity.revision:
        facts["revision"] = identity.revision
    return OnnxEngine(
        decoder,
        folder,
        model_id=identity.source.spec,
        device=device,
        dtype_label=f"{recipe.dtype} weights (float32)" if recipe else "float32",
        load_time_s=seconds,
        facts=facts,
        tags={**identity.digests.tags, "onnxruntime": onnxruntime().__version__},
        warnings=identity.warnings
        + tuple(manifest.get("warnings", ()))
        + (MIXED.warnings if recipe and recipe.depends_on_batch else ())
        + (recipe.warnings if recipe else ()),
        texts=_texts(findings),
        series=_series(findings),
    )


def open_folder(folder: Path) -> OnnxEngine:
    """Open the folder of an exported model with ONNX Runtime's default settings.

    Raises:
        MissingDependencyError: onnxruntime is not installed.
        ScenarioError: ONNX Runtime cannot run it.
    """
    start = time.perf_counter()
    decoder = OnnxDecoder(folder / MODEL_FILE)
    return OnnxEngine(
        decoder,
        folder,
        model_id=str(folder),
        device="cpu",
        dtype_label="as stored",
        load_time_s=time.perf_counter() - start,
    )


class OnnxEngine(HostEngine):
    """Engine of a graph run by ONNX Runtime, with its tokenizer.

    Args:
        folder: contains graph, config, special ids and tokenizer.
    """

    def __init__(
        self,
        decoder: OnnxDecoder,
        folder: Path,
        *,
        model_id: str,
        device: str,
        dtype_label: str,
        load_time_s: float,
        facts: Mapping[str, Scalar] | None = None,
        tags: Mapping[str, str] | None = None,
        warnings: tuple[str, ...] = (),
        texts: Mapping[str, str] | None = None,
        series: Mapping[str, tuple[float, ...]] | None = None,
    ) -> None:
        super().__init__(folder)
        self._decoder = decoder
        stored, read = weight_sizes(folder / MODEL_FILE, _experts_per_token(self._config))
        self._info = EngineInfo(
            model_id=model_id,
            device=device,
            dtype_label=dtype_label,
            model_size_bytes=stored,
            step_weight_bytes=read,
            kv_bytes_per_token=decoder.kv_bytes_per_token,
            context_length=context_length(self._config),
            vocab_size=self._vocab_size,
            load_time_s=load_time_s,
            file_size_bytes=sum(path.stat().st_size for path in folder.glob(f"{MODEL_FILE}*")),
            facts=dict(facts or {}) | {"architecture": self.architecture},
            tags=dict(tags or {}),
            warnings=warnings + peak_warnings() + self._sharing.warnings,
            special_tokens=tokens.special_tokens(self.tokenizer),
            texts=texts or {},
            series=series or {},
            folder=str(folder),
        )

    def generate(self, request: GenerateRequest, on_step: Callable[[], None]) -> Generated:
        """Generate greedily, calling `on_step` for each step.

        Raises:
            ScenarioError: the rows have pads, which would change this model's output.
        """
        past: Cache | None = None

        def step(ids: Any, mask: Any, cached: bool) -> Any:
            nonlocal past
            capacity = mask.shape[1] + request.max_new_tokens
            with runtime_errors(RUNTIME):
                logits, past = self._decoder.run(ids, mask, past if cached else None, keep=1, capacity=capacity)
            return self._most_likely(logits[:, -1], request)

        return self._generate(request, on_step, step)

    def next_token_logits(self, ids: Sequence[int]) -> torch.Tensor:
        """See `Engine.next_token_logits`."""
        with runtime_errors(RUNTIME):
            return torch.from_numpy(next_token_logits(self._decoder, ids))

    def close(self) -> None:
        """Free the model."""
        del self._decoder


def weight_sizes(path: Path, experts_per_token: int = 0) -> tuple[int, int]:
    """Return the bytes of all weights of a graph, and of those that a decode step reads.

    A step reads one row of a lookup table, and the experts that one token is routed to. Rotary tables derive from the
    config and are not weights, as in PyTorch.

    Args:
        experts_per_token: 0 if there are none or it is unknown.
    """
    import onnx

    from llmtrack.onnx.graph import tensor_bytes

    model = onnx.load(str(path), load_external_data=False)
    consumers: dict[str, set[str]] = {}
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            rotary = node.op_type == "GroupQueryAttention" and index in _COS_SIN
            consumers.setdefault(name, set()).add("RotaryEmbedding" if rotary else node.op_type)
    sizes = {
        tensor.name: tensor_bytes(tensor)
        for tensor in model.graph.initializer
        if consumers.get(tensor.name) != {"RotaryEmbedding"}
    }
    tables = {name for name in sizes if consumers.get(name, set()) <= {"Gather", "GatherBlockQuantized"}}
    shares = _shares_read(model, experts_per_token)
    read = sum(size * shares.get(name, 1.0) for name, size in sizes.items() if name not in tables)
    return sum(sizes.values()), round(read)


def _shares_read(model: Any, experts_per_token: int) -> dict[str, float]:
    """Return the share of each expert's weights that a step reads, on average over the experts of its layer."""
    weights: dict[str, set[str]] = {}
    experts: dict[str, set[str]] = {}
    for node in model.graph.node:
        if experts_per_token and (match := _EXPERT.match(node.name)):
            weights.setdefault(match[1], set()).update(node.input)
            experts.setdefault(match[1], set()).add(match[2])
    return {
        name: min(1.0, experts_per_token / len(experts[layer])) for layer, names in weights.items() for name in names
    }


def _experts_per_token(config: Mapping[str, Any]) -> int:
    names = ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k")
    return next((config[name] for name in names if isinstance(config.get(name), int)), 0)


def _texts(findings: Mapping[str, Any]) -> dict[str, str]:
    """Return a recipe's findings as CSV files: the layers by error, and the attempts of the search."""
    names = {"ranking": "quantization/layers.csv", "attempts": "quantization/search.csv"}
    return {path: _csv(findings[key]) for key, path in names.items() if findings.get(key)}


def _series(findings: Mapping[str, Any]) -> dict[str, tuple[float, ...]]:
    """Return the layers' signal-to-noise ratios, worst first."""
    ranking = findings.get("ranking")
    return {"layer_sqnr_db": tuple(row["sqnr_db"] for row in ranking)} if ranking else {}


def _csv(rows: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
