"""Weights and activations of linear layers in 8 bits, through Optimum's `ORTQuantizer`; layers that lose too much stay gentler.

What differs between the recipes: where ranges of activations come from (each call, or a calibration text beforehand), and
what the layers that lose too much become (float, or 8-bit weights alone). The head is stored in 8-bit blocks by all of
them: its errors go straight into the logits, and it computes one position of a prompt only, so that 8-bit activations
would cost quality there and win nothing.
"""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmtrack.errors import ScenarioError
from llmtrack.host.machine import cpu_flags
from llmtrack.host.packages import OWN_RECIPES
from llmtrack.quantize.options import Blocks, Dynamic, Mixed, PerToken, Static
from llmtrack.quantize.recipe import Built, Job, Recipe
from llmtrack.quantize.weight_only import check_blocks, in_blocks
from llmtrack.spec.scenario import Scalar

if TYPE_CHECKING:
    from onnx import ModelProto

PERCENTILE = 99.99
HISTOGRAM_BINS = 2048
# How activations and weights are rounded must suit the instructions that multiply them.
X86, ARM = ("x86_64", "amd64"), ("aarch64", "arm64")
# Whose products of bytes take signed weights without an overflow.
SIGNED = ("avx512_vnni", "arm64")


def check(options: Mapping[str, Scalar]) -> None:
    """Refuse a CPU that 8-bit activations are not for, and blocks that there is no kernel for.

    Raises:
        ScenarioError: it is one.
    """
    instruction_set(platform.machine(), cpu_flags())
    check_blocks(options)


def apply(job: Job, *, static: bool = False, mixed: bool = False) -> Built:
    """Quantize every linear layer but those that must stay gentler to keep the quality.

    Args:
        job: what to work on.
        static: ranges of activations are fixed beforehand, as the option `calibration_method` says.
        mixed: what loses too much is made as int8-weight-only does, in blocks of the option `block_size`; else it stays
            in float.
    """
    from llmtrack.onnx import graph
    from llmtrack.onnx.session import MODEL_FILE
    from llmtrack.quantize.keep_quality import leave_out
    from llmtrack.quantize.sensitivity import DYNAMIC, STATIC

    base = graph.load(job.source / MODEL_FILE)
    tied = graph.untie_head(base)
    block_size = int(job.options.get("block_size", Blocks.block_size))
    gentle = base
    if mixed:
        nodes = {layer.node for layer in graph.linears(base)}
        gentle = in_blocks(graph.copy_of(base), 8, block_size, True, nodes)
    quantized = quantize(job, base, str(job.options["calibration_method"]) if static else None)
    _gentle_head(quantized, base, tied, block_size)
    model, built = leave_out(job, base, quantized, gentle, STATIC if static else DYNAMIC)
    graph.save(model, job.target / MODEL_FILE)
    return built


def apply_per_token(job: Job) -> Built:
    """Quantize every linear layer with a scale for each token; the head is stored in blocks.

    Channels that are hard to round are smoothed first. No layer is left out.
    """
    from llmtrack.onnx import graph
    from llmtrack.onnx.session import MODEL_FILE
    from llmtrack.quantize.keep_quality import RANKED_ROWS, inputs_of
    from llmtrack.quantize.per_token import scale_by_token
    from llmtrack.quantize.smooth import largest_of, smooth

    base = graph.load(job.source / MODEL_FILE)
    tied = graph.untie_head(base)
    layers = [layer for layer in graph.linears(base) if layer.result != "logits"]
    smooth(base, largest_of(inputs_of(base, layers, job.rows[:RANKED_ROWS])))
    quantized = graph.copy_of(base)
    nodes = {layer.node for layer in graph.linears(base)}
    scale_by_token(quantized, nodes, instruction_set(platform.machine(), cpu_flags()) in SIGNED)
    _gentle_head(quantized, base, tied, int(job.options["block_size"]))
    graph.save(quantized, job.target / MODEL_FILE)
    return Built({"linear_layers": len(layers)})


_recipe = partial(Recipe, calibrated=True, needs=OWN_RECIPES["onnx"], check=check)


RECIPES = (
    _recipe(
        "int8-dynamic",
        "onnx",
        "weights and activations of linear layers, 8 bits, ranges taken from each call",
        "int8",
        apply,
        Dynamic,
        depends_on_batch=True,
        version=2,
    ),
    _recipe(
        "int8-per-token",
        "onnx",
        "weights and activations of linear layers, 8 bits, a scale for each token; channels smoothed first",
        "int8",
        apply_per_token,
        PerToken,
        rounds_activations=True,
    ),
    _recipe(
        "int8-static",
        "onnx",
        "weights and activations of linear layers, 8 bits, ranges fixed by calibration",
        "int8",
        partial(apply, static=True),
        Static,
        rounds_activations=True,
        version=2,
    ),
    _recipe(
        "int8-mixed",
        "onnx",
        "as int8-dynamic; the layers that lose by it, and the head, as int8-weight-only",
        "int8",
        partial(apply, mixed=True),
        Mixed,
        depends_on_batch=True,
        version=2,
    ),
)


