"""Options of the onnx backend's recipes, with their defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from llmtrack.errors import UsageError
from llmtrack.spec.options import Checked, Option
from llmtrack.spec.parameter import NONE
from llmtrack.spec.task import PYDOC


def share(text: object) -> float | None:
    """Parse `5%` or `0.05` as 0.05, and `none` as None.

    Raises:
        UsageError: not a share.
    """
    number = str(text).strip().lower()
    if number == NONE:
        return None
    try:
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1:
        raise UsageError(f"keep_quality {text!r} is not a share of the perplexity: use for example 3%, 0.03 or none")
    return value


def _share_text(text: str) -> str:
    share(text)
    return text


KeepQuality = Annotated[
    str,
    Option(
        "Exclude the worst layers until perplexity of the calibration text rises by no more than this; none: exclude none.",
        read=_share_text,
    ),
]
DEFAULT_TOKENS = 2048
BLOCK_SIZES = (16, 32, 64, 128, 256)
HEAD_BITS = (4, 8)
"""Values that ONNX Runtime has kernels for."""

BlockSize = Annotated[int, Option("Weights that share a scale.", choices=BLOCK_SIZES)]
HeadBits = Annotated[
    int,
    Option("int4-weight-only: bits of the head and of a tied embedding.", choices=HEAD_BITS),
]
Symmetric = Annotated[bool, Option("Weight-only: blocks without zero points.")]
CalibrationCorpus = Annotated[str, Option("Calibration text; must differ from the scored one.", min=1)]
Method = Annotated[str, Option("int8-static: method of calibration.", choices=("minmax", "percentile", "entropy"))]
Tokens = Annotated[int, Option("Tokens of the calibration text.", min=1)]


@dataclass(frozen=True)
class CalibrationText(Checked):
    """Additional option of every calibrated recipe."""

    calibration: CalibrationCorpus = PYDOC


@dataclass(frozen=True)
class Blocks(Checked):
    """Options of int8-weight-only."""

    block_size: BlockSize = 64
    symmetric: Symmetric = True


@dataclass(frozen=True)
class HqqBlocks(Checked):
    """Options of int4-hqq, which computes zero points."""

    block_size: BlockSize = 32


@dataclass(frozen=True)
class SmallBlocks(Blocks):
    """Options of int4-weight-only."""

    block_size: BlockSize = 32
    head_bits: HeadBits = 8


@dataclass(frozen=True)
class GptqBlocks(HqqBlocks):
    """Options of int4-gptq, which computes zero points, and would overfit fewer tokens."""

    calibration_tokens: Tokens = 8 * DEFAULT_TOKENS


@dataclass(frozen=True)
class MixedBlocks(GptqBlocks):
    """Options of int4-mixed."""

    keep_quality: KeepQuality = "2%"


@dataclass(frozen=True)
class Dynamic(Checked):
    """Options of int8-dynamic."""

    keep_quality: KeepQuality = "2%"
    calibration_tokens: Tokens = DEFAULT_TOKENS


@dataclass(frozen=True)
class Static(Checked):
    """Options of int8-static."""

    keep_quality: KeepQuality = "3%"
    calibration_tokens: Tokens = DEFAULT_TOKENS
    calibration_method: Method = "minmax"


@dataclass(frozen=True)
class PerToken(Checked):
    """Options of int8-per-token, which stores the head in blocks."""

    calibration_tokens: Tokens = DEFAULT_TOKENS
    block_size: BlockSize = 64


@dataclass(frozen=True)
class Mixed(Checked):
    """Options of int8-mixed."""

    keep_quality: KeepQuality = "3%"
    calibration_tokens: Tokens = DEFAULT_TOKENS
    block_size: BlockSize = 64
