"""Convert models for ONNX Runtime GenAI with its own model builder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated

from llmtrack.convert.conversion import Converter
from llmtrack.convert.environment import BuildEnvironment, pinned_requirements
from llmtrack.quantize.options import BLOCK_SIZES
from llmtrack.quantize.recipe import Recipe
from llmtrack.spec.options import Checked, Option
from llmtrack.spec.scenario import Scalar

BACKEND = "genai"


@dataclass(frozen=True)
class BuilderBlocks(Checked):
    """Options of the model builder's weight-only recipes, with its own defaults."""

    block_size: Annotated[int, Option("Weights that share a scale.", choices=BLOCK_SIZES)] = 32
    symmetric: Annotated[bool, Option("Blocks without zero points.")] = True
    accuracy_level: Annotated[
        int, Option("Precision of products; 4: activations in 8 bits, 1: in float32.", min=0, max=4)
    ] = 4
    algorithm: Annotated[str, Option("Rounding of weights.", choices=("default", "rtn", "k_quant"))] = "default"


def _command(source: Path, target: Path, arguments: Sequence[str]) -> Sequence[str]:
    tool = ["onnxruntime_genai.models.builder", "-e", "cpu", "-c", str(target / ".scratch")]
    return [*tool, "-i", str(source), "-o", str(target), *arguments]


def _weight_only(precision: str, options: Mapping[str, Scalar]) -> list[str]:
    extra = {
        "block_size": options["block_size"],
        "is_symmetric": str(options["symmetric"]).lower(),
        "accuracy_level": options["accuracy_level"],
        "algo_config": options["algorithm"],
    }
    return ["-p", precision, "--extra_options", *(f"{name}={value}" for name, value in extra.items())]


CONVERTER = Converter(
    BACKEND,
    "GenAI's model builder",
    BuildEnvironment(BACKEND, pinned_requirements(BACKEND), mib=370),
    _command,
    ("-p", "fp32"),
)

RECIPES = tuple(
    Recipe(
        dtype,
        BACKEND,
        f"weights, {bits} bits in blocks (GenAI's model builder)",
        dtype,
        partial(_weight_only, dtype),
        BuilderBlocks,
    )
    for dtype, bits in (("int8", 8), ("int4", 4))
)
