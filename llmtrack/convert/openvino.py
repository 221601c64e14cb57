"""Convert models for OpenVINO with Optimum's exporter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from llmtrack.convert.conversion import Converter
from llmtrack.convert.environment import BuildEnvironment, pinned_requirements
from llmtrack.quantize.recipe import Recipe
from llmtrack.spec.options import Checked, Option
from llmtrack.spec.scenario import Scalar

BACKEND = "openvino"

Symmetric = Annotated[bool, Option("Weights without zero points.")]


@dataclass(frozen=True)
class PerChannel(Checked):
    """Options of int8, with the exporter's defaults."""

    symmetric: Symmetric = False


@dataclass(frozen=True)
class Groups(PerChannel):
    """Options of int4, with the exporter's defaults."""

    group_size: Annotated[
        int, Option("Weights that share a scale; less if a layer's size is not a multiple.", min=2, max=16_384)
    ] = 128
    ratio: Annotated[
        float, Option("Share of the layers in 4 bits; the others, and the head, are in 8.", above=0, max=1)
    ] = 1.0


def _command(source: Path, target: Path, arguments: Sequence[str]) -> Sequence[str]:
    tool = ["optimum.commands.optimum_cli", "export", "openvino", "--task", "text-generation-with-past"]
    return [*tool, "--disable-convert-tokenizer", "-m", str(source), *arguments, str(target)]


def _int8(options: Mapping[str, Scalar]) -> list[str]:
    return ["--weight-format", "int8", *(["--sym"] if options["symmetric"] else [])]


def _int4(options: Mapping[str, Scalar]) -> list[str]:
    groups = ["--group-size", str(options["group_size"]), "--group-size-fallback", "adjust"]
    symmetric = ["--sym"] if options["symmetric"] else []
    return ["--weight-format", "int4", *groups, "--ratio", str(options["ratio"]), *symmetric]


CONVERTER = Converter(
    BACKEND,
    "openvino's exporter",
    BuildEnvironment(BACKEND, pinned_requirements(BACKEND), mib=430),
    _command,
    ("--weight-format", "fp32"),
    by_float=True,
    embedding_bits=8,
)

RECIPES = (
    Recipe("int8", BACKEND, "weights, 8 bits, a scale per output (OpenVINO's NNCF)", "int8", _int8, PerChannel),
    Recipe("int4", BACKEND, "weights, 4 bits in groups, head in 8 (OpenVINO's NNCF)", "int4", _int4, Groups),
)
