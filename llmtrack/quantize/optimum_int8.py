"""Quantize weights and activations to 8 bits through Optimum's `ORTQuantizer`."""

from __future__ import annotations

import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from llmtrack.errors import ScenarioError
from llmtrack.quantize.recipe import Job

if TYPE_CHECKING:
    from onnx import ModelProto

CALIBRATION_METHODS = ("minmax", "percentile", "entropy")
PERCENTILE = 99.99
HISTOGRAM_BINS = 2048
# How activations and weights are rounded must suit the instructions that multiply them.
X86, ARM = ("x86_64", "amd64"), ("aarch64", "arm64")


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
        f"no int8 configuration fits this CPU ({machine}): it needs AVX2, AVX-512 or ARM64; "
        "use a weight-only recipe",
        "unsupported",
    )


def quantize(job: Job, base: ModelProto, calibration: str | None = None) -> ModelProto:
    """Return the graph with every linear layer's weight and activations in 8 bits.

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

    from llmtrack.devices import cpu_flags
    from llmtrack.onnx import graph
    from llmtrack.onnx.session import MODEL_FILE

    configuration = getattr(AutoQuantizationConfig, instruction_set(platform.machine(), cpu_flags()))(
        is_static=calibration is not None,
        per_channel=True,
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
        return graph.load(out / MODEL_FILE)


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
    return [
        {name: value[0] for name, value in decoder.prefill_feeds(np.array([row])).items()} for row in rows
    ]
