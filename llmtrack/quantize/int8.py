"""Quantize weights and activations of linear layers to 8 bits; exclude sensitive layers.

The recipes differ in the source of the activation ranges (each call, each token, or a calibration text) and in the
format of the excluded layers (float, or 8-bit weights only). All of them store the head in 8-bit blocks: its errors go
straight into the logits, and it computes only one position of a prompt, so 8-bit activations would cost quality there
without a gain in speed.
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
from llmtrack.quantize.weight_only import in_blocks
from llmtrack.spec.scenario import Scalar

if TYPE_CHECKING:
    from onnx import ModelProto

PERCENTILE = 99.99
HISTOGRAM_BINS = 2048
# The rounding of activations and weights depends on the available instructions.
X86, ARM = ("x86_64", "amd64"), ("aarch64", "arm64")
# Instruction sets that multiply signed 8-bit weights without overflow.
SIGNED = ("avx512_vnni", "arm64")


def check(options: Mapping[str, Scalar]) -> None:
    """Check that this CPU supports 8-bit activations.

    Raises:
        ScenarioError: it does not.
    """
    instruction_set(platform.machine(), cpu_flags())


def apply(job: Job, *, static: bool = False, mixed: bool = False) -> Built:
    """Quantize every linear layer except those excluded to keep the quality.

    Args:
        static: whether activation ranges are fixed, by the option `calibration_method`.
        mixed: whether excluded layers are stored like int8-weight-only, in blocks of the option `block_size`, and not
            in float.
    """
    from llmtrack.onnx import graph
    from llmtrack.onnx.session import MODEL_FILE
    from llmtrack.quantize.sensitivity import DYNAMIC, STATIC, leave_out

    base = graph.load(job.source / MODEL_FILE)
    tied = graph.untie_head(base)
    block_size = int(job.options.get("block_size", Blocks.block_size))
    donor = base
    if mixed:
        nodes = {layer.node for layer in graph.linears(base)}
        donor = in_blocks(graph.copy_of(base), 8, block_size, True, nodes)
    quantized = quantize(job, base, str(job.options["calibration_method"]) if static else None)
    _store_head_in_blocks(quantized, base, tied, block_size)
    model, built = leave_out(job, base, quantized, donor, STATIC if static else DYNAMIC)
    graph.save(model, job.target / MODEL_FILE)
    return built


def apply_per_token(job: Job) -> Built:
    """Quantize every linear layer with one activation scale per token, after smoothing channels with outliers."""
    from llmtrack.onnx import graph
    from llmtrack.onnx.session import MODEL_FILE
    from llmtrack.quantize.scales import scale_by_token
    from llmtrack.quantize.sensitivity import RANKED_ROWS, inputs_of
    from llmtrack.quantize.smooth import channel_ranges, smooth

    base = graph.load(job.source / MODEL_FILE)
    tied = graph.untie_head(base)
    layers = [layer for layer in graph.linears(base) if layer.result != "logits"]
    smooth(base, channel_ranges(inputs_of(base, layers, job.rows[:RANKED_ROWS])))
    quantized = graph.copy_of(base)
    nodes = {layer.node for layer in graph.linears(base)}
    scale_by_token(quantized, nodes, instruction_set(platform.machine(), cpu_flags()) in SIGNED)
    _store_head_in_blocks(quantized, base, tied, int(job.options["block_size"]))
    graph.save(quantized, job.target / MODEL_FILE)
    return Built({"linear_layers": len(layers)})


_recipe = partial(Recipe, backend="onnx", calibrated=True, needs=OWN_RECIPES["onnx"], check=check)

RECIPES = (
    _recipe(
        "int8-dynamic",
        quantizes="weights and activations of linear layers, 8 bits, activation ranges per call",
        dtype="int8",
        apply=apply,
        options=Dynamic,
        depends_on_batch=True,
        version=2,
    ),
    _recipe(
        "int8-per-token",
        quantizes="weights and activations of linear layers, 8 bits, a scale per token; channels smoothed first",
        dtype="int8",
        apply=apply_per_token,
        options=PerToken,
        rounds_activations=True,
    ),
    _recipe(
        "int8-static",
        quantizes="weights and activations of linear layers, 8 bits, activation ranges fixed by calibration",
        dtype="int8",
        apply=partial(apply, static=True),
        options=Static,
        rounds_activations=True,
        version=2,
    ),
    _recipe(
        "int8-mixed",
        quantizes="as int8-dynamic; the most sensitive layers, and the head, as int8-weight-only",
        dtype="int8",
        apply=partial(apply, mixed=True),
        options=Mixed,
        depends_on_batch=True,
        version=2,
    ),
)


def instruction_set(machine: str, flags: frozenset[str]) -> str:
    """Return the name of Optimum's configuration for a CPU by its `platform.machine` and instruction sets.

    Raises:
        ScenarioError: there is no configuration for the CPU.
    """
    if machine.lower() in ARM:
        return "arm64"
    if machine.lower() in X86:
        for flag, name in (("avx512_vnni", "avx512_vnni"), ("avx512f", "avx512"), ("avx2", "avx2")):
            if flag in flags:
                return name
    raise ScenarioError(
        f"no int8 configuration fits this CPU ({machine}): it needs AVX2, AVX-512 or ARM64; use a weight-only recipe",
        kind="unsupported",
    )


def quantize(job: Job, base: ModelProto, calibration: str | None = None) -> ModelProto:
    """Quantize weights (per column) and activations of every linear layer of a float graph to 8 bits.

    Only products with a constant weight are quantized: Optimum by default would also round those of attention. It gets the
    graph without the values of large weights, which ONNX Runtime would copy, write and read some eight times: those of
    linear layers are quantized by `scale_by_column`, the others stay as they are.

    `calibration` is `minmax`, `percentile` or `entropy` for fixed activation ranges; None: ranges of each call.

    Raises:
        ScenarioError: this CPU is not supported.
    """
    from optimum.onnxruntime import ORTQuantizer
    from optimum.onnxruntime.configuration import AutoQuantizationConfig

    from llmtrack.onnx import graph
    from llmtrack.onnx.session import MODEL_FILE
    from llmtrack.quantize.scales import scale_by_column

    configuration = getattr(AutoQuantizationConfig, instruction_set(platform.machine(), cpu_flags()))(
        is_static=calibration is not None,
        per_channel=False,  # done by scale_by_column below
        nodes_to_quantize=[layer.node for layer in graph.linears(base)],
        operators_to_quantize=["MatMul"],
    )
    small = graph.copy_of(base)
    replaced = graph.shrink_weights(small)
    with tempfile.TemporaryDirectory(dir=job.target) as folder:
        ranges = None
        if calibration is not None:
            graph.save(base, Path(folder, MODEL_FILE))
            ranges = ORTQuantizer.from_pretrained(Path(folder), file_name=MODEL_FILE).fit(
                _examples(base, job.rows),
                _calibration(calibration),
                onnx_augmented_model_name=str(Path(folder, "augmented.onnx")),
                operators_to_quantize=["MatMul"],
            )
        graph.save(small, Path(folder, MODEL_FILE))
        out = Path(folder, "quantized")
        quantizer = ORTQuantizer.from_pretrained(Path(folder), file_name=MODEL_FILE)
        quantizer.quantize(configuration, out, file_suffix="", calibration_tensors_range=ranges)
        quantized = graph.load(out / MODEL_FILE)
    graph.restore_weights(quantized, base, replaced)
    scale_by_column(quantized, base)
    return quantized


def _store_head_in_blocks(quantized: ModelProto, base: ModelProto, tied: bool, block_size: int) -> None:
    """Replace the head of a quantized graph, and a tied embedding, by 8-bit blocks of the float graph's."""
    from llmtrack.onnx import graph
    from llmtrack.onnx.matmul_nbits import share_embedding

    head = next((layer for layer in graph.linears(base) if layer.result == "logits"), None)
    if head is None:  # The logits are no MatMul.
        return
    graph.graft(quantized, in_blocks(graph.copy_of(base), 8, block_size, True, {head.node}), {head.result})
    if tied:
        share_embedding(quantized)