def instruction_set(machine: str, flags: frozenset[str]) -> str:
    """Return the name of Optimum's configuration for a CPU.

    Args:
        machine: as `platform.machine` gives it.
        flags: instruction sets, in lower case.

    Raises:
        ScenarioError: the CPU is none that there is a configuration for.
    """
    if machine.lower() in ARM:
        return "arm64"
    if machine.lower() in X86:
        for needed, name in (("avx512_vnni", "avx512_vnni"), ("avx512f", "avx512"), ("avx2", "avx2")):
            if needed in flags:
                return name
    raise ScenarioError(
        f"no int8 configuration fits this CPU ({machine}): it needs AVX2, AVX-512 or ARM64; use a weight-only recipe",
        kind="unsupported",
    )


def quantize(job: Job, base: ModelProto, calibration: str | None = None) -> ModelProto:
    """Return the graph with every linear layer's weight (a scale for each column) and activations in 8 bits.

    Only products with a constant weight are quantized: Optimum by itself would also round attention's own.

    Args:
        job: where the model's files are, and the rows to calibrate with.
        base: the float graph.
        calibration: `minmax`, `percentile` or `entropy` for fixed ranges of activations; None: ranges are taken anew
            from each call.

    Raises:
        ScenarioError: this CPU is not supported.
    """
    from optimum.onnxruntime import ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    from llmtrack.onnx import graph
    from llmtrack.onnx.session import MODEL_FILE
    from llmtrack.quantize.columns import scale_by_column

    configuration = getattr(AutoQuantizationConfig, instruction_set(platform.machine(), cpu_flags()))(
        is_static=calibration is not None,
        per_channel=False,  # columns have scales of their own all the same: see below
        nodes_to_quantize=[layer.node for layer in graph.linears(base)],
        operators_to_quantize=["MatMul"],
    )
    with tempfile.TemporaryDirectory(dir=job.target) as folder:
        graph.save(base, Path(folder, MODEL_FILE))
        quantizer = ORTQuantizer.from_pretrained(Path(folder), file_name=MODEL_FILE)
        ranges = None
        if calibration is not None:
            ranges = quantizer.fit(
                _examples(Path(folder, MODEL_FILE), job.rows),
                _calibration(calibration),
                onnx_augmented_model_name=str(Path(folder, "augmented.onnx")),
                operators_to_quantize=["MatMul"],
            )
        out = Path(folder, "quantized")
        quantizer.quantize(
            configuration,
            out,
            file_suffix="",
            calibration_tensors_range=ranges,
            use_external_data_format=graph.weight_bytes(base) > 4 * graph.MAX_EMBEDDED_BYTES,
        )
        quantized = graph.load(out / MODEL_FILE)
    scale_by_column(quantized, base)
    return quantized


def _gentle_head(quantized: ModelProto, base: ModelProto, tied: bool, block_size: int) -> None:
    """Replace the head of a quantized graph by one in 8-bit blocks, and a tied embedding by the same blocks.

    Args:
        quantized: is changed.
        base: the float graph that it was made from, its head untied.
        tied: whether the head was the embedding, so that tokens can be looked up in its blocks.
        block_size: weights that share a scale.
    """
    from llmtrack.onnx import graph
    from llmtrack.onnx.tied import share_embedding

    head = next((layer for layer in graph.linears(base) if layer.result == "logits"), None)
    if head is None:  # Something else makes the logits.
        return
    graph.graft(quantized, in_blocks(graph.copy_of(base), 8, block_size, True, {head.node}), {head.result})
    if tied:
        share_embedding(quantized)


def _calibration(method: str) -> Any:
    from onnxruntime.quantization import CalibrationMethod
    from optimum.onnxruntime.configuration import CalibrationConfig

    # The text is handed over; there is no data set of the hub's to name.
    named: dict[str, Any] = {
        "dataset_name": "",
        "dataset_config_name": "",
        "dataset_split": "",
        "dataset_num_samples": 0,
    }
    more: dict[str, dict[str, Any]] = {
        "percentile": {"percentile": PERCENTILE, "num_bins": HISTOGRAM_BINS},
        "entropy": {"num_bins": 128, "num_quantized_bins": 128},
    }
    return CalibrationConfig(
        **named,
        method=getattr(CalibrationMethod, {"minmax": "MinMax"}.get(method, method.title())),
        **more.get(method, {}),
    )


def _examples(path: Path, rows: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Return what Optimum's calibration iterates over: the inputs of each row, without their batch dimension."""
    import numpy as np

    from llmtrack.onnx.session import OnnxDecoder

    decoder = OnnxDecoder(path)
    return [{name: value[0] for name, value in decoder.prefill_feeds(np.array([row])).items()} for row in rows]
