"""Matrix-vector product plus a vector: most of a decode step of one prompt.

PyTorch's compiler can generate it, too, but its speed depends on the tuning: for an 8 MiB matrix it took 5 to 12 us on
an H100, where this takes 5. Requires Triton, which comes with PyTorch for GPUs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_ROWS, _INNER, _WARPS = 2, 2048, 2
"""Rows per program, columns per iteration, and warps: about the best of 60 choices for each of five matrices."""


def added(base: torch.Tensor, row: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Return `base` + `weight` `row`, summed in float32.

    Args:
        base: (1, 1, outputs).
        row: (1, 1, inputs), contiguous.
        weight: (outputs, inputs), contiguous.
    """
    outputs, inputs = weight.shape
    result = torch.empty_like(base)
    _added[(triton.cdiv(outputs, _ROWS),)](
        base, row, weight, result, outputs, inputs, rows=_ROWS, inner=_INNER, num_warps=_WARPS
    )
    return result


@triton.jit
def _added(  # type: ignore[no-untyped-def] # Triton reads the names itself
    base,
    row,
    weight,
    result,
    outputs,
    inputs,
    rows: tl.constexpr,
    inner: tl.constexpr,
):
    output = tl.program_id(0) * rows + tl.arange(0, rows)
    sums = tl.zeros((rows, inner), tl.float32)
    for begin in range(0, inputs, inner):
        at = begin + tl.arange(0, inner)
        there = (output[:, None] < outputs) & (at[None] < inputs)
        # Each weight is read once per step: do not cache it.
        part = tl.load(
            weight + output[:, None].to(tl.int64) * inputs + at[None],
            mask=there,
            other=0.0,
            eviction_policy="evict_first",
        )
        sums += part.to(tl.float32) * tl.load(row + at, mask=at < inputs, other=0.0).to(tl.float32)[None]
    total = tl.sum(sums, 1) + tl.load(base + output, mask=output < outputs, other=0.0).to(tl.float32)
    tl.store(result + output, total.to(result.dtype.element_ty), mask=output < outputs)