def _calibration(method: str) -> Any:
    from onnxruntime.quantization import CalibrationMethod
    from optimum.onnxruntime.configuration import CalibrationConfig

    parameters: dict[str, dict[str, Any]] = {
        "percentile": {"percentile": PERCENTILE, "num_bins": HISTOGRAM_BINS},
        "entropy": {"num_bins": 128, "num_quantized_bins": 128},
    }
    return CalibrationConfig(
        # The rows are passed directly; there is no hub data set.
        dataset_name="",
        dataset_config_name="",
        dataset_split="",
        dataset_num_samples=0,
        method=getattr(CalibrationMethod, {"minmax": "MinMax"}.get(method, method.title())),
        **parameters.get(method, {}),
    )


def _examples(base: ModelProto, rows: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Return the graph's inputs for each row, without the batch dimension, as Optimum's calibration expects them."""
    import numpy as np

    from llmtrack.onnx.names import PAST

    inputs = {tensor.name: tensor.type.tensor_type.shape.dim for tensor in base.graph.input}
    pasts = {
        name: np.zeros((shape[1].dim_value, 0, shape[3].dim_value), dtype=np.float32)
        for name, shape in inputs.items()
        if PAST.fullmatch(name)
    }
    examples = []
    for row in rows:
        ids = np.array(row, dtype=np.int64)
        feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids), "position_ids": np.arange(len(ids))}
        examples.append({name: array for name, array in feeds.items() if name in inputs} | pasts)
    return examples
